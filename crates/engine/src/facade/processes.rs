//! The facade for background processes of a sandbox.

use std::time::Duration;

use forkd_types::{ProcessId, SandboxId};

use crate::guest::{InputPiece, OutputReader, ProcessRequest, ProcessView, TerminalSize};
use crate::{Engine, EngineError};

impl Engine {
    /// Starts a program that goes on in the background. Dropping the future kills it.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn start_process(
        &self,
        sandbox: &SandboxId,
        request: ProcessRequest,
    ) -> Result<ProcessView, EngineError> {
        let handle = self.used(sandbox)?;
        let agent = handle.agent()?;
        Ok(handle.settled_processes().await.start(&agent, request).await?)
    }

    /// The background processes of a sandbox, oldest first.
    ///
    /// # Errors
    /// [`EngineError::UnknownSandbox`].
    pub async fn processes(&self, sandbox: &SandboxId) -> Result<Vec<ProcessView>, EngineError> {
        Ok(self.visible(sandbox)?.settled_processes().await.list())
    }

    /// One background process.
    ///
    /// # Errors
    /// [`EngineError::UnknownSandbox`], [`EngineError::Process`].
    pub async fn process(
        &self,
        sandbox: &SandboxId,
        id: &ProcessId,
    ) -> Result<ProcessView, EngineError> {
        Ok(self.visible(sandbox)?.settled_processes().await.view(id)?)
    }

    /// Waits for a process to end, at the longest for `within`.
    ///
    /// # Errors
    /// [`EngineError::UnknownSandbox`], [`EngineError::Process`].
    pub async fn wait_process(
        &self,
        sandbox: &SandboxId,
        id: &ProcessId,
        within: Duration,
    ) -> Result<ProcessView, EngineError> {
        Ok(self.used(sandbox)?.settled_processes().await.wait(id, within).await?)
    }

    /// Follows the output of a process from the offset `from` on, or from the oldest kept byte.
    ///
    /// # Errors
    /// [`EngineError::UnknownSandbox`], [`EngineError::Process`].
    pub async fn process_output(
        &self,
        sandbox: &SandboxId,
        id: &ProcessId,
        from: Option<u64>,
    ) -> Result<OutputReader, EngineError> {
        Ok(self.visible(sandbox)?.settled_processes().await.read(id, from)?)
    }

    /// Gives a process input, all of it or nothing.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn give_process_input(
        &self,
        sandbox: &SandboxId,
        id: &ProcessId,
        piece: InputPiece,
    ) -> Result<(), EngineError> {
        Ok(self.used(sandbox)?.settled_processes().await.give_input(id, piece).await?)
    }

    /// Sends a signal to a process's group.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn signal_process(
        &self,
        sandbox: &SandboxId,
        id: &ProcessId,
        signal: i32,
    ) -> Result<(), EngineError> {
        Ok(self.used(sandbox)?.settled_processes().await.signal(id, signal)?)
    }

    /// Changes the size of a process's terminal.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn resize_process(
        &self,
        sandbox: &SandboxId,
        id: &ProcessId,
        size: TerminalSize,
    ) -> Result<(), EngineError> {
        Ok(self.used(sandbox)?.settled_processes().await.resize(id, size)?)
    }

    /// Kills a process if it runs, and forgets it.
    ///
    /// # Errors
    /// [`EngineError::UnknownSandbox`], [`EngineError::Process`].
    pub async fn remove_process(
        &self,
        sandbox: &SandboxId,
        id: &ProcessId,
    ) -> Result<(), EngineError> {
        let handle = self.visible(sandbox)?;
        handle.settled_processes().await.remove(id)?;
        if let Ok(agent) = handle.agent() {
            let id = id.clone();
            // It is gone for all who ask. Where the guest does not answer, forks find it there.
            tokio::spawn(async move { agent.forget_kept(&id).await });
        }
        Ok(())
    }
}
