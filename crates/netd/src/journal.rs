//! The log of one sandbox: a line of JSON for each flow at its end, and for each refusal.
//!
//! Guarantees: at most two files of [`LOG_BYTES_MAX`], which their owner alone can read. A refusal
//! that is repeated is counted. Never contents, headers, or paths of requests.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use forkd_netd_protocol::{FlowRecord, LOG_BYTES_MAX, Traffic, log_path, older_log_path, read_log};
use forkd_types::network::Protocol;
use forkd_types::{FlowOutcome, SandboxId};
use rustix::fs::OFlags;

use crate::limit::{REFUSALS_COUNTED_FOR, REFUSALS_COUNTED_MAX};
use crate::totals::Totals;

/// What a line is about.
#[derive(Debug, Clone)]
pub(crate) struct Entry<'a> {
    pub(crate) outcome: FlowOutcome,
    pub(crate) protocol: Protocol,
    /// None for a query.
    pub(crate) remote: Option<SocketAddr>,
    pub(crate) name: Option<&'a str>,
    /// What decided, or what went wrong.
    pub(crate) reason: &'a str,
    pub(crate) traffic: Option<Traffic>,
}

/// Which refusals are the same.
type Kind = (Protocol, Option<SocketAddr>, Option<String>, String);

/// Writes the log of one sandbox.
#[derive(Debug)]
pub(crate) struct Journal {
    sandbox: SandboxId,
    folder: PathBuf,
    file: Option<File>,
    bytes: u64,
    /// Of the last line.
    number: u64,
    totals: Arc<Totals>,
    /// Refusals that nobody has been told of.
    untold: u64,
    /// Somebody has been told that it cannot be written. A guest decides how often that is tried.
    failed: bool,
    counted: HashMap<Kind, u64>,
    counting_since: Option<Instant>,
}

impl Journal {
    /// The log of `sandbox`, in its own folder. The file is made with the first line.
    pub(crate) fn new(sandbox: SandboxId, folder: &Path, totals: Arc<Totals>) -> Self {
        Self {
            sandbox,
            folder: folder.to_owned(),
            file: None,
            bytes: 0,
            number: 0,
            totals,
            untold: 0,
            failed: false,
            counted: HashMap::new(),
            counting_since: None,
        }
    }

    /// Writes a line, unless it is a refusal that is only counted.
    pub(crate) fn add(&mut self, entry: &Entry<'_>) {
        self.totals.count(entry.outcome);
        if entry.outcome == FlowOutcome::Refused {
            self.untold += 1;
            if self.counting_since.is_none() {
                self.counting_since = Some(Instant::now());
                self.tell();
            }
            if self.is_repeated(entry) {
                return;
            }
        }
        self.write(entry, None);
    }

    /// Tells those who watch how often something was refused.
    fn tell(&mut self) {
        let times = std::mem::take(&mut self.untold);
        if times > 0 {
            self.totals.tell_refused(&self.sandbox, times);
        }
    }

    fn is_repeated(&mut self, entry: &Entry<'_>) -> bool {
        let name = entry.name.map(str::to_owned);
        let kind = (entry.protocol, entry.remote, name, entry.reason.to_owned());
        if let Some(count) = self.counted.get_mut(&kind) {
            *count += 1;
            return true;
        }
        if self.counted.len() == REFUSALS_COUNTED_MAX {
            self.write_repeated();
        }
        self.counted.insert(kind, 0);
        false
    }

    /// When [`Journal::write_counted`] is to be called.
    pub(crate) fn next(&self) -> Option<Instant> {
        Some(self.counting_since? + REFUSALS_COUNTED_FOR)
    }

    /// Writes how often refusals were repeated.
    pub(crate) fn write_counted(&mut self) {
        self.counting_since = None;
        self.tell();
        self.write_repeated();
    }

    fn write_repeated(&mut self) {
        for ((protocol, remote, name, reason), count) in std::mem::take(&mut self.counted) {
            if count > 0 {
                let (name, reason, traffic) = (name.as_deref(), reason.as_str(), None);
                let outcome = FlowOutcome::Refused;
                let entry = Entry { outcome, protocol, remote, name, reason, traffic };
                self.write(&entry, Some(count));
            }
        }
    }

    fn write(&mut self, entry: &Entry<'_>, repeated: Option<u64>) {
        if let Err(error) = self.append(entry, repeated)
            && !std::mem::replace(&mut self.failed, true)
        {
            tracing::warn!(sandbox = %self.sandbox, %error, "the network log cannot be written");
        }
    }

    fn append(&mut self, entry: &Entry<'_>, repeated: Option<u64>) -> io::Result<()> {
        if self.bytes > LOG_BYTES_MAX {
            fs::rename(log_path(&self.folder), older_log_path(&self.folder))?;
            self.file = None;
        }
        if self.file.is_none() {
            self.open()?;
        }
        let Some(file) = &mut self.file else { return Ok(()) };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let record = FlowRecord {
            number: self.number + 1,
            unix_ms: u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
            outcome: entry.outcome,
            protocol: entry.protocol,
            address: entry.remote.map(|remote| remote.ip()),
            port: entry.remote.map(|remote| remote.port()),
            name: entry.name.map(str::to_owned),
            reason: entry.reason.to_owned(),
            traffic: entry.traffic,
            repeated,
        };
        let mut text = serde_json::to_vec(&record)?;
        text.push(b'\n');
        file.write_all(&text)?;
        self.number += 1;
        self.bytes += u64::try_from(text.len()).unwrap_or(0);
        Ok(())
    }

    /// Goes on where an earlier process has ended.
    fn open(&mut self) -> io::Result<()> {
        if self.number == 0 {
            self.number = read_log(&self.folder)?.last().map_or(0, |last| last.number);
        }
        let flags = OFlags::NOFOLLOW.bits().cast_signed();
        let mut options = OpenOptions::new();
        options.append(true).create(true).mode(0o644).custom_flags(flags);
        let file = options.open(log_path(&self.folder))?;
        self.bytes = file.metadata()?.len();
        self.file = Some(file);
        Ok(())
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.write_counted();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forkd_netd_protocol::Notice;
    use std::os::unix::fs::PermissionsExt as _;

    fn refusal(port: u16) -> Entry<'static> {
        Entry {
            outcome: FlowOutcome::Refused,
            protocol: Protocol::Tcp,
            remote: Some(([203, 0, 113, 7], port).into()),
            name: None,
            reason: "default",
            traffic: None,
        }
    }

    fn journal(folder: &Path) -> Journal {
        Journal::new(SandboxId::random(), folder, Arc::default())
    }

    #[test]
    fn a_log_goes_on_with_the_numbers_of_an_earlier_process() {
        let folder = tempfile::tempdir().unwrap();
        for ports in [1..4, 4..6] {
            let mut journal = journal(folder.path());
            ports.for_each(|port| journal.add(&refusal(port)));
        }
        let records = read_log(folder.path()).unwrap();
        assert_eq!(records.iter().map(|record| record.number).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
        assert_eq!(records[4].port, Some(5));
    }

    #[test]
    fn a_flood_of_refusals_is_told_at_once_and_then_as_a_sum() {
        let folder = tempfile::tempdir().unwrap();
        let totals = Arc::<Totals>::default();
        let mut told = totals.notices();
        let sandbox = SandboxId::random();
        let mut journal = Journal::new(sandbox.clone(), folder.path(), Arc::clone(&totals));
        (0..1000).for_each(|port| journal.add(&refusal(port)));
        let refused = |times| Notice::Refused { sandbox: sandbox.clone(), times };
        assert_eq!(told.try_recv().unwrap(), refused(1));
        assert!(told.try_recv().is_err(), "one notice is enough");
        journal.write_counted();
        assert_eq!(told.try_recv().unwrap(), refused(999));
        assert_eq!(totals.usage().refused, 1000);
    }

    #[test]
    fn refusals_that_are_repeated_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let mut journal = journal(folder.path());
        for _ in 0..100 {
            journal.add(&refusal(80));
        }
        journal.add(&refusal(81));
        let path = log_path(folder.path());
        drop(journal);
        let text = fs::read_to_string(&path).unwrap();
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert_eq!(lines[2]["repeated"], 99);
        assert_eq!(lines[2]["port"], 80);
        assert_eq!(lines[0]["outcome"], "refused");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o133, 0, "nobody else writes");
    }

    #[test]
    fn the_log_does_not_grow_without_end() {
        let folder = tempfile::tempdir().unwrap();
        let mut journal = journal(folder.path());
        let entry =
            Entry { outcome: FlowOutcome::Ended, traffic: Some(Traffic::default()), ..refusal(1) };
        for _ in 0..20_000 {
            journal.add(&entry);
        }
        let sizes =
            fs::read_dir(folder.path()).unwrap().map(|f| f.unwrap().metadata().unwrap().len());
        let sizes: Vec<u64> = sizes.collect();
        assert_eq!(sizes.len(), 2);
        assert!(sizes.iter().all(|&bytes| bytes < LOG_BYTES_MAX + 1024), "{sizes:?}");
    }
}
