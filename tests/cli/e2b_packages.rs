//! E2B's packages as published, each set installed once, and the programs that are run with them.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::forkd::Forkd;

/// Versions of the packages that belong together.
pub(crate) struct Versions {
    python: [&'static str; 2],
    npm: [&'static str; 2],
}

/// The newest.
pub(crate) const NEWEST: Versions = Versions {
    python: ["e2b==2.63.0", "e2b-code-interpreter==2.11.5"],
    npm: ["e2b@2.51.0", "@e2b/code-interpreter@2.8.0"],
};

/// Those that many programs are pinned to: they use the routes without `/v2`, and want keys of
/// E2B's form.
pub(crate) const OLDER: Versions = Versions {
    python: ["e2b==2.45.1", "e2b-code-interpreter==2.10.0"],
    npm: ["e2b@2.45.0", "@e2b/code-interpreter@2.7.2"],
};

/// Standard output of a command that must succeed.
pub(crate) fn checked(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{command:?}: {}: {said}{errors}", output.status);
    said.into_owned()
}

/// What gives a program its daemon, as `forkd e2b env` says it.
pub(crate) fn variables(forkd: &Forkd) -> Vec<(String, String)> {
    let said = forkd.ok(&["e2b", "env"]);
    let lines = said.lines().filter_map(|line| line.strip_prefix("export ")?.split_once('='));
    lines.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// The last part of a path.
pub(crate) fn name_of(file: &str) -> &str {
    file.rsplit('/').next().unwrap()
}

/// A file beside the tests.
pub(crate) fn file_of(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("cli").join(name)
}

/// Runs a program as `python FILE` does, and ends without tearing the interpreter down. The newest
/// packages' HTTP library aborts there in about a fifth of all runs, against any server.
const RUN_AND_END: &str = "import os, runpy, sys
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name='__main__')
sys.stdout.flush()
os._exit(0)";

/// A folder that is filled once, for all tests and runs, and named after what is in it.
fn installed(what: &[&str], install: impl FnOnce(&Path)) -> PathBuf {
    let name: String = what.join("-").replace(|it: char| !it.is_alphanumeric(), "-");
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let lock = File::create(place.with_extension("lock")).unwrap();
    lock.lock().unwrap();
    let complete = place.join("complete");
    if !complete.exists() {
        if place.exists() {
            std::fs::remove_dir_all(&place).unwrap();
        }
        std::fs::create_dir(&place).unwrap();
        install(&place);
        File::create(complete).unwrap();
    }
    place
}

/// What runs the programs of a language with its packages.
pub(crate) enum Player {
    /// The interpreter.
    Python(PathBuf),
    /// The folder with the packages and the programs.
    Node(PathBuf),
}

impl Player {
    /// With the packages for Python.
    pub(crate) fn python(versions: &Versions) -> Self {
        let version = checked(Command::new("python3").arg("--version"));
        let place = installed(&[&[version.trim()], &versions.python[..]].concat(), |place| {
            checked(Command::new("python3").args(["-m", "venv"]).arg(place));
            let mut pip = Command::new(place.join("bin/pip"));
            checked(pip.args(["install", "--quiet"]).args(versions.python));
        });
        Self::Python(place.join("bin/python"))
    }

    /// With those for JavaScript, and the programs below `home`. None if they do not run here: they
    /// need a newer Node than Debian 12 has.
    pub(crate) fn node(home: &Path, versions: &Versions, programs: &[PathBuf]) -> Option<Self> {
        let version = checked(Command::new("node").arg("--version"));
        let major = version.trim().trim_start_matches('v').split('.').next()?;
        let major: u32 = major.parse().ok()?;
        let runs_here = major >= 20;
        let must = std::env::var_os("FORKD_TEST_REQUIRE_ALL").is_some();
        assert!(runs_here || !must, "the packages for JavaScript need Node 20: {version}");
        runs_here.then(|| {
            let packages = installed(&[&[version.trim()], &versions.npm[..]].concat(), |place| {
                let install = ["install", "--silent", "--no-audit", "--no-fund", "--prefix"];
                checked(Command::new("npm").args(install).arg(place).args(versions.npm));
            });
            let place = home.join("npm");
            std::fs::create_dir(&place).unwrap();
            let modules = "node_modules";
            std::os::unix::fs::symlink(packages.join(modules), place.join(modules)).unwrap();
            for file in programs {
                std::fs::copy(file, place.join(file.file_name().unwrap())).unwrap();
            }
            Self::Node(place)
        })
    }

    /// The command that runs a program.
    pub(crate) fn command(&self, program: &Path) -> Command {
        match self {
            Self::Python(python) => {
                let mut command = Command::new(python);
                command.args(["-c", RUN_AND_END]).arg(program);
                command
            }
            Self::Node(place) => {
                let mut command = Command::new("node");
                command.current_dir(place).arg(program.file_name().unwrap());
                command
            }
        }
    }
}
