//! The SDK for Python: its virtual environment, its tests, its checks.
//!
//! Guarantees: what is installed is what `requirements.lock` names; nothing is installed again
//! until that file or the SDK's own description changes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use sha2::{Digest as _, Sha256};

use crate::command::{output, run_logged, run_visible};
use crate::progress::Step;
use crate::workspace::Workspace;

/// The SDK, from the root.
const SDK: &str = "sdk/python";

/// Checks of the SDK, each with its arguments to Python.
const CHECKS: [(&str, &[&str]); 3] = [
    ("ruff check", &["-m", "ruff", "check", "--quiet", "--config", "pyproject.toml"]),
    ("ruff format --check", &["-m", "ruff", "format", "--check", "--config", "pyproject.toml"]),
    ("mypy --strict", &["-m", "mypy", "--no-error-summary"]),
];

/// What ruff looks at, from the SDK's folder.
const FOLDERS: [&str; 12] = [
    ".",
    "../../bench",
    "../../crates/agent/tests/driver",
    "../conformance",
    "../../recipes/code-interpreter",
    "../../recipes/agents-day",
    "../../recipes/e2b-agent",
    "../../recipes/parallel-pytest",
    "../../recipes/postgresql-fixture",
    "../../recipes/shared-state",
    "../../recipes/tree-search",
    "../../tests/cli",
];

/// The environment with the SDK and its tools, made if need be.
#[derive(Debug)]
pub(crate) struct Python {
    sdk: PathBuf,
    interpreter: PathBuf,
}

impl Python {
    /// Installs what is missing.
    pub(crate) fn prepare(workspace: &Workspace) -> anyhow::Result<Self> {
        let (sdk, venv) = (workspace.root.join(SDK), workspace.root.join("build/python"));
        let python = Self { sdk, interpreter: venv.join("bin/python") };
        let (wanted, stamp) = (python.wanted(workspace)?, venv.join("installed"));
        if fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
            return Ok(python);
        }
        let step = Step::start("install the tools of the Python SDK");
        if venv.exists() {
            fs::remove_dir_all(&venv).with_context(|| format!("remove {}", venv.display()))?;
        }
        let mut create = Command::new("python3");
        create.args(["-m", "venv"]).arg(&venv);
        run_logged(&step, create, &workspace.log("python-venv"))?;
        let pip = ["-m", "pip", "install", "--disable-pip-version-check"];
        let mut install = python.command();
        install.args(pip).args(["-r", "requirements.lock"]);
        run_logged(&step, install, &workspace.log("python-install"))?;
        let mut install = python.command();
        install.args(pip).args(["--no-deps", "--no-build-isolation", "--editable", "."]);
        run_logged(&step, install, &workspace.log("python-install-sdk"))?;
        fs::write(&stamp, wanted).with_context(|| format!("write {}", stamp.display()))?;
        step.done("installed");
        Ok(python)
    }

    /// What decides the environment, in one word.
    fn wanted(&self, workspace: &Workspace) -> anyhow::Result<String> {
        let version = output(Command::new("python3").arg("--version"))?;
        let mut hash = Sha256::new();
        hash.update(version);
        // An editable installation names the folder.
        hash.update(workspace.root.as_os_str().as_encoded_bytes());
        for name in ["requirements.lock", "pyproject.toml"] {
            hash.update(read(&self.sdk.join(name))?);
        }
        Ok(hex::encode(hash.finalize()))
    }

    /// The interpreter, in the SDK's folder.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.interpreter);
        command.current_dir(&self.sdk);
        command
    }

    /// pytest; without more arguments it runs the tests that need no daemon.
    pub(crate) fn tests(&self) -> Command {
        let mut command = self.command();
        command.args(["-m", "pytest", "-v", "--tb=short", "--color=no"]);
        command
    }
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("read {}", path.display()))
}

/// Names of the SDK's checks that failed.
pub(crate) fn lint(workspace: &Workspace) -> anyhow::Result<Vec<&'static str>> {
    let python = Python::prepare(workspace)?;
    let failed = |arguments: &[&str]| {
        let mut check = python.command();
        check.args(arguments);
        // mypy's configuration names them itself.
        if arguments.contains(&"ruff") {
            check.args(FOLDERS);
        }
        run_visible(&mut check).is_err()
    };
    Ok(CHECKS.iter().filter(|(_, arguments)| failed(arguments)).map(|(name, _)| *name).collect())
}
