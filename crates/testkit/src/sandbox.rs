//! A sandbox in a test.

use std::time::Duration;

use forkd_engine::guest::{EvalRequest, ExecRequest, FileWrite};
use forkd_engine::{BranchRequest, EngineError, Snapshot, Wait};
use forkd_types::{BranchMode, SandboxId, SnapshotTag};

use crate::Lab;

/// How long a guest may take; none does when all is well, however busy the host is.
const PATIENCE: Duration = Duration::from_secs(300);

/// A sandbox that the test uses; removed when the lab goes.
#[derive(Clone)]
pub struct Guest<'a> {
    pub(crate) lab: &'a Lab,
    /// Its id.
    pub id: SandboxId,
}

/// What a program left, as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// Standard output without the final newline.
    pub stdout: String,
    /// Exit code.
    pub code: i32,
}

impl<'a> Guest<'a> {
    /// The sandbox `id`.
    #[must_use]
    pub fn new(lab: &'a Lab, id: SandboxId) -> Self {
        lab.made(&id);
        Self { lab, id }
    }

    /// Runs a shell command that must succeed and returns what it printed.
    pub async fn sh(&self, command: &str) -> String {
        let output = self.try_sh(command).await.expect("the command runs");
        assert_eq!(output.code, 0, "`{command}` in {}: {}", self.id, output.stdout);
        output.stdout
    }

    /// Runs a shell command.
    ///
    /// # Errors
    /// What the engine says.
    pub async fn try_sh(&self, command: &str) -> Result<Output, EngineError> {
        let mut request = ExecRequest::new(["/bin/sh", "-c", command]);
        request.timeout = PATIENCE;
        let output = self.lab.engine.exec(&self.id, request).await?;
        let stdout = String::from_utf8_lossy(&output.stdout).trim_end().to_owned();
        let stderr = String::from_utf8_lossy(&output.stderr);
        let stdout = if output.exit_code == 0 { stdout } else { stdout + &stderr };
        Ok(Output { stdout, code: output.exit_code })
    }

    /// Starts a shell command that goes on after this returns.
    pub async fn spawn(&self, command: &str) {
        self.sh(&format!("( {command} ) > /dev/null 2>&1 < /dev/null &")).await;
    }

    /// Evaluates Python that must succeed; the result's `repr`.
    pub async fn eval(&self, code: &str) -> String {
        let request = EvalRequest { code: code.to_owned(), timeout: PATIENCE };
        let output = match self.lab.engine.eval(&self.id, request).await {
            Ok(output) => output,
            Err(error) => panic!("`{code}` in {}: {error}\n{}", self.id, self.state().await),
        };
        assert_eq!(output.error, None, "`{code}` in {}", self.id);
        output.result.unwrap_or_default()
    }

    /// What there is to see of a guest that did not answer: whether its agent lives, its console.
    async fn state(&self) -> String {
        let pulse = self.lab.engine.ping(&self.id).await;
        let console = self.lab.engine.console_log(&self.id).map(|kept| kept.bytes);
        let console = console.unwrap_or_default();
        let last = console.len().saturating_sub(2000);
        format!("ping: {pulse:?}\nconsole: {}", String::from_utf8_lossy(&console[last..]))
    }

    /// Writes a file.
    pub async fn write(&self, path: &str, content: &[u8]) {
        let write = FileWrite::new(path);
        let written = self.lab.engine.write_file(&self.id, write, content.to_vec()).await;
        written.expect("the file is written");
    }

    /// Takes a live branch and waits until it is ready.
    pub async fn branch(&self) -> Snapshot {
        self.try_branch(BranchMode::Live).await.expect("the branch is taken")
    }

    /// Takes a branch and waits until it is ready.
    ///
    /// # Errors
    /// What the engine says.
    pub async fn try_branch(&self, mode: BranchMode) -> Result<Snapshot, EngineError> {
        let request = BranchRequest {
            tag: None,
            mode,
            children: 0,
            network: None,
            join: None,
            private: false,
            wait: Wait::UntilReady,
        };
        self.lab.engine.branch(&self.id, request).await.map(|branch| branch.snapshot)
    }

    /// Takes a live branch with the given tag and waits until it is ready.
    ///
    /// # Errors
    /// What the engine says.
    pub async fn try_branch_as(&self, tag: &SnapshotTag) -> Result<Snapshot, EngineError> {
        let (tag, mode, wait) = (Some(tag.clone()), BranchMode::Live, Wait::UntilReady);
        let request = BranchRequest {
            tag,
            mode,
            children: 0,
            network: None,
            join: None,
            private: false,
            wait,
        };
        self.lab.engine.branch(&self.id, request).await.map(|branch| branch.snapshot)
    }

    /// Takes a live branch and starts children from it.
    pub async fn branch_into(&self, children: u32) -> (SnapshotTag, Vec<Guest<'a>>) {
        let request = BranchRequest {
            tag: None,
            mode: BranchMode::Live,
            children,
            network: None,
            join: None,
            private: false,
            wait: Wait::UntilReady,
        };
        let branch = self.lab.engine.branch(&self.id, request).await.expect("the branch is taken");
        let lab = self.lab;
        let started = branch.children.into_iter().map(|child| {
            let child = child.expect("the child starts");
            Guest::new(lab, child.id)
        });
        (branch.snapshot.tag, started.collect())
    }

    /// Ends the sandbox.
    pub async fn remove(self) {
        self.lab.engine.remove_sandbox(&self.id).await.expect("the sandbox is removed");
    }
}

impl Lab {
    /// A fresh sandbox of the `tiny` template.
    pub async fn tiny(&self) -> Guest<'_> {
        let tag = self.template("tiny", 128).await;
        self.one(&tag).await
    }

    /// A fresh sandbox of the `python` template.
    pub async fn python(&self) -> Guest<'_> {
        let tag = self.template("python", 256).await;
        self.one(&tag).await
    }

    /// One child of a snapshot.
    pub async fn one(&self, tag: &SnapshotTag) -> Guest<'_> {
        let mut children = self.fork(tag, 1).await;
        children.pop().expect("one child")
    }

    /// Children of a snapshot.
    pub async fn fork(&self, tag: &SnapshotTag, count: u32) -> Vec<Guest<'_>> {
        let children = self.engine.fork(tag, count).await.expect("children start");
        children.into_iter().map(|sandbox| Guest::new(self, sandbox.id)).collect()
    }
}
