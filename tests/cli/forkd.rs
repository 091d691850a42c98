//! The `forkd` program in a test.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use forkd_testkit::{ContractProxy, template_file};
use tempfile::TempDir;

/// The command line with directories of its own; its daemon ends with it.
pub(crate) struct Forkd {
    program: PathBuf,
    home: TempDir,
    hot: TempDir,
    variables: Vec<(&'static str, &'static str)>,
    contract: Option<ContractProxy>,
}

impl Forkd {
    pub(crate) fn new() -> Self {
        Self::with_variables(&[])
    }

    /// One whose daemon runs already, and is held to its contract.
    pub(crate) fn held_to_contract() -> Self {
        let mut forkd = Self::new();
        forkd.ok(&["ls"]);
        forkd.hold_to_contract();
        forkd
    }

    /// From now on the daemon, which runs, is held to its contract: the test fails at its end when
    /// a request or an answer was not as `openapi/v1.json` says.
    pub(crate) fn hold_to_contract(&mut self) {
        self.contract = Some(ContractProxy::in_front_of(&self.socket()));
    }

    /// No longer. `stop` must come later: it ends whoever listens on the socket. Returns the
    /// requests that were seen, by operation.
    pub(crate) fn let_go_of_contract(&mut self) -> BTreeMap<String, u64> {
        let seen = self.contract.take().map(ContractProxy::end).transpose();
        seen.unwrap_or_else(|broken| panic!("{broken}")).unwrap_or_default()
    }

    /// The daemon's socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.home.path().join("run/forkd.sock")
    }

    /// One with these variables in its environment, and in that of its daemon.
    pub(crate) fn with_variables(variables: &[(&'static str, &'static str)]) -> Self {
        let program = std::env::var_os("FORKD_BIN");
        let program = program.expect("FORKD_BIN is not set: run the tests with `make test`");
        let home = TempDir::with_prefix("fh-").unwrap();
        let hot = TempDir::with_prefix_in("fh-", "/dev/shm").unwrap();
        Self { program: program.into(), home, hot, variables: variables.to_vec(), contract: None }
    }

    /// The path of a file with this text that only its owner reads.
    pub(crate) fn private_file(&self, name: &str, text: &str) -> String {
        let path = self.home.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        path.display().to_string()
    }

    /// The directory that holds everything but hot layers.
    pub(crate) fn home(&self) -> &Path {
        self.home.path()
    }

    /// The directory of hot layers.
    pub(crate) fn hot(&self) -> &Path {
        self.hot.path()
    }

    /// The daemon's process id.
    pub(crate) fn daemon_pid(&self) -> u32 {
        let lock = std::fs::read_to_string(self.home.path().join("run/daemon.lock")).unwrap();
        lock.trim().parse().unwrap()
    }

    /// A command that is not run yet.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = self.within(Command::new(&self.program));
        command.args(args);
        command
    }

    /// A program that finds the command line and its directories.
    pub(crate) fn within(&self, mut command: Command) -> Command {
        let path = std::env::var("PATH").unwrap_or_default();
        let directory = self.program.parent().unwrap().display();
        command
            .env("PATH", format!("{directory}:{path}"))
            .envs(self.variables.iter().copied())
            .env("FORKD_HOME", self.home.path())
            .env("FORKD_HOT_DIR", self.hot.path())
            .env("FORKD_ACCEL", std::env::var("FORKD_ACCEL").unwrap_or("tcg".to_owned()));
        command
    }

    /// Runs a command.
    pub(crate) fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Standard output of a command that must succeed.
    pub(crate) fn ok(&self, args: &[&str]) -> String {
        let output = self.run(args);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "forkd {args:?}: {errors}");
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }

    pub(crate) fn json(&self, args: &[&str]) -> serde_json::Value {
        let mut with_json = vec!["--json"];
        with_json.extend(args);
        serde_json::from_str(&self.ok(&with_json)).unwrap()
    }

    /// Gives it the template `tag` of `image`: the test run's where it has made one, else built.
    pub(crate) fn template(&self, image: &str, tag: &str, mebibytes: u64) {
        let arguments = template_arguments(image, tag, mebibytes);
        self.ok(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    }

    /// Standard error and exit code of a command that must fail.
    pub(crate) fn refused(&self, args: &[&str]) -> (String, i32) {
        let output = self.run(args);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success(), "forkd {args:?} must fail");
        (errors, output.status.code().unwrap())
    }
}

/// What gives a daemon the template `tag` of `image`.
pub(crate) fn template_arguments(image: &str, tag: &str, mebibytes: u64) -> Vec<String> {
    let text = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    match template_file(image, mebibytes) {
        Some(file) => {
            let file = file.to_string_lossy();
            text(&["snapshot", "import", &file, "--tag", tag, "--trust-once"])
        }
        None => {
            let memory = mebibytes.to_string();
            text(&["template", "build", image, "--tag", tag, "--mem-size-mib", &memory])
        }
    }
}

impl Drop for Forkd {
    fn drop(&mut self) {
        let verdict = self.contract.take().map(ContractProxy::end).transpose();
        let stopped = self.run(&["stop", "--stop-sandboxes"]);
        let errors = String::from_utf8_lossy(&stopped.stderr).into_owned();
        assert!(stopped.status.success() || std::thread::panicking(), "{errors}");
        let broken = verdict.err().unwrap_or_default();
        assert!(broken.is_empty() || std::thread::panicking(), "{broken}");
    }
}
