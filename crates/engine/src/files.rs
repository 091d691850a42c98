//! The facade for files and directories of a sandbox, besides reading and writing.

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
        Ok(self.inner.used(id)?.agent()?.list_files(path, FILE_DEADLINE).await?)
    }

    /// What a path in a sandbox is.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn stat_file(&self, id: &SandboxId, path: &str) -> Result<FileEntry, EngineError> {
        Ok(self.inner.used(id)?.agent()?.stat_file(path, FILE_DEADLINE).await?)
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
        Ok(self.inner.used(id)?.agent()?.remove_file(path, depth, FILE_DEADLINE).await?)
    }

    /// Creates a directory of a sandbox, and missing ones above it.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn make_directory(&self, id: &SandboxId, path: &str) -> Result<(), EngineError> {
        Ok(self.inner.used(id)?.agent()?.make_directory(path, FILE_DEADLINE).await?)
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
}
