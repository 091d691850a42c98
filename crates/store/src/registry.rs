//! The registry: what exists. SQLite, one writer (the daemon holds a lock), rows written last.
//!
//! Commits are not flushed one by one: a snapshot that is lost with the host was not durable
//! anyway. Flushed are the row that says `durable`, and the removal of a row, because its files go
//! next.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forkd_types::network::{Alias, NetworkName, NetworkPolicy};
use forkd_types::{
    AtEnd, ByteCount, Named as _, OverlayId, Owner, SandboxId, SandboxState, SnapshotStatus,
    SnapshotTag,
};
use rusqlite::{Connection, ErrorCode, Row, params};
use serde::{Deserialize, Serialize};

use crate::failpoint::{Failpoint, reach};
use crate::{SnapshotManifest, StoreError};

/// What the removal of a row may need.
const SPARE_BYTES: usize = 1 << 20;

/// Raised when a table changes.
const SCHEMA_VERSION: i64 = 5;

const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS snapshots (
    tag TEXT PRIMARY KEY,
    status TEXT NOT NULL,
    durable INTEGER NOT NULL,
    created_unix_ms INTEGER NOT NULL,
    manifest TEXT NOT NULL,
    figures TEXT,
    error TEXT,
    shared INTEGER NOT NULL DEFAULT 0,
    limits TEXT NOT NULL DEFAULT '{}',
    network TEXT
) STRICT;
CREATE TABLE IF NOT EXISTS sandboxes (
    id TEXT PRIMARY KEY,
    snapshot_tag TEXT NOT NULL,
    pid INTEGER,
    pid_started INTEGER,
    state TEXT NOT NULL,
    created_unix_ms INTEGER NOT NULL,
    overlays TEXT NOT NULL,
    machine TEXT,
    options TEXT NOT NULL DEFAULT '{}'
) STRICT;
";

/// What brings a registry of each earlier version to the next one, the first version's first.
const CHANGES: [&str; 4] = [
    "ALTER TABLE sandboxes ADD COLUMN machine TEXT;
     ALTER TABLE sandboxes ADD COLUMN options TEXT NOT NULL DEFAULT '{}';",
    // Tags and options may name an owner from now on; those that do not are the daemon's own
    // user's. A program that does not know owners would show everything to everybody.
    "ALTER TABLE snapshots ADD COLUMN shared INTEGER NOT NULL DEFAULT 0;",
    // A program that does not know limits would start children without them.
    "ALTER TABLE snapshots ADD COLUMN limits TEXT NOT NULL DEFAULT '{}';",
    // A program that does not know network policies would let a child reach what its source could
    // not.
    "ALTER TABLE snapshots ADD COLUMN network TEXT;",
];

/// Figures of the branch that made a snapshot, microseconds by phase name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotFigures {
    /// `live`, `diff` or `full`.
    pub mode: String,
    /// Microseconds by phase.
    pub phases_us: BTreeMap<String, u64>,
    /// Pause window.
    pub pause_us: u64,
    /// The same as told by the VMM.
    pub held_by_vmm_us: Option<u64>,
    /// From request to usable snapshot.
    pub ready_us: u64,
    /// Pages looked at.
    #[serde(default)]
    pub captured: ByteCount,
    /// Those that differed from the layers below.
    pub dirty: ByteCount,
    /// Stored pages.
    pub stored: ByteCount,
    /// Stored pages of the dirty set.
    #[serde(default)]
    pub dirty_stored: ByteCount,
    /// Pause of a diff.
    #[serde(default)]
    pub diff_pause_us: Option<u64>,
    /// Write faults served.
    pub faults: u64,
    /// Median fault service.
    pub fault_service_median_us: Option<u64>,
    /// Longest fault service.
    pub fault_service_max_us: Option<u64>,
}

/// A row of `snapshots`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotRow {
    /// Its name.
    pub tag: SnapshotTag,
    /// Whether it can be used.
    pub status: SnapshotStatus,
    /// Whether it is on disk.
    pub durable: bool,
    /// When it was requested.
    pub created_at: SystemTime,
    /// What it consists of.
    pub manifest: SnapshotManifest,
    /// How it was made, if by a branch.
    pub figures: Option<SnapshotFigures>,
    /// Why it failed.
    pub error: Option<String>,
    /// Whether it can be looked at and started from by all, not only by its owner.
    pub shared: bool,
    /// What sandboxes that are started from it cannot shed.
    pub limits: InheritedLimits,
    /// The network of its source at the branch point; the engine's text.
    pub network: Option<String>,
}

/// What the sandbox that a snapshot was branched from was limited to at its creator's wish.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct InheritedLimits {
    /// Its VMM may not have more memory.
    pub memory: Option<ByteCount>,
    /// Its VMM has a network namespace of its own.
    pub own_network: bool,
}

/// A row of `sandboxes`: enough to find its VMM and take it over after the daemon died.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxRow {
    /// Its name.
    pub id: SandboxId,
    /// Where it started.
    pub snapshot_tag: SnapshotTag,
    /// The VMM's process, and when it started in clock ticks since boot: the number alone may by
    /// now mean another process.
    pub process: Option<(u32, u64)>,
    /// Where it stood.
    pub state: SandboxState,
    /// When it was requested.
    pub created_at: SystemTime,
    /// Overlays that belong to it and to no snapshot.
    pub overlays: Vec<OverlayId>,
    /// What its machine consists of, in the engine's own words; none before it runs.
    pub machine: Option<String>,
    /// What its creator wanted.
    pub options: SandboxOptionsRow,
}

/// What the creator of a sandbox wanted of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SandboxOptionsRow {
    /// To whom it belongs.
    pub owner: Owner,
    /// Words of its creator's.
    pub metadata: BTreeMap<String, String>,
    /// It ends so long after it was requested.
    pub ttl_ms: Option<u64>,
    /// What the end of that time does.
    pub at_end: AtEnd,
    /// It is removed when it was not used for so long.
    pub idle_timeout_ms: Option<u64>,
    /// Its VMM may not have more memory.
    pub memory_limit: Option<ByteCount>,
    /// Its VMM has a network namespace of its own.
    pub own_network: bool,
    /// What it may reach.
    pub network: NetworkPolicy,
    /// The private networks that it is a member of, and its alias in each.
    pub networks: BTreeMap<NetworkName, Alias>,
}

/// The registry of one store.
#[derive(Debug)]
pub struct Registry {
    connection: Mutex<Connection>,
    spare: PathBuf,
}

impl Registry {
    /// Opens or creates the registry.
    ///
    /// # Errors
    /// When the file is no registry, or one of another version.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let connection = Connection::open(path)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "NORMAL")?;
        connection.busy_timeout(Duration::from_secs(5))?;
        let found: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
        match found {
            0 | SCHEMA_VERSION => {}
            _ => migrate(&connection, found)?,
        }
        connection.execute_batch(SCHEMA)?;
        connection.pragma_update(None, "user_version", SCHEMA_VERSION)?;
        let registry =
            Self { connection: Mutex::new(connection), spare: path.with_extension("spare") };
        registry.keep_spare();
        Ok(registry)
    }

    fn lock(&self) -> MutexGuard<'_, Connection> {
        // A panic between statements leaves the database consistent: SQLite sees to that.
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds or replaces a snapshot. One that is durable is on the disk when this returns.
    ///
    /// # Errors
    /// When the database fails; the row is as it was before.
    pub fn put_snapshot(&self, row: &SnapshotRow) -> Result<(), StoreError> {
        self.keep_spare();
        let mut connection = self.lock();
        reach(Failpoint::RowChanging(row.status.name())).map_err(StoreError::registry)?;
        let change = connection.transaction()?;
        write_snapshot(&change, row)?;
        change.commit()?;
        reach(Failpoint::RowChanged(row.status.name())).map_err(StoreError::registry)?;
        if row.durable { flush(&connection) } else { Ok(()) }
    }

    /// Keeps a file that takes some space. It is given up where the disk is so full that not even a
    /// row can be removed: nothing could be removed to make space otherwise.
    fn keep_spare(&self) {
        if self.spare.exists() {
            return;
        }
        if let Err(error) = fs::write(&self.spare, vec![1; SPARE_BYTES]) {
            tracing::debug!(%error, "there is no spare space for the registry");
            fs::remove_file(&self.spare).ok();
        }
    }

    /// Removes a snapshot's row and puts these others, all or nothing. It is on the disk when this
    /// returns: only then may files be removed that the row has listed.
    ///
    /// # Errors
    /// When the database fails.
    pub fn remove_snapshot(
        &self,
        tag: &SnapshotTag,
        others: &[SnapshotRow],
    ) -> Result<(), StoreError> {
        match self.try_remove_snapshot(tag, others) {
            Err(StoreError::Registry(rusqlite::Error::SqliteFailure(error, _)))
                if error.code == ErrorCode::DiskFull && fs::remove_file(&self.spare).is_ok() =>
            {
                tracing::warn!(snapshot = %tag, "the disk is full: spare space is used");
                self.try_remove_snapshot(tag, others)
            }
            other => other,
        }
    }

    fn try_remove_snapshot(
        &self,
        tag: &SnapshotTag,
        others: &[SnapshotRow],
    ) -> Result<(), StoreError> {
        let mut connection = self.lock();
        reach(Failpoint::RowChanging("removed")).map_err(StoreError::registry)?;
        let change = connection.transaction()?;
        change.execute("DELETE FROM snapshots WHERE tag = ?1", [tag.to_string()])?;
        for row in others {
            write_snapshot(&change, row)?;
        }
        change.commit()?;
        reach(Failpoint::RowChanged("removed")).map_err(StoreError::registry)?;
        flush(&connection)
    }

    /// All snapshots, oldest first.
    ///
    /// # Errors
    /// When the database fails or a row cannot be read.
    pub fn snapshots(&self) -> Result<Vec<SnapshotRow>, StoreError> {
        let connection = self.lock();
        let mut statement =
            connection.prepare("SELECT * FROM snapshots ORDER BY created_unix_ms, tag")?;
        let mut rows = statement.query([])?;
        let mut found = Vec::new();
        while let Some(row) = rows.next()? {
            found.push(snapshot_row(row)?);
        }
        Ok(found)
    }

    /// Adds or replaces a sandbox.
    ///
    /// # Errors
    /// When the database fails.
    pub fn put_sandbox(&self, row: &SandboxRow) -> Result<(), StoreError> {
        reach(Failpoint::RowChanging("sandbox")).map_err(StoreError::registry)?;
        let overlays = to_json("sandbox", row.id.as_str(), &row.overlays)?;
        let options = to_json("sandbox", row.id.as_str(), &row.options)?;
        self.lock().execute(
            "INSERT OR REPLACE INTO sandboxes VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
            params![
                row.id.as_str(),
                row.snapshot_tag.to_string(),
                row.process.map(|(pid, _)| pid),
                row.process.map(|(_, started)| i64::try_from(started).unwrap_or(i64::MAX)),
                row.state.name(),
                unix_ms(row.created_at),
                overlays,
                row.machine,
                options
            ],
        )?;
        Ok(())
    }

    /// Replaces what is wanted of a sandbox, if it has a row.
    ///
    /// # Errors
    /// When the database fails.
    pub fn set_sandbox_options(
        &self,
        id: &SandboxId,
        options: &SandboxOptionsRow,
    ) -> Result<(), StoreError> {
        let options = to_json("sandbox", id.as_str(), options)?;
        let change = "UPDATE sandboxes SET options = ?2 WHERE id = ?1";
        self.lock().execute(change, params![id.as_str(), options])?;
        Ok(())
    }

    /// Removes a sandbox's row.
    ///
    /// # Errors
    /// When the database fails.
    pub fn remove_sandbox(&self, id: &SandboxId) -> Result<(), StoreError> {
        self.lock().execute("DELETE FROM sandboxes WHERE id = ?1", [id.as_str()])?;
        Ok(())
    }

    /// All sandboxes, oldest first.
    ///
    /// # Errors
    /// When the database fails or a row cannot be read.
    pub fn sandboxes(&self) -> Result<Vec<SandboxRow>, StoreError> {
        let connection = self.lock();
        let mut statement =
            connection.prepare("SELECT * FROM sandboxes ORDER BY created_unix_ms, id")?;
        let mut rows = statement.query([])?;
        let mut found = Vec::new();
        while let Some(row) = rows.next()? {
            found.push(sandbox_row(row)?);
        }
        Ok(found)
    }
}

/// Brings the tables from version `found` to the latest, all or nothing.
fn migrate(connection: &Connection, found: i64) -> Result<(), StoreError> {
    let done = usize::try_from(found - 1).ok();
    let missing = done.and_then(|done| CHANGES.get(done..)).filter(|missing| !missing.is_empty());
    let known = SCHEMA_VERSION;
    let changes = missing.ok_or(StoreError::RegistryVersion { found, known })?.concat();
    let script = format!("BEGIN IMMEDIATE;{changes}PRAGMA user_version = {known};COMMIT;");
    Ok(connection.execute_batch(&script)?)
}

fn write_snapshot(connection: &Connection, row: &SnapshotRow) -> Result<(), StoreError> {
    let manifest = row.manifest.encode(&row.tag)?;
    let figures = row.figures.as_ref();
    let name = row.tag.to_string();
    let figures = figures.map(|figures| to_json("snapshot", &name, figures)).transpose()?;
    connection.execute(
        "INSERT OR REPLACE INTO snapshots VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
        params![
            name,
            row.status.name(),
            row.durable,
            unix_ms(row.created_at),
            manifest,
            figures,
            row.error,
            row.shared,
            to_json("snapshot", &name, &row.limits)?,
            row.network
        ],
    )?;
    Ok(())
}

/// Brings all changes so far to the disk.
fn flush(connection: &Connection) -> Result<(), StoreError> {
    reach(Failpoint::RegistryFlushing).map_err(StoreError::registry)?;
    let busy: bool = connection.query_row("PRAGMA wal_checkpoint(FULL)", [], |row| row.get(0))?;
    if busy {
        // Somebody else reads the file. What has been committed is flushed all the same by the
        // next one; here it must not be relied on.
        let busy = std::io::Error::from(std::io::ErrorKind::ResourceBusy);
        return Err(StoreError::registry(busy));
    }
    reach(Failpoint::RegistryFlushed).map_err(StoreError::registry)
}

fn snapshot_row(row: &Row<'_>) -> Result<SnapshotRow, StoreError> {
    let name: String = row.get("tag")?;
    let damaged =
        |how: String| StoreError::RowDamaged { what: "snapshot", name: name.clone(), how };
    let tag: SnapshotTag =
        name.parse().map_err(|e: forkd_types::TagError| damaged(e.to_string()))?;
    let manifest: String = row.get("manifest")?;
    let figures: Option<String> = row.get("figures")?;
    let limits: String = row.get("limits")?;
    Ok(SnapshotRow {
        manifest: SnapshotManifest::decode(&tag, &manifest)?,
        tag,
        status: SnapshotStatus::from_name(&row.get::<_, String>("status")?)
            .ok_or_else(|| damaged("its status is unknown".to_owned()))?,
        durable: row.get("durable")?,
        created_at: from_unix_ms(row.get("created_unix_ms")?),
        figures: figures
            .map(|text| serde_json::from_str(&text))
            .transpose()
            .map_err(|e| damaged(e.to_string()))?,
        error: row.get("error")?,
        shared: row.get("shared")?,
        limits: serde_json::from_str(&limits).map_err(|e| damaged(e.to_string()))?,
        network: row.get("network")?,
    })
}

fn sandbox_row(row: &Row<'_>) -> Result<SandboxRow, StoreError> {
    let name: String = row.get("id")?;
    let damaged = |how: String| StoreError::RowDamaged { what: "sandbox", name: name.clone(), how };
    let tag: String = row.get("snapshot_tag")?;
    let overlays: String = row.get("overlays")?;
    let options: String = row.get("options")?;
    let pid: Option<u32> = row.get("pid")?;
    let started: Option<i64> = row.get("pid_started")?;
    Ok(SandboxRow {
        id: name.parse().map_err(|e: forkd_types::IdError| damaged(e.to_string()))?,
        snapshot_tag: tag.parse().map_err(|e: forkd_types::TagError| damaged(e.to_string()))?,
        process: pid.zip(started.and_then(|ticks| u64::try_from(ticks).ok())),
        state: SandboxState::from_name(&row.get::<_, String>("state")?)
            .ok_or_else(|| damaged("its state is unknown".to_owned()))?,
        created_at: from_unix_ms(row.get("created_unix_ms")?),
        overlays: serde_json::from_str(&overlays).map_err(|e| damaged(e.to_string()))?,
        machine: row.get("machine")?,
        options: serde_json::from_str(&options).map_err(|e| damaged(e.to_string()))?,
    })
}

fn to_json<T: Serialize>(what: &'static str, name: &str, value: &T) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(|error| StoreError::RowDamaged {
        what,
        name: name.to_owned(),
        how: error.to_string(),
    })
}

fn unix_ms(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

fn from_unix_ms(milliseconds: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(u64::try_from(milliseconds).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use forkd_types::LayerId;

    use super::*;
    use crate::{FileChecksum, MachineIdentity};

    fn snapshot(tag: &str) -> SnapshotRow {
        SnapshotRow {
            tag: tag.parse().unwrap(),
            status: SnapshotStatus::Ready,
            durable: true,
            created_at: from_unix_ms(1_800_000_000_123),
            manifest: SnapshotManifest {
                image: "tiny".to_owned(),
                image_hash: "abc".to_owned(),
                memory: ByteCount::from_mib(128),
                vcpus: 1,
                layers: vec![LayerId::random()],
                overlays: vec![],
                overlay_checksums: BTreeMap::from([(
                    OverlayId::random(),
                    FileChecksum { bytes: ByteCount::new(7), crc32: 9 },
                )]),
                device_state: Some(FileChecksum { bytes: ByteCount::new(8), crc32: 10 }),
                contents: crate::KnownContents::default(),
                machine: MachineIdentity {
                    vmm_version: "7.2.22".to_owned(),
                    accelerator: "tcg".to_owned(),
                    cpu_model: "max".to_owned(),
                },
                network_device: false,
                gateway_certificate: None,
                private: false,
                parent_tag: None,
                branched_from: Some(SandboxId::random()),
            },
            figures: Some(SnapshotFigures { pause_us: 900, ..SnapshotFigures::default() }),
            error: None,
            shared: false,
            limits: InheritedLimits::default(),
            network: Some("{}".to_owned()),
        }
    }

    #[test]
    fn rows_survive_closing_and_opening() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("registry.sqlite");
        let row = snapshot("a");
        let sandbox = SandboxRow {
            id: SandboxId::random(),
            snapshot_tag: row.tag.clone(),
            process: Some((123, 456)),
            state: SandboxState::Running,
            created_at: row.created_at,
            overlays: vec![OverlayId::random()],
            machine: Some("{}".to_owned()),
            options: SandboxOptionsRow {
                owner: "ann".parse().unwrap(),
                metadata: BTreeMap::from([("user".to_owned(), "é".to_owned())]),
                ttl_ms: Some(7000),
                at_end: AtEnd::Pause,
                idle_timeout_ms: None,
                memory_limit: Some(ByteCount::from_mib(99)),
                own_network: true,
                network: NetworkPolicy::closed(),
                networks: [("team".parse().unwrap(), Alias::new(0, 7).unwrap())].into(),
            },
        };
        {
            let registry = Registry::open(&path).unwrap();
            registry.put_snapshot(&row).unwrap();
            registry.put_sandbox(&sandbox).unwrap();
        }
        let registry = Registry::open(&path).unwrap();
        assert_eq!(registry.snapshots().unwrap(), std::slice::from_ref(&row));
        assert_eq!(registry.sandboxes().unwrap(), std::slice::from_ref(&sandbox));
        registry.remove_snapshot(&row.tag, &[]).unwrap();
        registry.remove_sandbox(&sandbox.id).unwrap();
        assert!(registry.snapshots().unwrap().is_empty());
        assert!(registry.sandboxes().unwrap().is_empty());
    }

    #[test]
    fn a_registry_of_another_version_is_refused_by_its_number() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("registry.sqlite");
        drop(Registry::open(&path).unwrap());
        let raw = Connection::open(&path).unwrap();
        raw.pragma_update(None, "user_version", 99).unwrap();
        drop(raw);
        let error = Registry::open(&path).unwrap_err();
        assert!(matches!(error, StoreError::RegistryVersion { found: 99, .. }), "{error}");
    }

    #[test]
    fn what_was_made_before_there_were_owners_belongs_to_the_daemons_own_user() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("registry.sqlite");
        let row = snapshot("old");
        let raw = Connection::open(&path).unwrap();
        raw.execute_batch(
            "CREATE TABLE snapshots (tag TEXT PRIMARY KEY, status TEXT NOT NULL,
                 durable INTEGER NOT NULL, created_unix_ms INTEGER NOT NULL,
                 manifest TEXT NOT NULL, figures TEXT, error TEXT) STRICT;
             CREATE TABLE sandboxes (id TEXT PRIMARY KEY, snapshot_tag TEXT NOT NULL, pid INTEGER,
                 pid_started INTEGER, state TEXT NOT NULL, created_unix_ms INTEGER NOT NULL,
                 overlays TEXT NOT NULL, machine TEXT, options TEXT NOT NULL DEFAULT '{}') STRICT;
             INSERT INTO sandboxes VALUES
                 ('sb-0123456789ab', 'old', NULL, NULL, 'dead', 1, '[]', NULL, '{\"ttl_ms\":7}');
             PRAGMA user_version = 2;",
        )
        .unwrap();
        let manifest = row.manifest.encode(&row.tag).unwrap();
        let values = params![row.tag.to_string(), manifest];
        let insert = "INSERT INTO snapshots VALUES (?1, 'ready', 1, 1, ?2, NULL, NULL)";
        raw.execute(insert, values).unwrap();
        drop(raw);
        for _ in 0..2 {
            let registry = Registry::open(&path).unwrap();
            let [found] = registry.snapshots().unwrap().try_into().unwrap();
            assert!(found.tag.owner().is_daemon() && !found.shared);
            assert_eq!(found.manifest, row.manifest);
            let [sandbox] = registry.sandboxes().unwrap().try_into().unwrap();
            assert!(sandbox.options.owner.is_daemon());
            assert_eq!(sandbox.options.ttl_ms, Some(7));
        }
    }

    #[test]
    fn the_same_tag_of_two_owners_is_two_rows() {
        let directory = tempfile::tempdir().unwrap();
        let registry = Registry::open(&directory.path().join("registry.sqlite")).unwrap();
        let [own, foreign] = ["t", "ann/t"].map(snapshot);
        registry.put_snapshot(&own).unwrap();
        registry.put_snapshot(&foreign).unwrap();
        registry.remove_snapshot(&own.tag, &[]).unwrap();
        assert_eq!(registry.snapshots().unwrap(), [foreign]);
    }

    #[test]
    fn a_damaged_row_is_refused_by_name() {
        let directory = tempfile::tempdir().unwrap();
        let registry = Registry::open(&directory.path().join("registry.sqlite")).unwrap();
        registry.put_snapshot(&snapshot("broken-one")).unwrap();
        registry.lock().execute("UPDATE snapshots SET manifest = '{'", []).unwrap();
        let error = registry.snapshots().unwrap_err();
        assert!(error.to_string().contains("broken-one"), "{error}");
    }
}
