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
use tokio::time::{Instant, sleep, sleep_until};
use utoipa::ToSchema;

use super::at::{At, keepalive_of, timeout_of};
use super::entry::{Entry, seen_kind, shown};
use crate::connect::{Broken, Empty, ended, message};
use crate::failure::{Failure, Kind};

/// A directory to watch.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = WatchDirRequest)]
pub(super) struct Watched {
    #[serde(default)]
    path: String,
    /// Whether what is below it is watched too.
    #[serde(default)]
    recursive: bool,
    /// Whether changes tell what is at their path.
    #[serde(default, alias = "include_entry")]
    include_entry: bool,
    /// Whether it may be on a file system of the network, whose changes are not all told.
    #[serde(default, alias = "allow_network_mounts")]
    allow_network_mounts: bool,
}

/// Which watcher.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = WatcherRequest)]
pub(super) struct OfWatcher {
    #[serde(default, alias = "watcher_id")]
    watcher_id: String,
}

/// A watcher that is made.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Watcher {
    watcher_id: String,
}

/// What has changed since a watcher was last asked.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct WatcherEvents {
    events: Vec<FilesystemEvent>,
}

/// A message about a directory that a client follows: `start` first.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum WatchMessage {
    Start(Empty),
    Filesystem(Box<FilesystemEvent>),
    /// Nothing: a sign of life.
    Keepalive(Empty),
}

/// A change.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct FilesystemEvent {
    /// The path from the watched directory on.
    name: String,
    #[serde(rename = "type")]
    kind: EventType,
    /// What is there now.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    entry: Option<Entry>,
}

/// What kind of change it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
enum EventType {
    #[serde(rename = "EVENT_TYPE_CREATE")]
    Create,
    #[serde(rename = "EVENT_TYPE_WRITE")]
    Write,
    #[serde(rename = "EVENT_TYPE_REMOVE")]
    Remove,
    #[serde(rename = "EVENT_TYPE_RENAME")]
    Rename,
    #[serde(rename = "EVENT_TYPE_CHMOD")]
    Chmod,
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
    async fn events(&self, at: &At, told: ToldChange) -> Result<Vec<FilesystemEvent>, Failure> {
        let ToldChange { change, detail, entry } = told;
        let (path, kind) = match change {
            FileChange::Created(path) => {
                let entry = entry_of(at, &path, entry).await;
                let kinds = kinds_of_new(detail, entry.as_ref()).iter();
                return Ok(kinds.map(|kind| self.event(&path, *kind, entry.as_ref())).collect());
            }
            FileChange::Modified(path) if detail == ChangeDetail::Attributes => {
                (path, EventType::Chmod)
            }
            FileChange::Modified(path) => (path, EventType::Write),
            FileChange::Removed(path) => {
                return Ok(vec![self.event(&path, EventType::Remove, None)]);
            }
            FileChange::Renamed { from, path } => {
                // E2B tells the old name, and that there is a new thing.
                let entry = self.wanted(at, &path, entry).await;
                let old = self.event(&from, EventType::Rename, None);
                return Ok(vec![old, self.event(&path, EventType::Create, entry.as_ref())]);
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

    fn event(&self, path: &str, kind: EventType, entry: Option<&FileEntry>) -> FilesystemEvent {
        let entry = entry.filter(|_| self.include_entry).map(shown);
        FilesystemEvent { name: name_in(&self.root, path), kind, entry }
    }
}

/// What E2B's agent tells of something new. It writes a file in its place: it makes it, gives it to
/// its user, and fills it. Ours puts it there as a whole, and tells what the other would.
fn kinds_of_new(detail: ChangeDetail, entry: Option<&FileEntry>) -> &'static [EventType] {
    const STEPS: [EventType; 3] = [EventType::Create, EventType::Chmod, EventType::Write];
    match detail {
        ChangeDetail::Put if entry.is_some_and(|entry| entry.bytes == 0) => &STEPS[..2],
        ChangeDetail::Put => &STEPS,
        ChangeDetail::Replaced => &STEPS[2..],
        // A program goes on with what it has made, and that is told by itself.
        ChangeDetail::Made => &STEPS[..1],
        // It may have its content already, as it always has where an older agent has put it:
        // programs wait for that.
        _ if entry.is_some_and(|it| it.kind == FileKind::File && it.bytes > 0) => {
            &[EventType::Create, EventType::Write]
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
                            let events = events.into_iter().map(Box::new);
                            let sealed = |event| message(&WatchMessage::Filesystem(event));
                            self.waiting.extend(events.map(sealed));
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
                    return Some(Ok(message(&WatchMessage::Keepalive(Empty {}))));
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
        waiting: VecDeque::from([message(&WatchMessage::Start(Empty {}))]),
        deadline: timeout_of(headers).and_then(|time| Instant::now().checked_add(time)),
        keepalive: keepalive_of(headers),
        over: false,
    };
    Ok(stream::unfold(follow, |mut follow| async move {
        let next = follow.next().await?;
        Some((next, follow))
    }))
}

pub(super) async fn create(at: &At, headers: &HeaderMap, ask: Watched) -> Result<Watcher, Failure> {
    let telling = ask.told(at, headers).await?;
    let name = getrandom::u64().map_err(|error| Failure::new(Kind::Internal, error.to_string()))?;
    let name = format!("w{name:016x}");
    let record = serde_json::to_string(&telling);
    let record = record.map_err(|error| Failure::new(Kind::Internal, error.to_string()))?;
    let extent = ask.extent();
    at.shared.engine.keep_watch(&at.id, &name, &record, &telling.root, extent).await?;
    Ok(Watcher { watcher_id: name })
}

pub(super) async fn events(
    at: &At,
    _: &HeaderMap,
    ask: OfWatcher,
) -> Result<WatcherEvents, Failure> {
    let taken = at.shared.engine.take_changes(&at.id, &ask.watcher_id).await?;
    let KeptChanges { record, changes } = taken;
    // It comes from the guest: it may say anything.
    let telling: Telling = serde_json::from_str(&record).unwrap_or_default();
    let mut events = Vec::new();
    for told in changes {
        events.extend(telling.events(at, told).await?);
    }
    Ok(WatcherEvents { events })
}

pub(super) async fn remove(at: &At, _: &HeaderMap, ask: OfWatcher) -> Result<Empty, Failure> {
    at.shared.engine.end_watch(&at.id, &ask.watcher_id).await?;
    Ok(Empty {})
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use serde_json::json;

    use super::*;
    use crate::document::Document;

    #[test]
    fn every_message_about_a_directory_is_as_the_document_says() {
        let telling = Telling { root: "/w".to_owned(), include_entry: true };
        let attributes = [("user.e2b.a".to_owned(), "b".to_owned())].into();
        let entry = FileEntry { path: "/w/a".to_owned(), attributes, ..file(1) };
        let mut messages = vec![WatchMessage::Start(Empty {}), WatchMessage::Keepalive(Empty {})];
        let kinds = [
            EventType::Create,
            EventType::Write,
            EventType::Remove,
            EventType::Rename,
            EventType::Chmod,
        ];
        for kind in kinds {
            for entry in [Some(&entry), None] {
                let event = telling.event("/w/a", kind, entry);
                messages.push(WatchMessage::Filesystem(Box::new(event)));
            }
        }
        for message in messages {
            let said = json!(message);
            assert_eq!(Document::of_crate().check_named("WatchMessage", &said), Ok(()), "{said}");
        }
    }

    fn file(bytes: u64) -> FileEntry {
        FileEntry {
            name: "a".to_owned(),
            path: "/a".to_owned(),
            kind: FileKind::File,
            bytes,
            mode: 0o644,
            modified_at: UNIX_EPOCH,
            owner: None,
            group: None,
            attributes: [].into(),
            link: None,
        }
    }

    #[test]
    fn something_new_is_told_in_the_steps_that_e2b_would_take() {
        const NEW: &[EventType] = &[EventType::Create];
        let steps = [EventType::Create, EventType::Chmod, EventType::Write];
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
