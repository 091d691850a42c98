//! The audit log: one JSON line for each request, who asked for what, and what came of it.
//!
//! A request waits until its line is queued, so none is lost while the daemon lives; a disk that
//! takes no more is reported in the daemon's log, once, and does not stop the daemon. Health checks
//! and metrics are left out. Contents (code, arguments, files, tokens) are never written.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Serialize, Serializer};
use tokio::sync::mpsc;

/// Lines that may wait for the disk before requests do.
const LINES_WAITING_MAX: usize = 1024;

/// The audit log cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("open the audit log `{}`", path.display())]
pub struct AuditError {
    /// The file.
    path: PathBuf,
    /// The system's word.
    #[source]
    source: io::Error,
}

/// One line.
#[derive(Debug, Serialize)]
pub(crate) struct Line<'a> {
    /// When the request came.
    #[serde(serialize_with = "rfc3339")]
    pub(crate) time: SystemTime,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(crate) request_id: &'a str,
    pub(crate) who: &'a serde_json::Value,
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sandbox: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) snapshot: Option<&'a str>,
    pub(crate) status: u16,
    /// The error's code; absent for a success.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) code: Option<&'a str>,
    /// Until the answer began.
    #[serde(rename = "duration_ms", serialize_with = "milliseconds")]
    pub(crate) duration: Duration,
}

/// An open audit log. Cheap to clone; the file is flushed and closed with the last clone.
#[derive(Debug, Clone)]
pub(crate) struct AuditLog(mpsc::Sender<Vec<u8>>);

impl AuditLog {
    /// Opens the log at `path`, to which lines are appended. Must be called inside a Tokio runtime.
    pub(crate) fn open(path: &Path) -> Result<Self, AuditError> {
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path);
        let file = file.map_err(|source| AuditError { path: path.to_owned(), source })?;
        let (sender, lines) = mpsc::channel(LINES_WAITING_MAX);
        let path = path.to_owned();
        tokio::task::spawn_blocking(move || write_lines(file, &path, lines));
        Ok(Self(sender))
    }

    pub(crate) async fn write(&self, line: &Line<'_>) {
        let Ok(mut bytes) = serde_json::to_vec(line) else { return };
        bytes.push(b'\n');
        // The writer ends only after the last sender.
        self.0.send(bytes).await.ok();
    }
}

fn write_lines(mut file: File, path: &Path, mut lines: mpsc::Receiver<Vec<u8>>) {
    let mut broken = false;
    while let Some(line) = lines.blocking_recv() {
        // One write for each line: lines of two daemons on one file do not mix.
        match file.write_all(&line) {
            Ok(()) if broken => {
                broken = false;
                tracing::info!(path = %path.display(), "the audit log is written again");
            }
            Err(error) if !broken => {
                broken = true;
                tracing::error!(path = %path.display(), %error, "the audit log is not written");
            }
            Ok(()) | Err(_) => {}
        }
    }
}

/// In UTC, to milliseconds.
fn rfc3339<S: Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&humantime::format_rfc3339_millis(*time))
}

/// To three digits.
fn milliseconds<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64((duration.as_secs_f64() * 1e6).round() / 1e3)
}
