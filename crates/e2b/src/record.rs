//! What is kept of each sandbox that a client of E2B made, besides what the engine keeps: a small
//! file for each, readable by the daemon's user alone. It outlives the daemon as its sandbox does.
//!
//! Guarantees: a file is whole or not there. Nothing of it is in the guest or in a snapshot.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use forkd_types::SandboxId;
use serde::{Deserialize, Serialize};

/// What is kept.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Record {
    /// Variables for all programs that a client starts.
    pub(crate) env: BTreeMap<String, String>,
    /// The name that the template was asked for by, if it stands for a snapshot.
    pub(crate) alias: Option<String>,
    /// The template as clients know it. Its snapshot may have been removed since.
    pub(crate) template: String,
    pub(crate) cpus: u32,
    pub(crate) memory_mb: u64,
    pub(crate) disk_mb: u64,
    /// What the client said; none if it said nothing.
    pub(crate) allow_internet_access: Option<bool>,
    /// Whoever knows the address of a server in it may reach it.
    pub(crate) allow_public_traffic: bool,
    /// A request wakes it when it is paused: it lives for so many seconds then.
    pub(crate) wakes_for_secs: Option<u64>,
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Records {
    folder: PathBuf,
}

impl Records {
    pub(crate) fn open(folder: &Path) -> io::Result<Self> {
        let folder = folder.join("sandboxes");
        DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        Ok(Self { folder })
    }

    fn path(&self, id: &SandboxId) -> PathBuf {
        self.folder.join(format!("{id}.json"))
    }

    /// What is kept of a sandbox; none of one that a client of E2B did not make.
    pub(crate) fn get(&self, id: &SandboxId) -> Option<Record> {
        serde_json::from_slice(&fs::read(self.path(id)).ok()?).ok()
    }

    pub(crate) fn set(&self, id: &SandboxId, record: &Record) -> io::Result<()> {
        let (path, new) = (self.path(id), self.folder.join(format!("{id}.new")));
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(&serde_json::to_vec(record)?)?;
        fs::rename(new, path)
    }

    /// Forgets a sandbox that is gone.
    pub(crate) fn remove(&self, id: &SandboxId) {
        // It may never have been there; what stays goes with the next start of the daemon.
        fs::remove_file(self.path(id)).ok();
    }

    /// Forgets all but these.
    pub(crate) fn keep_only(&self, known: &[SandboxId]) {
        let Ok(entries) = fs::read_dir(&self.folder) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let id = name.to_str().and_then(|name| name.strip_suffix(".json")?.parse().ok());
            if !id.is_some_and(|id: SandboxId| known.contains(&id)) {
                fs::remove_file(entry.path()).ok();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_outlives_its_daemon_and_goes_with_its_sandbox() {
        let folder = tempfile::tempdir().unwrap();
        let records = Records::open(folder.path()).unwrap();
        let [kept, gone] = [(); 2].map(|()| SandboxId::random());
        let env = BTreeMap::from([("A".to_owned(), "b".to_owned())]);
        let record = Record { env, template: "t".to_owned(), ..Record::default() };
        records.set(&kept, &record).unwrap();
        records.set(&gone, &record).unwrap();
        let records = Records::open(folder.path()).unwrap();
        records.keep_only(std::slice::from_ref(&kept));
        assert_eq!(records.get(&kept), Some(record));
        assert_eq!(records.get(&gone), None);
        records.remove(&kept);
        assert_eq!(records.get(&kept), None);
    }
}
