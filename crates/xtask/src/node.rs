//! The SDK for TypeScript: its tools, its build, its tests.
//!
//! Guarantees: what is installed is what `package-lock.json` names; nothing is installed again
//! until that file, the SDK's description or Node itself changes. What is tested is built anew, so
//! nothing is tested that is no longer there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use sha2::{Digest as _, Sha256};

use crate::command::{output, run_logged, run_visible};
use crate::progress::Step;
use crate::workspace::Workspace;

/// The SDK, from the root.
const SDK: &str = "sdk/typescript";

/// The oldest Node that the SDK runs on.
const MAJOR_MINIMUM: u32 = 18;

/// What test files end with.
const TEST_SUFFIX: &str = ".test.ts";

/// Why this machine cannot run the SDK.
pub(crate) fn obstacle() -> Option<String> {
    let version = match output(Command::new("node").arg("--version")) {
        Ok(version) => version,
        Err(_) => return Some("node does not run; install Debian's nodejs and npm".to_owned()),
    };
    if major(&version).is_none_or(|major| major < MAJOR_MINIMUM) {
        return Some(format!("needs Node {MAJOR_MINIMUM}, this is {}", version.trim()));
    }
    let npm = output(Command::new("npm").arg("--version"));
    npm.is_err().then(|| "npm does not run; install Debian's npm".to_owned())
}

/// The first number of `v20.1.2`.
fn major(version: &str) -> Option<u32> {
    version.trim().strip_prefix('v')?.split('.').next()?.parse().ok()
}

/// The SDK, built, with its tools.
#[derive(Debug)]
pub(crate) struct Node {
    sdk: PathBuf,
}

impl Node {
    /// Installs what is missing, and builds the SDK and its tests.
    pub(crate) fn prepare(workspace: &Workspace) -> anyhow::Result<Self> {
        if let Some(reason) = obstacle() {
            bail!("{reason}");
        }
        let node = Self { sdk: workspace.root.join(SDK) };
        node.install(workspace)?;
        let built = node.sdk.join("dist");
        if built.exists() {
            fs::remove_dir_all(&built).with_context(|| format!("remove {}", built.display()))?;
        }
        let mut compiler = node.command(&node.sdk.join("node_modules/.bin/tsc"));
        run_visible(&mut compiler).context("compile the TypeScript SDK")?;
        Ok(node)
    }

    fn install(&self, workspace: &Workspace) -> anyhow::Result<()> {
        let wanted = self.wanted()?;
        // Where the tools are: without them it is gone, too.
        let stamp = self.sdk.join("node_modules/.installed");
        if fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
            return Ok(());
        }
        let step = Step::start("install the tools of the TypeScript SDK");
        let mut npm = self.command(Path::new("npm"));
        npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"]);
        run_logged(&step, npm, &workspace.log("npm-ci"))?;
        fs::write(&stamp, wanted).with_context(|| format!("write {}", stamp.display()))?;
        step.done("installed");
        Ok(())
    }

    /// What decides the tools, in one word.
    fn wanted(&self) -> anyhow::Result<String> {
        let mut hash = Sha256::new();
        hash.update(output(Command::new("node").arg("--version"))?);
        for name in ["package.json", "package-lock.json"] {
            let path = self.sdk.join(name);
            hash.update(fs::read(&path).with_context(|| format!("read {}", path.display()))?);
        }
        Ok(hex::encode(hash.finalize()))
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.sdk);
        command
    }

    /// The tests that need no daemon.
    pub(crate) fn pure_tests(&self) -> anyhow::Result<Command> {
        let mut command = self.command(Path::new("node"));
        command.args(self.arguments("pure")?);
        Ok(command)
    }

    /// The tests against the daemon of the environment; without their program, `node`.
    pub(crate) fn daemon_tests(&self) -> anyhow::Result<Vec<String>> {
        self.arguments("daemon")
    }

    /// The arguments to `node` for all tests in a folder, told as Rust's harness tells them.
    fn arguments(&self, folder: &str) -> anyhow::Result<Vec<String>> {
        let tests = self.sdk.join("tests").join(folder);
        let entries = fs::read_dir(&tests).with_context(|| format!("read {}", tests.display()))?;
        let mut names = Vec::new();
        for entry in entries {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if let Some(name) = name.strip_suffix(TEST_SUFFIX) {
                names.push(format!("dist/tests/{folder}/{name}.test.js"));
            }
        }
        names.sort_unstable();
        let mut arguments = vec!["--test".to_owned()];
        arguments.push("--test-reporter=./tests/reporter.mjs".to_owned());
        arguments.extend(names);
        Ok(arguments)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_node_begin_with_their_major_number() {
        assert_eq!(major("v20.20.2\n"), Some(20));
        assert_eq!(major("v9.1"), Some(9));
        assert_eq!(major("20.1.0"), None);
        assert_eq!(major(""), None);
    }

    #[test]
    fn all_test_files_of_a_folder_are_run_and_others_are_not() {
        let sdk = tempfile::tempdir().unwrap();
        let folder = sdk.path().join("tests/pure");
        fs::create_dir_all(&folder).unwrap();
        for name in ["b.test.ts", "a.test.ts", "player.ts"] {
            fs::write(folder.join(name), "").unwrap();
        }
        let arguments = Node { sdk: sdk.path().to_owned() }.arguments("pure").unwrap();
        assert_eq!(arguments[2..], ["dist/tests/pure/a.test.js", "dist/tests/pure/b.test.js"]);
    }
}
