//! Telling of changes in the file system, with inotify.
//!
//! Guarantees: a change after `Watching` is told, or that changes were missed. A directory that
//! comes into a watched tree is watched too, and what was made in it before that is told as
//! created; so a thing may be told twice.

use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forkd_protocol::{Reply, code};
use rustix::event::{PollFd, PollFlags};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};

use crate::active::{Active, Refusal};
use crate::exec::wait_until;
use crate::files::{absolute, cancelled, is_temporary, refuse};

/// Most directories of one watched tree; each takes about a kilobyte of the kernel's memory.
const WATCHES_MAX: usize = 8192;

/// How long the second half of a renaming is waited for.
const PAIR_PATIENCE: Duration = Duration::from_millis(10);

const BUFFER_BYTES: usize = 16 * 1024;

/// Tells of changes until the request is ended or the path is gone.
pub(crate) fn watch(active: &Active, path: &str, recursive: bool) {
    let last = match follow(active, path, recursive) {
        Ok(()) => Reply::Done {},
        Err(refusal) => refusal.into_reply(),
    };
    active.send(&last, || {});
}

fn follow(active: &Active, path: &str, recursive: bool) -> Result<(), Refusal> {
    let path = absolute(path)?;
    let fail = |error: io::Error| refuse(path, &error);
    let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK);
    let inotify = inotify.map_err(|errno| fail(errno.into()))?;
    let ends = WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF;
    let mut watcher =
        Watcher { active, inotify, recursive, root: -1, paths: HashMap::new(), moved: None };
    watcher.root = watcher.add(path, ends).map_err(fail)?;
    if recursive {
        watcher.add_below(path, Told::No)?;
    }
    active.send(&Reply::Watching {}, || {});
    loop {
        let pair_until = watcher.moved.as_ref().map(|_| Instant::now() + PAIR_PATIENCE);
        let mut fds = [
            PollFd::new(&watcher.inotify, PollFlags::IN),
            PollFd::from_borrowed_fd(active.wake_fd(), PollFlags::IN),
        ];
        wait_until(&mut fds, pair_until);
        active.clear_wake();
        let events = watcher.read().map_err(fail)?;
        if events.is_empty() && pair_until.is_some_and(|until| until <= Instant::now()) {
            watcher.give_up_pair()?;
        }
        for event in events {
            if !watcher.take(event)? {
                return Ok(());
            }
        }
        if active.is_cancelled() {
            return Err(cancelled(path));
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
    cookie: u32,
    path: PathBuf,
    is_directory: bool,
}

/// Whether what is found in a directory is told.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Told {
    Yes,
    No,
}

struct Watcher<'a> {
    active: &'a Active,
    inotify: OwnedFd,
    recursive: bool,
    root: i32,
    paths: HashMap<i32, PathBuf>,
    moved: Option<Moved>,
}

impl Watcher<'_> {
    fn add(&mut self, path: &Path, more: WatchFlags) -> io::Result<i32> {
        let flags = WatchFlags::CREATE
            | WatchFlags::MODIFY
            | WatchFlags::ATTRIB
            | WatchFlags::DELETE
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO;
        let watch = inotify::add_watch(&self.inotify, path, flags | more)?;
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
                if told == Told::Yes {
                    self.tell("created", &entry.path(), None)?;
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
        let mut reader = Reader::new(&self.inotify, &mut buffer);
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

    /// Tells of an event. False when the watched path itself is gone.
    fn take(&mut self, event: Event) -> Result<bool, Refusal> {
        if event.flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            self.give_up_pair()?;
            self.tell("lost", Path::new("/"), None)?;
            return Ok(true);
        }
        let Some(folder) = self.paths.get(&event.watch).cloned() else { return Ok(true) };
        let is_root = event.watch == self.root;
        if event.flags.intersects(ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF) && is_root {
            self.tell("removed", &folder, None)?;
            return Ok(false);
        }
        if event.flags.contains(ReadFlags::IGNORED) {
            self.paths.remove(&event.watch);
            return Ok(!is_root);
        }
        let name = event.name.as_deref().unwrap_or("");
        let path = if name.is_empty() { folder } else { folder.join(name) };
        let is_directory = event.flags.contains(ReadFlags::ISDIR);
        if event.flags.contains(ReadFlags::MOVED_TO) {
            self.moved_to(event.cookie, &path, is_directory)?;
            return Ok(true);
        }
        self.give_up_pair()?;
        if is_temporary(name) {
            return Ok(true);
        }
        if event.flags.contains(ReadFlags::MOVED_FROM) {
            self.moved = Some(Moved { cookie: event.cookie, path, is_directory });
        } else if event.flags.contains(ReadFlags::CREATE) {
            self.created(&path, is_directory)?;
        } else if event.flags.contains(ReadFlags::DELETE) {
            self.tell("removed", &path, None)?;
        } else if event.flags.intersects(ReadFlags::MODIFY | ReadFlags::ATTRIB) {
            self.tell("modified", &path, None)?;
        }
        Ok(true)
    }

    fn created(&mut self, path: &Path, is_directory: bool) -> Result<(), Refusal> {
        self.tell("created", path, None)?;
        if is_directory && self.recursive {
            // One that is gone again needs no watching.
            if self.add(path, WatchFlags::ONLYDIR | WatchFlags::DONT_FOLLOW).is_ok() {
                self.add_below(path, Told::Yes)?;
            }
        }
        Ok(())
    }

    fn moved_to(&mut self, cookie: u32, path: &Path, is_directory: bool) -> Result<(), Refusal> {
        match self.moved.take() {
            Some(from) if from.cookie == cookie => {
                for known in self.paths.values_mut() {
                    if let Ok(rest) = known.strip_prefix(&from.path) {
                        // Joining nothing would add a slash.
                        let whole = rest.as_os_str().is_empty();
                        *known = if whole { path.to_owned() } else { path.join(rest) };
                    }
                }
                self.tell("renamed", path, Some(&from.path))
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
                inotify::remove_watch(&self.inotify, watch).ok();
                self.paths.remove(&watch);
            }
        }
        self.tell("removed", &path, None)
    }

    fn tell(&self, kind: &str, path: &Path, from: Option<&Path>) -> Result<(), Refusal> {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let reply = Reply::Change { kind: kind.to_owned(), path: text(path), from: from.map(text) };
        if self.active.send_when_allowed(&reply) { Ok(()) } else { Err(cancelled(path)) }
    }
}
