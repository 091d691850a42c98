//! What a sandbox's guest can be asked for: programs, code, files, its console.

use std::ops::Range;
use std::time::Duration;

use forkd_types::SandboxId;
use forkd_vmm::KeptOutput;

use crate::guest::{
    Cell, CellEvent, CellRequest, Context, Depth, EvalOutput, EvalRequest, ExecOutput, ExecRequest,
    FileContent, FileEntry, FileLook, FileOwner, FileReader, FileWatch, FileWrite, KeptChanges,
    Pulse, Usage, WatchExtent, WithEntries,
};
use crate::sandboxes::InUse;
use crate::{Engine, EngineError};

/// Time that a guest file may take to be collected, and to be read or written between two pieces.
const FILE_DEADLINE: Duration = Duration::from_secs(60);
/// Time that a ping may take.
const PING_DEADLINE: Duration = Duration::from_secs(5);
/// Time that a look at what programs use may take. It waits for a fraction of a second; a host that
/// stands still for longer than that is no failure of the guest's.
const USAGE_DEADLINE: Duration = Duration::from_secs(30);

/// Code that runs in a sandbox, which is in use until this is dropped. Dropping it before its end
/// interrupts the code.
pub struct RunningCell {
    cell: Cell,
    sandbox: InUse,
}

impl RunningCell {
    /// What happens next. Safe to cancel.
    ///
    /// # Errors
    /// See [`EngineError`]; after one, or after [`CellEvent::Ended`], nothing follows.
    pub async fn next(&mut self) -> Result<CellEvent, EngineError> {
        match self.cell.next().await {
            Ok(event) => Ok(event),
            Err(error) => self.sandbox.explain(Err(error)).await,
        }
    }
}

/// A file of a sandbox that is read piece by piece. The sandbox is in use until this is dropped.
pub struct OpenFile {
    reader: FileReader,
    sandbox: InUse,
}

impl OpenFile {
    /// The next piece; `None` at the end.
    ///
    /// # Errors
    /// See [`EngineError`]; after one, nothing follows.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, EngineError> {
        match self.reader.next().await {
            Ok(piece) => Ok(piece),
            Err(error) => self.sandbox.explain(Err(error)).await,
        }
    }
}

impl Engine {
    /// Runs a program in a sandbox.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn exec(
        &self,
        id: &SandboxId,
        request: ExecRequest,
    ) -> Result<ExecOutput, EngineError> {
        let sandbox = self.used(id)?;
        sandbox.explain(sandbox.agent()?.exec(request).await).await
    }

    /// Evaluates Python code in a sandbox's persistent interpreter.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn eval(
        &self,
        id: &SandboxId,
        request: EvalRequest,
    ) -> Result<EvalOutput, EngineError> {
        let sandbox = self.used(id)?;
        sandbox.explain(sandbox.agent()?.eval(request).await).await
    }

    /// Runs code in one of a sandbox's interpreters, which says what happens as it happens.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn run_cell(
        &self,
        id: &SandboxId,
        request: CellRequest,
    ) -> Result<RunningCell, EngineError> {
        let sandbox = self.used(id)?;
        let cell = sandbox.explain(sandbox.agent()?.run_cell(request)).await?;
        Ok(RunningCell { cell, sandbox })
    }

    /// Makes an interpreter in a sandbox besides that which is always there.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn make_context(
        &self,
        id: &SandboxId,
        cwd: Option<String>,
    ) -> Result<Context, EngineError> {
        let sandbox = self.used(id)?;
        sandbox.explain(sandbox.agent()?.make_context(cwd).await).await
    }

    /// A sandbox's interpreters, the oldest first.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn contexts(&self, id: &SandboxId) -> Result<Vec<Context>, EngineError> {
        let sandbox = self.used(id)?;
        sandbox.explain(sandbox.agent()?.contexts().await).await
    }

    /// Ends one of a sandbox's interpreters, with what runs in it; it may begin anew.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn end_context(
        &self,
        id: &SandboxId,
        context: &str,
        restart: bool,
    ) -> Result<(), EngineError> {
        let sandbox = self.used(id)?;
        sandbox.explain(sandbox.agent()?.end_context(context, restart).await).await
    }

    /// Asks a sandbox's guest agent for a sign of life.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn ping(&self, id: &SandboxId) -> Result<Pulse, EngineError> {
        let sandbox = self.used(id)?;
        sandbox.explain(sandbox.agent()?.ping(PING_DEADLINE).await).await
    }

    /// Reads a file of a sandbox.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn read_file(&self, id: &SandboxId, path: &str) -> Result<Vec<u8>, EngineError> {
        let sandbox = self.used(id)?;
        sandbox.explain(sandbox.agent()?.read_file(path, FILE_DEADLINE).await).await
    }

    /// Opens a file of a sandbox of at most `most` bytes, to read it piece by piece.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn open_file(
        &self,
        id: &SandboxId,
        path: &str,
        most: u64,
    ) -> Result<OpenFile, EngineError> {
        let sandbox = self.used(id)?;
        let opened = sandbox.agent()?.open_file(path, most, FILE_DEADLINE).await;
        let reader = sandbox.explain(opened).await?;
        Ok(OpenFile { reader, sandbox })
    }

    /// Opens a part of a sandbox's file, to be read piece by piece. What lies behind the file's end
    /// is not there.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn open_file_part(
        &self,
        id: &SandboxId,
        path: &str,
        part: Range<u64>,
    ) -> Result<OpenFile, EngineError> {
        let sandbox = self.used(id)?;
        let opened = sandbox.agent()?.open_file_part(path, part, FILE_DEADLINE).await;
        let reader = sandbox.explain(opened).await?;
        Ok(OpenFile { reader, sandbox })
    }

    /// Writes a file of a sandbox.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn write_file(
        &self,
        id: &SandboxId,
        write: FileWrite,
        content: impl Into<FileContent>,
    ) -> Result<(), EngineError> {
        let (sandbox, content) = (self.used(id)?, content.into());
        sandbox.explain(sandbox.agent()?.write_file(write, content, FILE_DEADLINE).await).await
    }

    /// What is in a directory of a sandbox, by name.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn list_files(
        &self,
        id: &SandboxId,
        look: impl Into<FileLook<'_>>,
    ) -> Result<Vec<FileEntry>, EngineError> {
        let sandbox = self.used(id)?;
        sandbox.explain(sandbox.agent()?.list_files(look, FILE_DEADLINE).await).await
    }

    /// What a path in a sandbox is.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn stat_file(
        &self,
        id: &SandboxId,
        look: impl Into<FileLook<'_>>,
    ) -> Result<FileEntry, EngineError> {
        let sandbox = self.used(id)?;
        sandbox.explain(sandbox.agent()?.stat_file(look, FILE_DEADLINE).await).await
    }

    /// Removes a file, a symbolic link or a directory of a sandbox.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn remove_file(
        &self,
        id: &SandboxId,
        path: &str,
        depth: Depth,
    ) -> Result<(), EngineError> {
        let sandbox = self.used(id)?;
        sandbox.explain(sandbox.agent()?.remove_file(path, depth, FILE_DEADLINE).await).await
    }

    /// Creates a directory of a sandbox, and missing ones above it, which belong to `owner` or to
    /// the superuser.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn make_directory(
        &self,
        id: &SandboxId,
        path: &str,
        owner: Option<FileOwner>,
    ) -> Result<(), EngineError> {
        let sandbox = self.used(id)?;
        sandbox.explain(sandbox.agent()?.make_directory(path, owner, FILE_DEADLINE).await).await
    }

    /// Follows changes in a sandbox's file system.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn watch_files(
        &self,
        id: &SandboxId,
        path: &str,
        extent: impl Into<WatchExtent>,
        entries: WithEntries,
    ) -> Result<FileWatch, EngineError> {
        Ok(self.used(id)?.agent()?.watch_files(path, extent, entries).await?)
    }

    /// Watches a sandbox's file or directory from now on, under a name that no other of its watches
    /// has. The guest keeps it, so that its children have it too.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn keep_watch(
        &self,
        id: &SandboxId,
        name: &str,
        record: &str,
        path: &str,
        extent: impl Into<WatchExtent>,
    ) -> Result<(), EngineError> {
        let sandbox = self.used(id)?;
        sandbox.explain(sandbox.agent()?.keep_watch(name, record, path, extent).await).await
    }

    /// What a sandbox's kept watch has seen since it was asked last, here or, before a branch, in
    /// its source.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn take_changes(
        &self,
        id: &SandboxId,
        name: &str,
    ) -> Result<KeptChanges, EngineError> {
        let sandbox = self.used(id)?;
        sandbox.explain(sandbox.agent()?.take_changes(name, FILE_DEADLINE).await).await
    }

    /// Ends a sandbox's kept watch.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn end_watch(&self, id: &SandboxId, name: &str) -> Result<(), EngineError> {
        let sandbox = self.used(id)?;
        sandbox.explain(sandbox.agent()?.end_watch(name, FILE_DEADLINE).await).await
    }

    /// What a sandbox's programs use of their machine.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn guest_usage(&self, id: &SandboxId) -> Result<Usage, EngineError> {
        let sandbox = self.used(id)?;
        sandbox.explain(sandbox.agent()?.usage(USAGE_DEADLINE).await).await
    }

    /// What is kept of what a sandbox's guest wrote to its console since it was forked: the end.
    ///
    /// # Errors
    /// [`EngineError::UnknownSandbox`], or when the file with it cannot be read.
    pub fn console_log(&self, id: &SandboxId) -> Result<KeptOutput, EngineError> {
        let handle = self.visible(id)?;
        Ok(forkd_vmm::console_output(&self.all_sandboxes.run_directory(handle.id()))?)
    }
}
