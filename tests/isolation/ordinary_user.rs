//! A daemon that an ordinary user runs, whose VMMs have the library that tries what a hostile VMM
//! would try. The user may have been given ids for them.

use std::fs::{self, Permissions};
use std::ops::RangeInclusive;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use forkd_testkit::{SOON, template_file};
use serde_json::Value;
use tempfile::TempDir;

use crate::aims::{Others, Page};

/// Nobody's.
const USER: u32 = 64_322;
/// Its name, where it has ids.
const NAME: &str = "forkd-test";
/// Ids that nobody is given.
pub(crate) const SUBORDINATE: RangeInclusive<u32> = 1_600_000_000..=1_600_065_535;

/// Runs the rest with these files in the place of the host's, for itself alone, and with a
/// userfaultfd for everybody, if the host has one: the directory with the files, and the program
/// with its arguments.
const WITH_IDS: &str = r#"
for file in passwd subuid subgid; do mount --bind "$0/$file" "/etc/$file" || exit 1; done
if [ -e /dev/userfaultfd ]; then
    mount -t tmpfs none "$0/dev" && cp -a /dev/userfaultfd "$0/dev" || exit 1
    chmod 666 "$0/dev/userfaultfd" && mount --bind "$0/dev/userfaultfd" /dev/userfaultfd || exit 1
fi
exec "$@"
"#;

/// What the daemon's user has been given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Given {
    /// Nothing. The host does not even know its name.
    Nothing,
    /// [`SUBORDINATE`] users, and groups.
    Ids,
}

pub(crate) struct OrdinaryDaemon {
    program: PathBuf,
    given: Given,
    isolation: String,
    home: TempDir,
    hot: TempDir,
    process: Child,
}

impl OrdinaryDaemon {
    /// One that confines its VMMs as this policy says.
    pub(crate) fn start(isolation: &str, given: Given) -> Self {
        let program: PathBuf =
            std::env::var_os("FORKD_BIN").expect("run the tests with `make test`").into();
        let home = TempDir::with_prefix("fo-").unwrap();
        let hot = TempDir::with_prefix_in("fo-", "/dev/shm").unwrap();
        let of_user = [home.path().join("run"), home.path().join("state"), hot.path().to_owned()];
        fs::set_permissions(&home, Permissions::from_mode(0o755)).unwrap();
        for directory in &of_user {
            fs::create_dir_all(directory).unwrap();
            fs::set_permissions(directory, Permissions::from_mode(0o700)).unwrap();
            std::os::unix::fs::chown(directory, Some(USER), Some(USER)).unwrap();
        }
        write_ids(home.path());
        let process = spawn(&program, isolation, given, home.path(), hot.path());
        let isolation = isolation.to_owned();
        let mut daemon = Self { program, given, isolation, home, hot, process };
        daemon.wait_until_it_listens();
        daemon
    }

    /// Kills the daemon, and starts another one in its place.
    pub(crate) fn replace_after_kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        fs::remove_file(self.socket()).unwrap();
        let (home, hot) = (self.home.path(), self.hot.path());
        self.process = spawn(&self.program, &self.isolation, self.given, home, hot);
        self.wait_until_it_listens();
    }

    fn wait_until_it_listens(&mut self) {
        let begun = Instant::now();
        while !self.socket().exists() {
            let said = || fs::read_to_string(self.home.path().join("log")).unwrap();
            assert_eq!(self.process.try_wait().unwrap(), None, "{}", said());
            assert!(begun.elapsed() < SOON, "the daemon does not listen: {}", said());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.run().join("forkd.sock")
    }

    pub(crate) fn run(&self) -> PathBuf {
        self.home.path().join("run")
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.home.path().join("state")
    }

    pub(crate) fn hot(&self) -> &Path {
        self.hot.path()
    }

    /// A directory that everybody may enter, on the file system of the state.
    pub(crate) fn open_directory(&self) -> &Path {
        self.home.path()
    }

    /// Standard output of a command that must succeed.
    pub(crate) fn ok(&self, args: &[&str]) -> String {
        let mut command = Command::new(&self.program);
        surroundings(&mut command, self.home.path(), self.hot.path());
        let output = command.args(args).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "forkd {args:?}: {errors}");
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }

    /// Makes the template `tiny`.
    pub(crate) fn template(&self) {
        self.template_of("tiny", 128);
    }

    /// Makes a template of an image, which has its name.
    pub(crate) fn template_of(&self, image: &str, mebibytes: u64) {
        match template_file(image, mebibytes) {
            Some(file) => {
                let file = file.to_string_lossy();
                self.ok(&["snapshot", "import", &file, "--tag", image, "--trust-once"]);
            }
            None => {
                let mebibytes = mebibytes.to_string();
                let size = ["--mem-size-mib", mebibytes.as_str()];
                self.ok(&[&["template", "build", image, "--tag", image][..], &size].concat());
            }
        }
    }

    /// Starts a sandbox of the template `tiny`; its id and its VMM's process.
    pub(crate) fn one(&self) -> (String, u32) {
        let id = self.ok(&["fork", "tiny"]);
        let pid = self.vmm(&id);
        (id, pid)
    }

    /// The process of a sandbox's VMM.
    pub(crate) fn vmm(&self, id: &str) -> u32 {
        let shown: Value = serde_json::from_str(&self.ok(&["--json", "info", id])).unwrap();
        let pid = shown["pid"].as_u64().unwrap_or_else(|| panic!("{shown}"));
        u32::try_from(pid).unwrap()
    }

    /// What a VMM could reach for that is the daemon's, or that of another sandbox.
    pub(crate) fn others<'a>(
        &'a self,
        directories: &'a [PathBuf; 2],
        (sibling, pid): &(String, u32),
    ) -> Others<'a> {
        let [state, run] = directories;
        Others {
            state,
            hot: self.hot(),
            run,
            socket: self.socket(),
            daemon: writable_page(self.pid()),
            sibling: vec![writable_page(*pid)],
            sibling_run: run.join(sibling),
        }
    }
}

/// Memory that a process can read and write.
fn writable_page(pid: u32) -> Page {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    // Arguments and environment, which it has read already.
    let line = maps.lines().find(|line| line.ends_with("[stack]")).unwrap();
    let (_, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
    Page { pid, address: u64::from_str_radix(end, 16).unwrap() - 64 }
}

/// Writes what a host knows of the user to `directory`, and of its ids.
fn write_ids(directory: &Path) {
    let range = format!("{NAME}:{}:{}\n", SUBORDINATE.start(), SUBORDINATE.clone().count());
    let users = fs::read_to_string("/etc/passwd").unwrap();
    let users = format!("{users}{NAME}:x:{USER}:{USER}::/nonexistent:/bin/sh\n");
    fs::create_dir(directory.join("dev")).unwrap();
    for (file, text) in [("passwd", &users), ("subuid", &range), ("subgid", &range)] {
        fs::write(directory.join(file), text).unwrap();
    }
}

fn spawn(program: &Path, isolation: &str, given: Given, home: &Path, hot: &Path) -> Child {
    let user = USER.to_string();
    let become_user = ["setpriv", "--reuid", &user, "--regid", &user, "--clear-groups"];
    let mut words: Vec<&str> = become_user.into();
    if given == Given::Ids {
        // Programs of the host with rights of their own map them.
        words.push("--inh-caps=-all");
    } else {
        words.extend(["--inh-caps=-all", "--bounding-set=-all"]);
    }
    let mut command = match given {
        Given::Nothing => Command::new(words.remove(0)),
        Given::Ids => {
            let mut command = Command::new("unshare");
            command.args(["--mount", "--propagation", "private", "sh", "-c", WITH_IDS]).arg(home);
            command
        }
    };
    command.args(words).arg("--").arg(program).args(["serve", "--isolation", isolation]);
    let log = fs::File::options().create(true).append(true).open(home.join("log")).unwrap();
    surroundings(&mut command, home, hot);
    command.stdin(Stdio::null()).stderr(log).spawn().unwrap()
}

/// What the daemon and the command line are told.
fn surroundings(command: &mut Command, home: &Path, hot: &Path) {
    let shim = std::env::var_os("FORKD_PROBE_SHIM").expect("run the tests with `make test`");
    command
        .env("FORKD_HOME", home)
        .env("FORKD_HOT_DIR", hot)
        .env("FORKD_SHIM", shim)
        .env("FORKD_ACCEL", std::env::var("FORKD_ACCEL").unwrap_or("tcg".to_owned()));
}

impl Drop for OrdinaryDaemon {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.ok(&["stop", "--stop-sandboxes"]);
        } else {
            let mut command = Command::new(&self.program);
            surroundings(&mut command, self.home.path(), self.hot.path());
            command.args(["stop", "--stop-sandboxes"]).status().ok();
        }
        // It may have ended.
        self.process.kill().ok();
        self.process.wait().ok();
    }
}
