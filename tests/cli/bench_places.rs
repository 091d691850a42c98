//! Where `forkd bench` measures in a test: directories that must be empty afterwards.

use std::process::{Child, Command, Stdio};

use rustix::process::Pid;
use tempfile::TempDir;

/// Places of one measurement.
pub(crate) struct Bench {
    pub(crate) store: TempDir,
    hot: TempDir,
    temporary: TempDir,
}

impl Bench {
    pub(crate) fn new() -> Self {
        Self {
            store: TempDir::with_prefix("fbs-").unwrap(),
            hot: TempDir::with_prefix_in("fbh-", "/dev/shm").unwrap(),
            temporary: TempDir::with_prefix("fbt-").unwrap(),
        }
    }

    /// Starts `forkd bench branch` on a small guest.
    pub(crate) fn branch(&self, more: &[&str]) -> Child {
        self.start("branch", more)
    }

    /// Starts `forkd bench fork` on a small guest.
    pub(crate) fn fork(&self, more: &[&str]) -> Child {
        self.start("fork", more)
    }

    fn start(&self, what: &str, more: &[&str]) -> Child {
        let program = std::env::var_os("FORKD_BIN");
        let program = program.expect("FORKD_BIN is not set: run the tests with `make test`");
        Command::new(program)
            .args(["bench", what, "--image", "tiny", "--mem-size-mib", "128"])
            .args(["--hot".as_ref(), self.hot.path()])
            .args(more)
            .env("TMPDIR", self.temporary.path())
            // Of another daemon, which must not be touched.
            .env("FORKD_HOME", self.temporary.path().join("other"))
            .env("FORKD_STATE_DIR", self.temporary.path().join("other-state"))
            .env("FORKD_ACCEL", std::env::var("FORKD_ACCEL").unwrap_or("tcg".to_owned()))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// The VMMs that run at this moment.
    pub(crate) fn vmms(&self) -> Vec<Pid> {
        let found = self.processes().into_iter().filter(|(_, line)| line.contains("qemu"));
        found.map(|(pid, _)| pid).collect()
    }

    pub(crate) fn assert_nothing_is_left(&self) {
        for place in [&self.store, &self.hot, &self.temporary] {
            let left: Vec<_> = std::fs::read_dir(place.path()).unwrap().flatten().collect();
            assert!(left.is_empty(), "{left:?}");
        }
        let processes = self.processes();
        assert!(processes.is_empty(), "{processes:?}");
    }

    /// Processes whose command lines name one of the places: daemon and VMMs.
    fn processes(&self) -> Vec<(Pid, String)> {
        let places = [&self.hot, &self.temporary].map(|place| place.path().to_string_lossy());
        let all = std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
            let pid = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?;
            let bytes = std::fs::read(entry.path().join("cmdline")).ok()?;
            Some((pid, String::from_utf8_lossy(&bytes).replace('\0', " ")))
        });
        // The command that measures names them too.
        let is_ours = |line: &str| places.iter().any(|place| line.contains(&**place));
        all.filter(|(_, line)| is_ours(line) && !line.contains("forkd bench ")).collect()
    }
}
