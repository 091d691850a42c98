//! Files and directories of a sandbox.

use std::io::{self, Read};
use std::thread;

use forkd_api::{FileChange, FileEntry};
use forkd_types::limit;
use futures_util::stream;
use reqwest::{Body, Method, RequestBuilder, Response};
use tokio::sync::mpsc;

use crate::client::segment;
use crate::process::next_event;
use crate::sse::SseStream;
use crate::{Client, ClientError, Target};

/// Content goes to the daemon in pieces of so many bytes.
const PIECE_BYTES: usize = 256 << 10;

/// How far a request about a directory goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// The directory itself; to be removed it must be empty.
    Itself,
    /// All that is below it too.
    Recursive,
}

/// What a file that is written is to be like.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FileAttributes<'a> {
    /// Permission bits; those of an existing file stay when absent.
    pub mode: Option<u32>,
    /// The user that it and new directories belong to, as `USER[:GROUP]`; root when absent, and an
    /// existing file stays whose it was.
    pub user: Option<&'a str>,
}

impl Client {
    /// `GET /v1/sandboxes/:id/files`: the content of a file in the sandbox, of 64 MiB at most.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn read_file(&self, id: &str, path: &str) -> Result<Vec<u8>, ClientError> {
        let response = self.send(self.file_request(Method::GET, id, "", path)).await?;
        let mut content = FileContent::new(response, self.target());
        let mut bytes = Vec::new();
        while let Some(piece) = content.next().await? {
            bytes.extend(piece);
        }
        Ok(bytes)
    }

    /// `GET /v1/sandboxes/:id/files`: the content of a file in the sandbox, piece by piece, of 16
    /// GiB at most.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn open_file(&self, id: &str, path: &str) -> Result<FileContent, ClientError> {
        let request = self.file_request(Method::GET, id, "", path);
        let request = request.query(&[("max_bytes", limit::DOWNLOAD_BYTES_MAX)]);
        Ok(FileContent::new(self.send(request).await?, self.target()))
    }

    /// `PUT /v1/sandboxes/:id/files`: replaces or creates a file in the sandbox. Permission bits of
    /// an existing file stay as they are when `mode` is absent.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn write_file(
        &self,
        id: &str,
        path: &str,
        mode: Option<u32>,
        content: Vec<u8>,
    ) -> Result<(), ClientError> {
        let length = content.len() as u64;
        let attributes = FileAttributes { mode, user: None };
        self.write_file_from(id, path, attributes, (io::Cursor::new(content), length), |_| {}).await
    }

    /// As [`Client::write_file`], with the content from a reader, which is not held in memory, and
    /// its length; `sent` is told how many bytes are on their way, whenever some more are.
    ///
    /// # Errors
    /// See [`ClientError`]; also when the reader has fewer bytes.
    pub async fn write_file_from(
        &self,
        id: &str,
        path: &str,
        attributes: FileAttributes<'_>,
        (content, length): (impl Read + Send + 'static, u64),
        sent: impl Fn(u64) + Send + 'static,
    ) -> Result<(), ClientError> {
        let mut request = self.file_request(Method::PUT, id, "", path);
        if let Some(mode) = attributes.mode {
            request = request.query(&[("mode", format!("{mode:04o}"))]);
        }
        if let Some(user) = attributes.user {
            request = request.query(&[("user", user)]);
        }
        let request = request
            .header("content-type", "application/octet-stream")
            .header("content-length", length)
            .body(pieces(content.take(length), sent));
        self.send(request).await.map(drop)
    }

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

    /// `POST /v1/sandboxes/:id/files/mkdir`: creates a directory, and missing ones above it, which
    /// belong to `user` or to root.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn make_directory(
        &self,
        id: &str,
        path: &str,
        user: Option<&str>,
    ) -> Result<(), ClientError> {
        let mut request = self.file_request(Method::POST, id, "/mkdir", path);
        if let Some(user) = user {
            request = request.query(&[("user", user)]);
        }
        self.send(request).await.map(drop)
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

/// A body that is read as it is sent, on a thread of its own: the request is on its way before
/// there is anything to read, and nobody waits for a read that does not end.
pub(crate) fn pieces(
    content: impl Read + Send + 'static,
    sent: impl Fn(u64) + Send + 'static,
) -> Body {
    let (pieces, read) = mpsc::channel(1);
    thread::spawn(move || {
        let mut content = content;
        loop {
            let mut piece = Vec::with_capacity(PIECE_BYTES);
            let read = content.by_ref().take(PIECE_BYTES as u64).read_to_end(&mut piece);
            if matches!(read, Ok(0)) {
                return;
            }
            let is_broken = read.is_err();
            // Nobody takes it once the request is over.
            if pieces.blocking_send(read.map(|_| piece)).is_err() || is_broken {
                return;
            }
        }
    });
    Body::wrap_stream(stream::unfold((read, 0, sent), |(mut read, at, sent)| async move {
        let piece = read.recv().await?;
        let at = at + piece.as_ref().map_or(0, |piece| piece.len() as u64);
        sent(at);
        Some((piece, (read, at, sent)))
    }))
}

fn deep(request: RequestBuilder, depth: Depth) -> RequestBuilder {
    match depth {
        Depth::Itself => request,
        Depth::Recursive => request.query(&[("recursive", "true")]),
    }
}

/// A file's content on its way here.
#[derive(Debug)]
pub struct FileContent {
    response: Response,
    target: String,
}

impl FileContent {
    pub(crate) fn new(response: Response, target: &Target) -> Self {
        Self { response, target: target.to_string() }
    }

    /// Bytes in all, if the daemon tells.
    #[must_use]
    pub fn length(&self) -> Option<u64> {
        self.response.content_length()
    }

    /// The next piece; `None` at the end.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, ClientError> {
        let piece = self.response.chunk().await;
        let broken = |source| ClientError::Broken { target: self.target.clone(), source };
        Ok(piece.map_err(broken)?.map(|bytes| bytes.to_vec()))
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
