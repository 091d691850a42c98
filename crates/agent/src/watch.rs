//! Telling of changes in the file system, with inotify.
//!
//! Guarantees: a change after `Watching` is told, or that changes were missed. A directory that
//! comes into a watched tree is watched too, and what was made in it before that is told as
//! created; so a thing may be told twice. A file that the agent puts in its place is told once, and
//! that it was put there; its temporary name is never told.

use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forkd_protocol::{ChangeDetail, Reply, code};
use rustix::event::{PollFd, PollFlags};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};

use crate::active::{Active, Refusal};
use crate::exec::wait_until;
use crate::files::{Temporary, absolute, cancelled, refuse};
use crate::tree;

/// Most directories of one watched tree; each takes about a kilobyte of the kernel's memory.
const WATCHES_MAX: usize = 8192;

/// How long the second half of a renaming is waited for.
const PAIR_PATIENCE: Duration = Duration::from_millis(10);

const BUFFER_BYTES: usize = 16 * 1024;

/// As many as empty the kernel's longest queue of long names.
const READS_MAX: usize = 256;

/// The word for a change, and what more is said.
type What = (&'static str, ChangeDetail);

const MADE: What = ("created", ChangeDetail::Made);
const FOUND: What = ("created", ChangeDetail::Found);
const PUT: What = ("created", ChangeDetail::Put);
const REPLACED: What = ("created", ChangeDetail::Replaced);
const CONTENT: What = ("modified", ChangeDetail::Content);
const ATTRIBUTES: What = ("modified", ChangeDetail::Attributes);
const REMOVED: What = ("removed", ChangeDetail::None);
const RENAMED: What = ("renamed", ChangeDetail::None);
const LOST: What = ("lost", ChangeDetail::None);

/// File systems of the network, and such as may be: as `statfs(2)` and the kernel number them.
const NETWORK_FILE_SYSTEMS: [u32; 9] = [
    0x6969,      // NFS
    0x517B,      // SMB
    0xFE53_4D42, // SMB 2
    0xFF53_4D42, // CIFS
    0x6573_5546, // FUSE
    0x0102_1997, // 9P
    0x00C3_6400, // Ceph
    0x5346_414F, // AFS
    0x7375_7245, // Coda
];

/// Where changes go.
pub(crate) trait Sink {
    /// Takes one. False when it takes no more.
    fn take(&mut self, change: Reply) -> bool;
}

/// Whoever has asked for them, as far as they have room.
struct Asker<'a>(&'a Active);

impl Sink for Asker<'_> {
    fn take(&mut self, change: Reply) -> bool {
        self.0.send_when_allowed(&change)
    }
}

/// Which changes are told, and how.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Extent {
    /// What is below the directory's directories too.
    pub(crate) recursive: bool,
    /// With what there is at the path.
    pub(crate) entries: bool,
    /// Not on a file system of the network.
    pub(crate) local_only: bool,
}

/// Tells of changes until the request is ended or the path is gone.
pub(crate) fn watch(active: &Active, path: &str, extent: Extent) {
    let last = match follow(active, path, extent) {
        Ok(()) => Reply::Done {},
        Err(refusal) => refusal.into_reply(),
    };
    active.send(&last, || {});
}

fn follow(active: &Active, path: &str, extent: Extent) -> Result<(), Refusal> {
    let mut watcher = Watcher::begin(path, extent, Asker(active))?;
    active.send(&Reply::Watching {}, || {});
    let inotify = watcher.kernel_queue();
    loop {
        let pair_until = watcher.pair_until();
        let mut fds = [
            PollFd::new(&inotify, PollFlags::IN),
            PollFd::from_borrowed_fd(active.wake_fd(), PollFlags::IN),
        ];
        wait_until(&mut fds, pair_until);
        active.clear_wake();
        if watcher.advance()? == Root::Gone {
            return Ok(());
        }
        if active.is_cancelled() {
            return Err(cancelled(Path::new(path)));
        }
    }
}

/// An event of the kernel.
#[derive(PartialEq, Eq)]
struct Event {
    watch: i32,
    flags: ReadFlags,
    cookie: u32,
    name: Option<String>,
}

/// The first half of a renaming.
struct Moved {
    /// Until when the second half is waited for.
    until: Instant,
    cookie: u32,
    path: PathBuf,
    is_directory: bool,
}

/// A file that is on its way to its place under a temporary name.
struct Putting {
    cookie: u32,
    what: What,
}

/// Whether what is found in a directory is told.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Told {
    Yes,
    No,
}

/// Whether the watched path itself is still there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Root {
    Stands,
    Gone,
}

/// A path that is watched.
pub(crate) struct Watcher<S> {
    sink: S,
    inotify: Arc<OwnedFd>,
    extent: Extent,
    root: i32,
    paths: HashMap<i32, PathBuf>,
    moved: Option<Moved>,
    putting: Option<Putting>,
}

impl<S: Sink> Watcher<S> {
    /// Changes are told from now on.
    pub(crate) fn begin(path: &str, extent: Extent, sink: S) -> Result<Self, Refusal> {
        let path = absolute(path)?;
        let fail = |error: io::Error| refuse(path, &error);
        if extent.local_only {
            refuse_network(path)?;
        }
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK);
        let inotify = Arc::new(inotify.map_err(|errno| fail(errno.into()))?);
        let ends = WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF;
        let (paths, moved, putting) = (HashMap::new(), None, None);
        let mut watcher = Self { sink, inotify, extent, root: -1, paths, moved, putting };
        watcher.root = watcher.add(path, ends).map_err(fail)?;
        if extent.recursive {
            watcher.add_below(path, Told::No)?;
        }
        Ok(watcher)
    }

    /// Readable when the kernel has events.
    pub(crate) fn kernel_queue(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.inotify)
    }

    /// Where changes go.
    pub(crate) fn sink(&mut self) -> &mut S {
        &mut self.sink
    }

    /// When [`Watcher::advance`] must be called although the kernel has no event.
    pub(crate) fn pair_until(&self) -> Option<Instant> {
        self.moved.as_ref().map(|moved| moved.until)
    }

    /// Tells of what the kernel has, without waiting.
    pub(crate) fn advance(&mut self) -> Result<Root, Refusal> {
        // Bounded: something may change all the time.
        for _ in 0..READS_MAX {
            let events = self.read().map_err(|error| refuse(Path::new("inotify"), &error))?;
            if events.is_empty() {
                break;
            }
            for event in events {
                if self.take(event)? == Root::Gone {
                    return Ok(Root::Gone);
                }
            }
        }
        if self.pair_until().is_some_and(|until| until <= Instant::now()) {
            self.give_up_pair()?;
        }
        Ok(Root::Stands)
    }

    fn add(&mut self, path: &Path, more: WatchFlags) -> io::Result<i32> {
        let flags = WatchFlags::CREATE
            | WatchFlags::MODIFY
            | WatchFlags::ATTRIB
            | WatchFlags::DELETE
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO;
        let watch = inotify::add_watch(&*self.inotify, path, flags | more)?;
        self.paths.insert(watch, path.to_owned());
        Ok(watch)
    }

    /// Watches the directories below `path`.
    fn add_below(&mut self, path: &Path, told: Told) -> Result<(), Refusal> {
        let mut folders = vec![path.to_owned()];
        while let Some(folder) = folders.pop() {
            // What vanishes meanwhile needs no watching; neither does a file.
            let Ok(entries) = std::fs::read_dir(&folder) else { continue };
            for entry in entries.flatten() {
                let name = entry.file_name();
                if told == Told::Yes && Temporary::of(&name.to_string_lossy()).is_none() {
                    self.tell(FOUND, &entry.path(), None)?;
                }
                if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    continue;
                }
                if self.paths.len() >= WATCHES_MAX {
                    let message = format!("there are more than {WATCHES_MAX} directories");
                    return Err(Refusal::new(code::FILE_FAILED, message));
                }
                match self.add(&entry.path(), WatchFlags::ONLYDIR | WatchFlags::DONT_FOLLOW) {
                    Ok(_) => folders.push(entry.path()),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => return Err(refuse(&entry.path(), &error)),
                }
            }
        }
        Ok(())
    }

    /// What there is without waiting. A change that repeats the one before is left out.
    fn read(&self) -> io::Result<Vec<Event>> {
        let mut buffer = [const { MaybeUninit::uninit() }; BUFFER_BYTES];
        let mut reader = Reader::new(&*self.inotify, &mut buffer);
        let mut events = Vec::new();
        loop {
            match reader.next() {
                Ok(event) => {
                    let event = Event {
                        watch: event.wd(),
                        flags: event.events(),
                        cookie: event.cookie(),
                        name: event.file_name().map(|name| name.to_string_lossy().into_owned()),
                    };
                    if events.last() != Some(&event) {
                        events.push(event);
                    }
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return Ok(events),
                Err(errno) => return Err(errno.into()),
            }
            if reader.is_buffer_empty() && !events.is_empty() {
                return Ok(events);
            }
        }
    }

    /// Tells of an event.
    fn take(&mut self, event: Event) -> Result<Root, Refusal> {
        if event.flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            self.give_up_pair()?;
            self.tell(LOST, Path::new("/"), None)?;
            return Ok(Root::Stands);
        }
        let Some(folder) = self.paths.get(&event.watch).cloned() else { return Ok(Root::Stands) };
        let is_root = event.watch == self.root;
        if event.flags.intersects(ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF) && is_root {
            self.tell(REMOVED, &folder, None)?;
            return Ok(Root::Gone);
        }
        if event.flags.contains(ReadFlags::IGNORED) {
            self.paths.remove(&event.watch);
            return Ok(if is_root { Root::Gone } else { Root::Stands });
        }
        let name = event.name.as_deref().unwrap_or("");
        let path = if name.is_empty() { folder } else { folder.join(name) };
        let is_directory = event.flags.contains(ReadFlags::ISDIR);
        if event.flags.contains(ReadFlags::MOVED_TO) {
            self.moved_to(event.cookie, &path, is_directory)?;
            return Ok(Root::Stands);
        }
        self.give_up_pair()?;
        if let Some(temporary) = Temporary::of(name) {
            if event.flags.contains(ReadFlags::MOVED_FROM) {
                let what = if temporary == Temporary::Replaces { REPLACED } else { PUT };
                self.putting = Some(Putting { cookie: event.cookie, what });
            }
            return Ok(Root::Stands);
        }
        if event.flags.contains(ReadFlags::MOVED_FROM) {
            let until = Instant::now() + PAIR_PATIENCE;
            self.moved = Some(Moved { until, cookie: event.cookie, path, is_directory });
        } else if event.flags.contains(ReadFlags::CREATE) {
            self.created(&path, is_directory)?;
        } else if event.flags.contains(ReadFlags::DELETE) {
            self.tell(REMOVED, &path, None)?;
        } else {
            if event.flags.contains(ReadFlags::ATTRIB) {
                self.tell(ATTRIBUTES, &path, None)?;
            }
            if event.flags.contains(ReadFlags::MODIFY) {
                self.tell(CONTENT, &path, None)?;
            }
        }
        Ok(Root::Stands)
    }

    fn created(&mut self, path: &Path, is_directory: bool) -> Result<(), Refusal> {
        self.tell(MADE, path, None)?;
        if is_directory && self.extent.recursive {
            // One that is gone again needs no watching.
            if self.add(path, WatchFlags::ONLYDIR | WatchFlags::DONT_FOLLOW).is_ok() {
                self.add_below(path, Told::Yes)?;
            }
        }
        Ok(())
    }

    fn moved_to(&mut self, cookie: u32, path: &Path, is_directory: bool) -> Result<(), Refusal> {
        if let Some(putting) = self.putting.take_if(|putting| putting.cookie == cookie) {
            return self.tell(putting.what, path, None);
        }
        match self.moved.take() {
            Some(from) if from.cookie == cookie => {
                for known in self.paths.values_mut() {
                    if let Ok(rest) = known.strip_prefix(&from.path) {
                        // Joining nothing would add a slash.
                        let whole = rest.as_os_str().is_empty();
                        *known = if whole { path.to_owned() } else { path.join(rest) };
                    }
                }
                self.tell(RENAMED, path, Some(&from.path))
            }
            other => {
                self.moved = other;
                self.give_up_pair()?;
                self.created(path, is_directory)
            }
        }
    }

    /// What was moved went out of sight.
    fn give_up_pair(&mut self) -> Result<(), Refusal> {
        let Some(Moved { path, is_directory, .. }) = self.moved.take() else { return Ok(()) };
        if is_directory {
            let below =
                |(watch, known): (&i32, &PathBuf)| known.starts_with(&path).then_some(*watch);
            let gone: Vec<i32> = self.paths.iter().filter_map(below).collect();
            for watch in gone {
                // It may have ended by itself.
                inotify::remove_watch(&*self.inotify, watch).ok();
                self.paths.remove(&watch);
            }
        }
        self.tell(REMOVED, &path, None)
    }

    fn tell(&mut self, what: What, path: &Path, from: Option<&Path>) -> Result<(), Refusal> {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let is_there = self.extent.entries && !matches!(what, REMOVED | LOST);
        let facts = is_there.then(|| std::fs::symlink_metadata(path).ok()).flatten();
        let change = Reply::Change {
            kind: what.0.to_owned(),
            path: text(path),
            from: from.map(text),
            entry: facts.map(|facts| tree::changed_entry(&facts)),
            detail: what.1,
        };
        if self.sink.take(change) { Ok(()) } else { Err(cancelled(path)) }
    }
}

/// Stands for changes that were missed.
pub(crate) fn lost() -> Reply {
    let (kind, path, detail) = (LOST.0.to_owned(), "/".to_owned(), LOST.1);
    Reply::Change { kind, path, from: None, entry: None, detail }
}

/// Others change what is on a file system of the network, and the kernel does not hear of it.
fn refuse_network(path: &Path) -> Result<(), Refusal> {
    let facts = rustix::fs::statfs(path).map_err(|errno| refuse(path, &errno.into()))?;
    if is_network(u32::try_from(facts.f_type).unwrap_or(0)) {
        let problem = "is on a file system of the network, whose changes are not all told";
        return Err(Refusal::new(code::BAD_REQUEST, format!("{}: {problem}", path.display())));
    }
    Ok(())
}

fn is_network(file_system: u32) -> bool {
    NETWORK_FILE_SYSTEMS.contains(&file_system)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_and_memory_are_local_and_nfs_and_fuse_are_not() {
        for path in ["/dev/shm", "/proc", "/"] {
            refuse_network(Path::new(path)).unwrap();
        }
        assert!(is_network(0x6969) && is_network(0x6573_5546));
    }
}
