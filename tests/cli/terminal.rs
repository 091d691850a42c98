//! A terminal for a program in a test: a pseudo terminal, and a person who types and reads, and who
//! does not wait for ever.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

/// Longest wait for something that must appear.
const SOON: Duration = Duration::from_secs(120);

/// A program on a terminal of its own.
pub(crate) struct Session {
    person: File,
    terminal: File,
    child: Child,
    seen: Arc<(Mutex<String>, Condvar)>,
}

impl Session {
    /// Starts the program as the leader of a session whose terminal has this size.
    pub(crate) fn start(program: &Command, rows: u16, cols: u16) -> Self {
        let person = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&person).unwrap();
        unlockpt(&person).unwrap();
        let name = ptsname(&person, Vec::new()).unwrap();
        let path = Path::new(std::ffi::OsStr::from_bytes(name.as_bytes()));
        let terminal = File::options().read(true).write(true).open(path).unwrap();
        let person = File::from(person);
        // `setsid` makes it the leader, and the terminal that of the session.
        let mut command = Command::new("setsid");
        command.arg("--ctty").arg(program.get_program()).args(program.get_args());
        for (name, value) in program.get_envs() {
            command.env(name, value.unwrap_or_default());
        }
        let end = || Stdio::from(terminal.try_clone().unwrap());
        resize(&person, rows, cols);
        command.env("TERM", "xterm-256color").env_remove("NO_COLOR");
        let child = command.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
        let seen = Arc::new((Mutex::new(String::new()), Condvar::new()));
        read(person.try_clone().unwrap(), Arc::clone(&seen));
        Self { person, terminal, child, seen }
    }

    pub(crate) fn resize(&self, rows: u16, cols: u16) {
        resize(&self.person, rows, cols);
    }

    pub(crate) fn types(&mut self, keys: &str) {
        self.person.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until this appears after all that was waited for before.
    pub(crate) fn shows(&self, text: &str) {
        let (seen, changed) = &*self.seen;
        let missing = |seen: &mut String| !seen.contains(text);
        let (mut seen, waited) =
            changed.wait_timeout_while(seen.lock().unwrap(), SOON, missing).unwrap();
        assert!(!waited.timed_out(), "{text:?} does not appear in {seen:?}");
        let end = seen.find(text).unwrap() + text.len();
        seen.drain(..end);
    }

    /// What has appeared since what was waited for.
    pub(crate) fn rest(&self) -> String {
        self.seen.0.lock().unwrap().clone()
    }

    /// Whether keys are echoed and come line by line, as they do for a shell.
    pub(crate) fn is_as_usual(&self) -> bool {
        let modes = tcgetattr(&self.terminal).unwrap();
        modes.local_modes.contains(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// The exit code of the program, which must end.
    pub(crate) fn ends(&mut self) -> Option<i32> {
        end_of(&mut self.child)
    }
}

/// The exit code of a command that must end.
pub(crate) fn end_of(child: &mut Child) -> Option<i32> {
    let deadline = Instant::now() + SOON;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        if Instant::now() > deadline {
            child.kill().unwrap();
            panic!("it does not end");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn resize(person: &File, rows: u16, cols: u16) {
    let size = Winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(person, size).unwrap();
}

/// Collects what appears, until nothing has the terminal open any more.
fn read(mut person: File, seen: Arc<(Mutex<String>, Condvar)>) {
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = person.read(&mut buffer) {
            seen.0.lock().unwrap().push_str(&String::from_utf8_lossy(&buffer[..count]));
            seen.1.notify_all();
        }
    });
}
