//! The image's own programs that run in every new child.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, mpsc};
use std::time::Duration;

use forkd_protocol::HookReport;
use rustix::fs::{Stat, stat};
use rustix::time::{ClockId, clock_gettime};

use crate::environment;
use crate::identity::Identity;
use crate::process::Processes;
use crate::sync::lock;

/// Where they are.
pub(crate) const FOLDER: &str = "/etc/forkd/on-fork.d";

const TIMEOUT_DEFAULT: Duration = Duration::from_secs(5);

const SIGKILL: i32 = 9;
/// As of `timeout(1)`.
const EXIT_TIMED_OUT: i32 = 124;
/// As of a shell.
const EXIT_NOT_RUN: i32 = 126;

/// Those of one renewal at a time.
static UNDER_WAY: Mutex<()> = Mutex::new(());

/// The folder, and what is known of it: to look at it is much cheaper than to read it.
pub(crate) struct Folder {
    path: PathBuf,
    /// How it was when nothing was in it.
    empty: Mutex<Option<State>>,
}

/// Changes with every change of the folder's entries.
#[derive(Clone, Copy, PartialEq, Eq)]
struct State {
    device: u64,
    inode: u64,
    changed: (i64, i64),
}

impl Folder {
    /// The one at `path`. It is read once, so that the kernel has it in memory.
    pub(crate) fn at(path: &Path) -> Self {
        let folder = Self { path: path.to_owned(), empty: Mutex::default() };
        // Whatever is wrong with it matters when hooks are to be run.
        folder.hooks().ok();
        folder
    }

    /// The programs in it, in the order in which they run.
    pub(crate) fn hooks(&self) -> io::Result<Vec<PathBuf>> {
        let state = match stat(&self.path) {
            Ok(facts) => State::of(&facts),
            Err(rustix::io::Errno::NOENT) => return Ok(Vec::new()),
            Err(errno) => return Err(errno.into()),
        };
        let mut empty = lock(&self.empty);
        if *empty == Some(state) {
            return Ok(Vec::new());
        }
        // A file that comes while this clock stands still would not show in the time of the change.
        let now = clock_gettime(ClockId::RealtimeCoarse);
        let settled = state.changed < (now.tv_sec, now.tv_nsec);
        let entries: Vec<PathBuf> = fs::read_dir(&self.path)?
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<io::Result<_>>()?;
        *empty = (settled && entries.is_empty()).then_some(state);
        let mut hooks = entries;
        hooks.retain(|hook| {
            let facts = fs::metadata(hook);
            facts.is_ok_and(|facts| facts.is_file() && facts.permissions().mode() & 0o111 != 0)
        });
        hooks.sort();
        Ok(hooks)
    }
}

impl State {
    fn of(facts: &Stat) -> Self {
        Self {
            device: facts.st_dev,
            inode: facts.st_ino,
            changed: (facts.st_ctime, i64::try_from(facts.st_ctime_nsec).unwrap_or(i64::MAX)),
        }
    }
}

/// Runs them one after the other.
pub(crate) fn run(
    processes: &Processes,
    identity: &Identity,
    hooks: &[PathBuf],
) -> Vec<HookReport> {
    let _alone = lock(&UNDER_WAY);
    hooks.iter().map(|hook| run_one(processes, identity, hook)).collect()
}

fn run_one(processes: &Processes, identity: &Identity, hook: &Path) -> HookReport {
    let name = hook.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let added = [("FORKD_INSTANCE_ID".to_owned(), identity.instance_id.clone())];
    let mut command = Command::new(hook);
    command
        .env_clear()
        .envs(environment::variables(None, &added))
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let (told, exited) = mpsc::channel();
    let watcher = move |exit| {
        // The receiver is gone only when the hook's time was over.
        told.send(exit).ok();
    };
    let Ok(pid) = processes.spawn(&mut command, watcher) else {
        return HookReport { name, exit_code: EXIT_NOT_RUN };
    };
    let timeout = identity.hook_timeout.unwrap_or(TIMEOUT_DEFAULT);
    let exit_code = match exited.recv_timeout(timeout) {
        Ok(exit) => exit.code,
        Err(_) => {
            processes.signal_group(pid, SIGKILL);
            EXIT_TIMED_OUT
        }
    };
    HookReport { name, exit_code }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hook(path: &Path) {
        fs::write(path, "#!/bin/sh").unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn a_hook_is_found_whenever_it_comes() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("hooks");
        let folder = Folder::at(&path);
        let found = || folder.hooks().unwrap();
        assert_eq!(found(), Vec::<PathBuf>::new(), "without a folder");
        for round in 0..20 {
            fs::create_dir_all(&path).unwrap();
            // In every other round it is known to be empty, because the clock has moved on.
            std::thread::sleep(Duration::from_millis(10 * (round % 2)));
            assert_eq!(found(), Vec::<PathBuf>::new(), "{round}: in an empty folder");
            let file = path.join(round.to_string());
            hook(&file);
            assert_eq!(found(), std::slice::from_ref(&file), "{round}");
            fs::remove_file(&file).unwrap();
        }
    }

    #[test]
    fn hooks_are_executable_files_in_the_order_of_their_names() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("1-note"), "").unwrap();
        fs::create_dir(root.path().join("2-folder")).unwrap();
        let expected = ["3-b", "4-a"].map(|name| root.path().join(name));
        expected.iter().rev().for_each(|path| hook(path));
        assert_eq!(Folder::at(root.path()).hooks().unwrap(), expected);
    }
}
