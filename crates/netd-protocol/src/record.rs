//! The log of one sandbox's network: one line of JSON for each flow at its end, and for each
//! refusal. The gateway writes it, and others read it.
//!
//! Guarantees: numbers ascend by one from 1, also over gateway processes, so a reader that knows
//! the last number which it has seen can tell what is next and what it has missed.

use std::fs::File;
use std::io::{self, Read as _};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use forkd_sys::file::open_regular;
use forkd_types::FlowOutcome;
use forkd_types::network::Protocol;
use serde::{Deserialize, Serialize};

/// Bytes after which the log begins a new file. One older file is kept.
pub const LOG_BYTES_MAX: u64 = 1 << 20;

/// What a flow carried.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// From the guest.
    pub bytes_out: u64,
    /// To the guest.
    pub bytes_in: u64,
    /// From its first packet to its end, in milliseconds.
    pub ms: u64,
}

/// One line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowRecord {
    /// Which line of this sandbox it is.
    pub number: u64,
    /// When it was written.
    pub unix_ms: u64,
    /// What became of the flow.
    pub outcome: FlowOutcome,
    /// Of the flow. A name that is not resolved counts as a datagram.
    pub protocol: Protocol,
    /// The other end. None for a name that is not resolved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// The other end's port; 0 for a ping.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// The name by which the guest knows the address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The rule that decided, or what went wrong.
    pub reason: String,
    /// None for a refusal.
    #[serde(flatten)]
    pub traffic: Option<Traffic>,
    /// How often the same refusal came again since it was last written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeated: Option<u64>,
}

/// The file in a sandbox's folder that is written to.
#[must_use]
pub fn log_path(folder: &Path) -> PathBuf {
    folder.join("network.jsonl")
}

/// The file that was written to before.
#[must_use]
pub fn older_log_path(folder: &Path) -> PathBuf {
    folder.join("network.jsonl.1")
}

/// All lines that are kept, oldest first. None of a log that nobody has begun.
///
/// # Errors
/// What the kernel says.
pub fn read_log(folder: &Path) -> io::Result<Vec<FlowRecord>> {
    // In this order: what becomes the older file meanwhile is read twice, and not missed.
    let (recent, older) = (open(&log_path(folder))?, open(&older_log_path(folder))?);
    let mut records: Vec<FlowRecord> = Vec::new();
    for file in [older, recent].into_iter().flatten() {
        let mut bytes = Vec::new();
        file.take(2 * LOG_BYTES_MAX).read_to_end(&mut bytes)?;
        let last = records.last().map_or(0, |record| record.number);
        // The last line may not be whole yet.
        let lines = bytes.split(|&byte| byte == b'\n').map(serde_json::from_slice::<FlowRecord>);
        records.extend(lines.flatten().filter(|record| record.number > last));
    }
    Ok(records)
}

/// A file, if there is one and nothing else in its place.
fn open(path: &Path) -> io::Result<Option<File>> {
    match open_regular(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::Other) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn line(number: u64) -> String {
        let record = FlowRecord {
            number,
            unix_ms: 7,
            outcome: FlowOutcome::Refused,
            protocol: Protocol::Tcp,
            address: Some([203, 0, 113, 7].into()),
            port: Some(443),
            name: None,
            reason: "default".to_owned(),
            traffic: None,
            repeated: None,
        };
        format!("{}\n", serde_json::to_string(&record).unwrap())
    }

    fn numbers(folder: &Path) -> Vec<u64> {
        read_log(folder).unwrap().iter().map(|record| record.number).collect()
    }

    #[test]
    fn a_log_in_two_files_is_read_in_order_and_nothing_twice() {
        let folder = tempfile::tempdir().unwrap();
        assert!(numbers(folder.path()).is_empty());
        fs::write(log_path(folder.path()), line(2) + &line(3) + &line(4)).unwrap();
        fs::write(older_log_path(folder.path()), line(1) + &line(2) + &line(3)).unwrap();
        assert_eq!(numbers(folder.path()), [1, 2, 3, 4]);
    }

    #[test]
    fn a_line_that_is_not_whole_or_none_at_all_is_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        let text = line(1) + "{}\n\0\n" + &line(2) + &line(3)[..20];
        fs::write(log_path(folder.path()), text).unwrap();
        assert_eq!(numbers(folder.path()), [1, 2]);
    }

    #[test]
    fn what_is_no_file_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let elsewhere = folder.path().join("elsewhere");
        fs::write(&elsewhere, line(1)).unwrap();
        std::os::unix::fs::symlink(&elsewhere, log_path(folder.path())).unwrap();
        assert!(read_log(folder.path()).is_err());
        fs::remove_file(log_path(folder.path())).unwrap();
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, log_path(folder.path()), kind, mode, 0).unwrap();
        assert!(numbers(folder.path()).is_empty());
    }
}
