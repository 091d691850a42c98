//! The facade for files and directories of a sandbox, besides reading and writing, and for its
//! console.

use std::fs;

use forkd_store::StoreError;
use forkd_types::SandboxId;

use crate::engine::FILE_DEADLINE;
use crate::guest::{Depth, FileEntry, FileWatch};
use crate::{Engine, EngineError};

impl Engine {
    /// What is in a directory of a sandbox, by name.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn list_files(
        &self,
        id: &SandboxId,
        path: &str,
    ) -> Result<Vec<FileEntry>, EngineError> {
        let sandbox = self.inner.used(id)?;
        sandbox.explain(sandbox.agent()?.list_files(path, FILE_DEADLINE).await).await
    }

    /// What a path in a sandbox is.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn stat_file(&self, id: &SandboxId, path: &str) -> Result<FileEntry, EngineError> {
        let sandbox = self.inner.used(id)?;
        sandbox.explain(sandbox.agent()?.stat_file(path, FILE_DEADLINE).await).await
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
        let sandbox = self.inner.used(id)?;
        sandbox.explain(sandbox.agent()?.remove_file(path, depth, FILE_DEADLINE).await).await
    }

    /// Creates a directory of a sandbox, and missing ones above it.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn make_directory(&self, id: &SandboxId, path: &str) -> Result<(), EngineError> {
        let sandbox = self.inner.used(id)?;
        sandbox.explain(sandbox.agent()?.make_directory(path, FILE_DEADLINE).await).await
    }

    /// Follows changes in a sandbox's file system.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn watch_files(
        &self,
        id: &SandboxId,
        path: &str,
        depth: Depth,
    ) -> Result<FileWatch, EngineError> {
        Ok(self.inner.used(id)?.agent()?.watch_files(path, depth).await?)
    }

    /// What a sandbox's guest wrote to its console since it was forked.
    ///
    /// # Errors
    /// [`EngineError::UnknownSandbox`], or when the log cannot be read.
    pub fn console_log(&self, id: &SandboxId) -> Result<Vec<u8>, EngineError> {
        let handle = self.inner.handle(id)?;
        let path = self.inner.run_directory(handle.id()).join("console.log");
        match fs::read(&path) {
            Ok(bytes) => Ok(bytes),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(source) => Err(StoreError::File { what: "read", path, source }.into()),
        }
    }
}
