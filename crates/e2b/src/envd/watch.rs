//! Changes of a directory: as a stream, or kept until they are asked for.
//!
//! Guarantees: what is kept is kept by the guest, with all that is needed to tell it. So a fork has
//! the watchers of its source, and so has the next daemon.

use std::collections::VecDeque;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::HeaderMap;
use forkd_engine::guest::{
    ChangeDetail, Depth, FileChange, FileEntry, FileKind, FileWatch, KeptChanges, Mounts,
    ToldChange, WatchExtent, WithEntries,
};
use futures_util::{Stream, stream};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, sleep_until};

use super::at::{At, keepalive_of, timeout_of};
use super::entry::{seen_kind, shown};
use crate::connect::{Broken, ended, message};
use crate::failure::{Failure, Kind};

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Watched {
    path: String,
    recursive: bool,
    #[serde(alias = "include_entry")]
    include_entry: bool,
    #[serde(alias = "allow_network_mounts")]
    allow_network_mounts: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct OfWatcher {
    #[serde(alias = "watcher_id")]
    watcher_id: String,
}

impl Watched {
    /// How far it goes.
    fn extent(&self) -> WatchExtent {
        WatchExtent {
            depth: if self.recursive { Depth::Recursive } else { Depth::Itself },
            mounts: if self.allow_network_mounts { Mounts::All } else { Mounts::Local },
        }
    }

    /// The directory that is meant, and how its changes are told.
    async fn told(&self, at: &At, headers: &HeaderMap) -> Result<Telling, Failure> {
        let root = at.file(headers, &self.path).await?;
        if seen_kind(&at.entry(&root).await?) == FileKind::File {
            return Err(Failure::field("path", "is not a directory"));
        }
        Ok(Telling { root, include_entry: self.include_entry })
    }
}

/// How changes are told. The guest keeps it with a watcher.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Telling {
    root: String,
    include_entry: bool,
}

impl Telling {
    /// A change as clients see it; a failure when some were missed.
    async fn events(&self, at: &At, told: ToldChange) -> Result<Vec<Value>, Failure> {
        let ToldChange { change, detail, entry } = told;
        let (path, kind) = match change {
            FileChange::Created(path) => {
                let entry = entry_of(at, &path, entry).await;
                let kinds = kinds_of_new(detail, entry.as_ref()).iter();
                return Ok(kinds.map(|kind| self.event(&path, kind, entry.as_ref())).collect());
            }
            FileChange::Modified(path) if detail == ChangeDetail::Attributes => {
                (path, "EVENT_TYPE_CHMOD")
            }
            FileChange::Modified(path) => (path, "EVENT_TYPE_WRITE"),
            FileChange::Removed(path) => {
                return Ok(vec![self.event(&path, "EVENT_TYPE_REMOVE", None)]);
            }
            FileChange::Renamed { from, path } => {
                // E2B tells the old name, and that there is a new thing.
                let entry = self.wanted(at, &path, entry).await;
                let old = self.event(&from, "EVENT_TYPE_RENAME", None);
                return Ok(vec![old, self.event(&path, "EVENT_TYPE_CREATE", entry.as_ref())]);
            }
            FileChange::Lost => {
                let text = "changes were missed: there were too many before they were asked for";
                return Err(Failure::new(Kind::Missed, text));
            }
        };
        let entry = self.wanted(at, &path, entry).await;
        Ok(vec![self.event(&path, kind, entry.as_ref())])
    }

    /// What is at a path, if the client wants to hear it.
    async fn wanted(&self, at: &At, path: &str, told: Option<FileEntry>) -> Option<FileEntry> {
        if self.include_entry { entry_of(at, path, told).await } else { None }
    }

    fn event(&self, path: &str, kind: &str, entry: Option<&FileEntry>) -> Value {
        let mut event = json!({"name": name_in(&self.root, path), "type": kind});
        if let Some(entry) = entry.filter(|_| self.include_entry) {
            event["entry"] = shown(entry);
        }
        event
    }
}

/// What E2B's agent tells of something new. It writes a file in its place: it makes it, gives it to
/// its user, and fills it. Ours puts it there as a whole, and tells what the other would.
fn kinds_of_new(detail: ChangeDetail, entry: Option<&FileEntry>) -> &'static [&'static str] {
    const STEPS: [&str; 3] = ["EVENT_TYPE_CREATE", "EVENT_TYPE_CHMOD", "EVENT_TYPE_WRITE"];
    match detail {
        ChangeDetail::Put if entry.is_some_and(|entry| entry.bytes == 0) => &STEPS[..2],
        ChangeDetail::Put => &STEPS,
        ChangeDetail::Replaced => &STEPS[2..],
        // A program goes on with what it has made, and that is told by itself.
        ChangeDetail::Made => &STEPS[..1],
        // It may have its content already, as it always has where an older agent has put it:
        // programs wait for that.
        _ if entry.is_some_and(|it| it.kind == FileKind::File && it.bytes > 0) => {
            &["EVENT_TYPE_CREATE", "EVENT_TYPE_WRITE"]
        }
        _ => &STEPS[..1],
    }
}

/// What was at a path when it changed. An older agent has not looked, and none looks where a link
/// leads, so we do.
async fn entry_of(at: &At, path: &str, told: Option<FileEntry>) -> Option<FileEntry> {
    match told {
        Some(entry) if entry.kind != FileKind::Symlink => Some(entry),
        told => at.entry(path).await.ok().or(told),
    }
}

/// A path below the watched one.
fn name_in(root: &str, path: &str) -> String {
    let below = path.strip_prefix(root.trim_end_matches('/')).unwrap_or(path);
    below.trim_start_matches('/').to_owned()
}

struct Follow {
    at: At,
    telling: Telling,
    watch: FileWatch,
    waiting: VecDeque<Bytes>,
    deadline: Option<Instant>,
    keepalive: Duration,
    over: bool,
}

impl Follow {
    async fn next(&mut self) -> Option<Result<Bytes, Broken>> {
        loop {
            if let Some(bytes) = self.waiting.pop_front() {
                return Some(Ok(bytes));
            }
            if self.over {
                return None;
            }
            let until = self.deadline.unwrap_or_else(Instant::now);
            tokio::select! {
                change = self.watch.next() => match change {
                    Ok(Some(told)) => match self.telling.events(&self.at, told).await {
                        Ok(events) => {
                            let sealed = |event| message(&json!({"filesystem": event}));
                            self.waiting.extend(events.into_iter().map(sealed));
                        }
                        Err(failure) => self.end(Err(failure)),
                    },
                    Ok(None) => self.end(Ok(())),
                    Err(_) => {
                        self.over = true;
                        return Some(Err(Broken));
                    }
                },
                () = sleep_until(until), if self.deadline.is_some() => {
                    let text = "the time of the call is over";
                    self.end(Err(Failure::new(Kind::DeadlineExceeded, text)));
                }
                () = sleep(self.keepalive) => {
                    return Some(Ok(message(&json!({"keepalive": {}}))));
                }
            }
        }
    }

    fn end(&mut self, result: Result<(), Failure>) {
        self.over = true;
        self.waiting.push_back(ended(result));
    }
}

pub(super) async fn follow(
    at: &At,
    headers: &HeaderMap,
    ask: Watched,
) -> Result<impl Stream<Item = Result<Bytes, Broken>> + Send + use<>, Failure> {
    let telling = ask.told(at, headers).await?;
    let (engine, extent) = (&at.shared.engine, ask.extent());
    let watch = engine.watch_files(&at.id, &telling.root, extent, WithEntries::Yes).await?;
    let follow = Follow {
        at: at.clone(),
        telling,
        watch,
        waiting: VecDeque::from([message(&json!({"start": {}}))]),
        deadline: timeout_of(headers).and_then(|time| Instant::now().checked_add(time)),
        keepalive: keepalive_of(headers),
        over: false,
    };
    Ok(stream::unfold(follow, |mut follow| async move {
        let next = follow.next().await?;
        Some((next, follow))
    }))
}

pub(super) async fn create(at: &At, headers: &HeaderMap, ask: Watched) -> Result<Value, Failure> {
    let telling = ask.told(at, headers).await?;
    let name = getrandom::u64().map_err(|error| Failure::new(Kind::Internal, error.to_string()))?;
    let name = format!("w{name:016x}");
    let (record, extent) = (json!(telling).to_string(), ask.extent());
    at.shared.engine.keep_watch(&at.id, &name, &record, &telling.root, extent).await?;
    Ok(json!({"watcherId": name}))
}

pub(super) async fn events(at: &At, _: &HeaderMap, ask: OfWatcher) -> Result<Value, Failure> {
    let taken = at.shared.engine.take_changes(&at.id, &ask.watcher_id).await?;
    let KeptChanges { record, changes } = taken;
    // It comes from the guest: it may say anything.
    let telling: Telling = serde_json::from_str(&record).unwrap_or_default();
    let mut events = Vec::new();
    for told in changes {
        events.extend(telling.events(at, told).await?);
    }
    Ok(json!({"events": events}))
}

pub(super) async fn remove(at: &At, _: &HeaderMap, ask: OfWatcher) -> Result<Value, Failure> {
    at.shared.engine.end_watch(&at.id, &ask.watcher_id).await?;
    Ok(json!({}))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(bytes: u64) -> FileEntry {
        FileEntry {
            name: "a".to_owned(),
            path: "/a".to_owned(),
            kind: FileKind::File,
            bytes,
            mode: 0o644,
            modified_at: std::time::UNIX_EPOCH,
            owner: None,
            group: None,
            attributes: [].into(),
            link: None,
        }
    }

    #[test]
    fn something_new_is_told_in_the_steps_that_e2b_would_take() {
        const NEW: &[&str] = &["EVENT_TYPE_CREATE"];
        let steps = ["EVENT_TYPE_CREATE", "EVENT_TYPE_CHMOD", "EVENT_TYPE_WRITE"];
        let created_and_written = [steps[0], steps[2]];
        let (full, empty) = (file(4), file(0));
        for (detail, entry, expected) in [
            (ChangeDetail::Put, Some(&full), &steps[..]),
            (ChangeDetail::Put, None, &steps[..]),
            (ChangeDetail::Put, Some(&empty), &steps[..2]),
            (ChangeDetail::Replaced, Some(&full), &steps[2..]),
            (ChangeDetail::Replaced, Some(&empty), &steps[2..]),
            (ChangeDetail::Made, Some(&full), NEW),
            (ChangeDetail::Found, Some(&full), &created_and_written[..]),
            (ChangeDetail::Found, Some(&empty), NEW),
            (ChangeDetail::None, Some(&full), &created_and_written[..]),
            (ChangeDetail::None, None, NEW),
        ] {
            assert_eq!(kinds_of_new(detail, entry), expected, "{detail:?} {entry:?}");
        }
    }

    #[test]
    fn a_watch_leaves_the_network_alone_unless_it_is_told_not_to() {
        let of = |text: &str| serde_json::from_str::<Watched>(text).unwrap().extent().mounts;
        assert_eq!(of("{}"), Mounts::Local);
        assert_eq!(of(r#"{"allowNetworkMounts": false}"#), Mounts::Local);
        assert_eq!(of(r#"{"allowNetworkMounts": true}"#), Mounts::All);
        assert_eq!(of(r#"{"allow_network_mounts": true}"#), Mounts::All);
    }

    #[test]
    fn a_change_is_named_from_the_watched_directory_on() {
        assert_eq!(name_in("/home/user", "/home/user/a/b"), "a/b");
        assert_eq!(name_in("/", "/a"), "a");
    }
}
