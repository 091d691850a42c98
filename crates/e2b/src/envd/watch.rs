//! Changes of a directory: as a stream, or kept until they are asked for.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use axum::http::HeaderMap;
use forkd_engine::guest::{Depth, FileChange, FileKind, FileWatch};
use futures_util::{Stream, stream};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::at::{At, keepalive_of, timeout_of};
use super::entry::shown;
use super::watchers::Watcher;
use crate::connect::{Broken, ended, message};
use crate::failure::{Failure, Kind};

/// Watchers of one sandbox.
const WATCHERS_MAX: usize = 64;
/// For changes that are on their way from the guest.
const QUIET: Duration = Duration::from_millis(60);
const QUIET_MAX: Duration = Duration::from_millis(600);

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Watched {
    path: String,
    recursive: bool,
    #[serde(alias = "include_entry")]
    include_entry: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct OfWatcher {
    #[serde(alias = "watcher_id")]
    watcher_id: String,
}

/// A directory that is watched.
struct Watching {
    at: At,
    root: String,
    include_entry: bool,
    watch: FileWatch,
}

impl Watching {
    async fn begin(at: &At, headers: &HeaderMap, ask: Watched) -> Result<Self, Failure> {
        let root = at.file(headers, &ask.path).await?;
        if at.entry(&root).await?.kind == FileKind::File {
            return Err(Failure::field("path", "is not a directory"));
        }
        let depth = if ask.recursive { Depth::Recursive } else { Depth::Itself };
        let watch = at.shared.engine.watch_files(&at.id, &root, depth).await?;
        Ok(Self { at: at.clone(), root, include_entry: ask.include_entry, watch })
    }

    /// The next change. Safe to cancel while it waits for one.
    async fn next(&mut self) -> Result<Option<FileChange>, Broken> {
        self.watch.next().await.map_err(|_| Broken)
    }

    /// A change as clients see it; a failure when some were missed.
    async fn told(&self, change: FileChange) -> Result<Vec<Value>, Failure> {
        let (path, kind) = match change {
            FileChange::Created(path) => return Ok(self.created(&path).await),
            FileChange::Modified(path) => (path, "EVENT_TYPE_WRITE"),
            FileChange::Removed(path) => (path, "EVENT_TYPE_REMOVE"),
            FileChange::Renamed { from, path } => {
                // E2B tells the old name, and that there is a new thing.
                let old = json!({"name": name_in(&self.root, &from), "type": "EVENT_TYPE_RENAME"});
                return Ok(vec![old, self.event(&path, "EVENT_TYPE_CREATE").await]);
            }
            FileChange::Lost => {
                return Err(Failure::new(Kind::Internal, "changes were missed: too many at once"));
            }
        };
        Ok(vec![self.event(&path, kind).await])
    }

    /// A file that comes into its place in one step has its content already, where E2B's agent
    /// would write it next: programs wait for that.
    async fn created(&self, path: &str) -> Vec<Value> {
        let mut events = vec![self.event(path, "EVENT_TYPE_CREATE").await];
        let entry = self.at.entry(path).await;
        if entry.is_ok_and(|entry| entry.kind == FileKind::File && entry.bytes > 0) {
            events.push(self.event(path, "EVENT_TYPE_WRITE").await);
        }
        events
    }

    async fn event(&self, path: &str, kind: &str) -> Value {
        let mut event = json!({"name": name_in(&self.root, path), "type": kind});
        if self.include_entry
            && kind != "EVENT_TYPE_REMOVE"
            && let Ok(entry) = self.at.entry(path).await
        {
            event["entry"] = shown(&entry);
        }
        event
    }
}

/// A path below the watched one.
fn name_in(root: &str, path: &str) -> String {
    let below = path.strip_prefix(root.trim_end_matches('/')).unwrap_or(path);
    below.trim_start_matches('/').to_owned()
}

struct Follow {
    watching: Watching,
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
                change = self.watching.next() => match change {
                    Ok(Some(change)) => match self.watching.told(change).await {
                        Ok(events) => {
                            let sealed = |event| message(&json!({"filesystem": event}));
                            self.waiting.extend(events.into_iter().map(sealed));
                        }
                        Err(failure) => self.end(Err(failure)),
                    },
                    Ok(None) => self.end(Ok(())),
                    Err(broken) => {
                        self.over = true;
                        return Some(Err(broken));
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
    let watching = Watching::begin(at, headers, ask).await?;
    let follow = Follow {
        watching,
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

async fn keep_seeing(watcher: &Watcher, mut watching: Watching) {
    loop {
        match watching.next().await {
            Ok(Some(change)) => watcher.see(watching.told(change).await),
            Ok(None) => {
                let text = "the watched directory is gone";
                return watcher.see(Err(Failure::new(Kind::NotFound, text)));
            }
            Err(Broken) => {
                return watcher.see(Err(Failure::new(Kind::Gone, "the sandbox is gone")));
            }
        }
    }
}

pub(super) async fn create(at: &At, headers: &HeaderMap, ask: Watched) -> Result<Value, Failure> {
    let watching = Watching::begin(at, headers, ask).await?;
    let watchers = &at.shared.watchers;
    let mut all = watchers.0.lock().unwrap_or_else(PoisonError::into_inner);
    all.retain(|(id, _), (_, task)| !task.is_finished() || at.shared.engine.sandbox(id).is_ok());
    if all.keys().filter(|(id, _)| *id == at.id).count() >= WATCHERS_MAX {
        let text = format!("the sandbox has {WATCHERS_MAX} watchers already");
        return Err(Failure::new(Kind::LimitReached, text));
    }
    let name = format!("w{:016x}", getrandom::u64().unwrap_or_default());
    let watcher = Arc::new(Watcher { seen: Mutex::default(), changed: Notify::new() });
    let sees = Arc::clone(&watcher);
    let task = tokio::spawn(async move { keep_seeing(&sees, watching).await });
    all.insert((at.id.clone(), name.clone()), (watcher, task.abort_handle()));
    Ok(json!({"watcherId": name}))
}

pub(super) async fn events(at: &At, _: &HeaderMap, ask: OfWatcher) -> Result<Value, Failure> {
    let watcher = at.shared.watchers.get(&at.id, &ask.watcher_id)?;
    // What a client has just done is on its way here.
    let until = Instant::now() + QUIET_MAX;
    while Instant::now() < until && timeout(QUIET, watcher.changed.notified()).await.is_ok() {}
    let mut seen = watcher.seen.lock().unwrap_or_else(PoisonError::into_inner);
    let events: Vec<Value> = seen.events.drain(..).collect();
    match &seen.over {
        Some(failure) if events.is_empty() => Err(failure.clone()),
        _ => Ok(json!({"events": events})),
    }
}

pub(super) async fn remove(at: &At, _: &HeaderMap, ask: OfWatcher) -> Result<Value, Failure> {
    at.shared.watchers.get(&at.id, &ask.watcher_id)?;
    let mut all = at.shared.watchers.0.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, task)) = all.remove(&(at.id.clone(), ask.watcher_id)) {
        task.abort();
    }
    Ok(json!({}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_named_from_the_watched_directory_on() {
        assert_eq!(name_in("/home/user", "/home/user/a/b"), "a/b");
        assert_eq!(name_in("/", "/a"), "a");
    }
}
