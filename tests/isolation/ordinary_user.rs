//! A daemon that an ordinary user runs, whose VMMs have the library that tries what a hostile VMM
//! would try.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use forkd_testkit::{SOON, template_file};
use serde_json::Value;
use tempfile::TempDir;

/// Nobody's.
const USER: u32 = 64_322;

pub(crate) struct OrdinaryDaemon {
    program: PathBuf,
    home: TempDir,
    hot: TempDir,
    process: Child,
}

impl OrdinaryDaemon {
    /// One that confines its VMMs as this policy says.
    pub(crate) fn start(isolation: &str) -> Self {
        let program = std::env::var_os("FORKD_BIN").expect("run the tests with `make test`");
        let home = TempDir::with_prefix("fo-").unwrap();
        let hot = TempDir::with_prefix_in("fo-", "/dev/shm").unwrap();
        let of_user = [home.path().join("run"), home.path().join("state"), hot.path().to_owned()];
        std::fs::set_permissions(&home, Permissions::from_mode(0o755)).unwrap();
        for directory in &of_user {
            std::fs::create_dir_all(directory).unwrap();
            std::fs::set_permissions(directory, Permissions::from_mode(0o700)).unwrap();
            std::os::unix::fs::chown(directory, Some(USER), Some(USER)).unwrap();
        }
        let mut command = Command::new("setpriv");
        command.args(["--reuid", &USER.to_string(), "--regid", &USER.to_string()]);
        command.args(["--clear-groups", "--inh-caps=-all", "--bounding-set=-all", "--"]);
        command.arg(&program).args(["serve", "--isolation", isolation]);
        let log = std::fs::File::create(home.path().join("log")).unwrap();
        surroundings(&mut command, home.path(), hot.path());
        let process = command.stdin(Stdio::null()).stderr(log).spawn().unwrap();
        let mut daemon = Self { program: program.into(), home, hot, process };
        daemon.wait_until_it_listens();
        daemon
    }

    fn wait_until_it_listens(&mut self) {
        let begun = Instant::now();
        while !self.socket().exists() {
            let said = || std::fs::read_to_string(self.home.path().join("log")).unwrap();
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
        match template_file("tiny", 128) {
            Some(file) => {
                let file = file.to_string_lossy();
                self.ok(&["snapshot", "import", &file, "--tag", "tiny", "--trust-once"]);
            }
            None => {
                self.ok(&["template", "build", "tiny", "--tag", "tiny", "--mem-size-mib", "128"]);
            }
        }
    }

    /// Starts a sandbox of that template; its id and its VMM's process.
    pub(crate) fn one(&self) -> (String, u32) {
        let id = self.ok(&["fork", "tiny"]);
        let shown: Value = serde_json::from_str(&self.ok(&["--json", "info", &id])).unwrap();
        let pid = shown["pid"].as_u64().unwrap_or_else(|| panic!("{shown}"));
        (id, u32::try_from(pid).unwrap())
    }
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
