//! Files and directories of a sandbox, besides reading and writing.

use forkd_api::{FileChange, FileEntry};
use reqwest::{Method, RequestBuilder};

use crate::client::segment;
use crate::process::next_event;
use crate::sse::SseStream;
use crate::{Client, ClientError};

/// How far a request about a directory goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// The directory itself; to be removed it must be empty.
    Itself,
    /// All that is below it too.
    Recursive,
}

impl Client {
    /// `DELETE /v1/sandboxes/:id/files`: removes a file, a symbolic link or a directory.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn remove_file(&self, id: &str, path: &str, depth: Depth) -> Result<(), ClientError> {
        self.send(deep(self.file_request(Method::DELETE, id, "", path), depth)).await.map(drop)
    }

    /// `GET /v1/sandboxes/:id/files/list`: what is in a directory, by name.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn list_files(&self, id: &str, path: &str) -> Result<Vec<FileEntry>, ClientError> {
        self.json(self.file_request(Method::GET, id, "/list", path)).await
    }

    /// `GET /v1/sandboxes/:id/files/stat`: what a path is.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn stat_file(&self, id: &str, path: &str) -> Result<FileEntry, ClientError> {
        self.json(self.file_request(Method::GET, id, "/stat", path)).await
    }

    /// `POST /v1/sandboxes/:id/files/mkdir`: creates a directory, and missing ones above it.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn make_directory(&self, id: &str, path: &str) -> Result<(), ClientError> {
        self.send(self.file_request(Method::POST, id, "/mkdir", path)).await.map(drop)
    }

    /// `GET /v1/sandboxes/:id/files/watch`: follows changes to a file, or in a directory. Every
    /// change after this returns is told.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn watch_files(
        &self,
        id: &str,
        path: &str,
        depth: Depth,
    ) -> Result<FileWatch, ClientError> {
        let request = deep(self.file_request(Method::GET, id, "/watch", path), depth);
        Ok(FileWatch { events: self.sse(request).await? })
    }

    fn file_request(&self, method: Method, id: &str, rest: &str, path: &str) -> RequestBuilder {
        let route = format!("/v1/sandboxes/{}/files{rest}", segment(id));
        self.request(method, &route).query(&[("path", path)])
    }
}

fn deep(request: RequestBuilder, depth: Depth) -> RequestBuilder {
    match depth {
        Depth::Itself => request,
        Depth::Recursive => request.query(&[("recursive", "true")]),
    }
}

/// Changes in a sandbox's file system, as they happen.
#[derive(Debug)]
pub struct FileWatch {
    events: SseStream,
}

impl FileWatch {
    /// The next change; `None` when the stream is over. A stream that ends without
    /// [`FileChange::Gone`] was cut off.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn next(&mut self) -> Result<Option<FileChange>, ClientError> {
        while let Some((_, change)) = next_event(&mut self.events).await? {
            if change.is_some() {
                return Ok(change);
            }
        }
        Ok(None)
    }
}
