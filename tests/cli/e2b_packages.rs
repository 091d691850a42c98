//! E2B's packages as published, in places of their own, and the programs that are run with them.

use std::path::{Path, PathBuf};
use std::process::Command;

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

/// What runs the programs of a language with its packages.
pub(crate) enum Player {
    /// The interpreter.
    Python(PathBuf),
    /// The folder with the packages and the programs.
    Node(PathBuf),
}

impl Player {
    /// Installs the packages for Python below `home`.
    pub(crate) fn python(home: &Path, versions: &Versions) -> Self {
        let place = home.join("venv");
        checked(Command::new("python3").args(["-m", "venv"]).arg(&place));
        let mut pip = Command::new(place.join("bin/pip"));
        checked(pip.args(["install", "--quiet"]).args(versions.python));
        Self::Python(place.join("bin/python"))
    }

    /// Installs those for JavaScript, beside the programs. None if they do not run here: they need
    /// a newer Node than Debian 12 has.
    pub(crate) fn node(home: &Path, versions: &Versions, programs: &[PathBuf]) -> Option<Self> {
        let version = checked(Command::new("node").arg("--version"));
        let major = version.trim().trim_start_matches('v').split('.').next()?;
        let major: u32 = major.parse().ok()?;
        (major >= 20).then(|| {
            let place = home.join("npm");
            std::fs::create_dir(&place).unwrap();
            let install = ["install", "--silent", "--no-audit", "--no-fund", "--prefix"];
            checked(Command::new("npm").args(install).arg(&place).args(versions.npm));
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
