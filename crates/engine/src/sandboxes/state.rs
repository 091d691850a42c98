//! All sandboxes of this daemon, with their records and directories.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forkd_store::{Registry, SandboxRow, StoreError, private_directory};
use forkd_types::{OverlayId, SandboxId, SandboxState};
use forkd_vmm::Vm;

use super::record::row_of;
use super::{Admission, Limits, Machine, SandboxHandle};
use crate::EngineError;
use crate::events::EventLog;
use crate::host::{Users, process_number, process_started};
use crate::network::log_folder;
use crate::snapshots::Files;

/// All sandboxes.
#[derive(Debug)]
pub(crate) struct Sandboxes {
    all: Mutex<BTreeMap<SandboxId, Arc<SandboxHandle>>>,
    /// Ids of VMMs that have no sandbox, or none yet.
    reserved: Mutex<BTreeSet<SandboxId>>,
    /// Who VMMs run as.
    users: Users,
    pub(crate) admission: Arc<Admission>,
    pub(crate) events: Arc<EventLog>,
    registry: Arc<Registry>,
    files: Arc<Files>,
    /// Sockets and logs of VMs, a directory for each.
    run_dir: PathBuf,
}

impl Sandboxes {
    pub(crate) fn new(
        limits: Limits,
        events: Arc<EventLog>,
        registry: Arc<Registry>,
        files: Arc<Files>,
        run_dir: PathBuf,
        users: Users,
    ) -> Arc<Self> {
        let admission = Admission::new(limits);
        let (all, reserved) = (Mutex::default(), Mutex::default());
        Arc::new(Self { all, reserved, users, admission, events, registry, files, run_dir })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<SandboxId, Arc<SandboxHandle>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An id for a new VMM, which has a user that no other one has.
    pub(crate) fn reserve_id(self: &Arc<Self>) -> ReservedId {
        loop {
            let reserved = self.try_reserve();
            // Looked at when nobody else here can draw it any more.
            if !self.users.are_in_use(reserved.id()) {
                return reserved;
            }
        }
    }

    fn try_reserve(self: &Arc<Self>) -> ReservedId {
        let mut reserved = self.reserved();
        let all = self.lock();
        let id = loop {
            let id = SandboxId::random();
            if self.users.are_free(&id, all.keys().chain(reserved.iter())) {
                break id;
            }
        };
        drop(all);
        reserved.insert(id.clone());
        ReservedId { id, sandboxes: Arc::clone(self) }
    }

    fn reserved(&self) -> MutexGuard<'_, BTreeSet<SandboxId>> {
        self.reserved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn all(&self) -> Vec<Arc<SandboxHandle>> {
        self.lock().values().cloned().collect()
    }

    pub(crate) fn add(&self, handle: Arc<SandboxHandle>) {
        self.lock().insert(handle.id().clone(), handle);
    }

    /// A sandbox that is looked at.
    pub(crate) fn get(&self, id: &SandboxId) -> Result<Arc<SandboxHandle>, EngineError> {
        let handle = self.lock().get(id).cloned();
        handle.ok_or_else(|| EngineError::UnknownSandbox { id: id.clone() })
    }

    /// Forgets a sandbox whose VM is gone, and removes what belongs to it alone.
    pub(crate) fn discard(&self, handle: &SandboxHandle) {
        let id = handle.id();
        self.lock().remove(id);
        handle.leave();
        self.files.drop_claim(id);
        self.files.remove_vm_directory(id);
        self.remove_run_directory(id);
        if let Err(error) = self.registry.remove_sandbox(id) {
            tracing::error!(sandbox = %id, %error, "a removed sandbox keeps its row");
        }
    }

    /// The rows that are written down, of an earlier daemon or of this one.
    pub(crate) fn rows(&self) -> Result<Vec<SandboxRow>, StoreError> {
        self.registry.sandboxes()
    }

    /// Writes down a machine as it is now: a later daemon takes it over.
    pub(crate) fn record(
        &self,
        handle: &SandboxHandle,
        machine: &Machine,
    ) -> Result<(), EngineError> {
        self.record_as(handle, machine, handle.sandbox().state)
    }

    /// The same for a sandbox that is about to be in `state`: it is not, unless this succeeds.
    pub(crate) fn record_as(
        &self,
        handle: &SandboxHandle,
        machine: &Machine,
        state: SandboxState,
    ) -> Result<(), EngineError> {
        let files = self.files.claimed_by(handle.id());
        let row = row_of(handle, files, process_of(machine.vm.as_ref()), machine)?;
        Ok(self.registry.put_sandbox(&SandboxRow { state, ..row })?)
    }

    /// Writes down what is wanted of a sandbox, whose machine is as it was written down.
    pub(crate) fn record_options(&self, handle: &SandboxHandle) -> Result<(), EngineError> {
        let options = handle.sandbox().options.into();
        Ok(self.registry.set_sandbox_options(handle.id(), &options)?)
    }

    /// The directory for a VM's sockets and logs.
    pub(crate) fn run_directory(&self, id: &SandboxId) -> PathBuf {
        self.run_dir.join(id.as_str())
    }

    /// The directory for all of these.
    pub(crate) fn run_directories(&self) -> &std::path::Path {
        &self.run_dir
    }

    pub(crate) fn new_run_directory(&self, id: &SandboxId) -> Result<PathBuf, EngineError> {
        create_directory(self.run_directory(id))
    }

    /// Where the gateway logs what a sandbox reached.
    pub(crate) fn network_log_folder(&self, id: &SandboxId) -> PathBuf {
        log_folder(&self.run_dir, id)
    }

    pub(crate) fn remove_run_directory(&self, id: &SandboxId) {
        remove_run_directory(&self.run_dir, id);
    }

    /// The directory for a VM's hot files.
    pub(crate) fn new_vm_directory(&self, id: &SandboxId) -> Result<PathBuf, EngineError> {
        create_directory(self.files.vm_directory(id))
    }

    /// Where overlays lie, in the given order.
    pub(crate) fn overlay_paths(&self, overlays: &[OverlayId]) -> Vec<PathBuf> {
        overlays.iter().map(|id| self.files.overlay(id)).collect()
    }
}

/// An id whose user no other VMM gets. It is kept until the VMM is gone, or its sandbox is there.
#[derive(Debug)]
pub(crate) struct ReservedId {
    id: SandboxId,
    sandboxes: Arc<Sandboxes>,
}

impl ReservedId {
    pub(crate) fn id(&self) -> &SandboxId {
        &self.id
    }
}

impl Drop for ReservedId {
    fn drop(&mut self) {
        self.sandboxes.reserved().remove(&self.id);
    }
}

/// The process of a VM, by its number and start time.
fn process_of(vm: &dyn Vm) -> Option<(u32, u64)> {
    process_number(vm.pid()).zip(process_started(vm.pid()))
}

fn create_directory(path: PathBuf) -> Result<PathBuf, EngineError> {
    private_directory(&path)?;
    Ok(path)
}

/// Removes what a VM has in the run directory.
pub(crate) fn remove_run_directory(run_dir: &std::path::Path, id: &SandboxId) {
    remove_directory(&run_dir.join(id.as_str()));
    remove_directory(&log_folder(run_dir, id));
}

/// Removes a directory, which need not be there.
fn remove_directory(path: &std::path::Path) {
    if let Err(error) = fs::remove_dir_all(path)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(path = %path.display(), %error, "cannot remove a VM's directory");
    }
}

#[cfg(test)]
mod tests {
    use forkd_launcher::{IdRange, OwnIds, SubordinateIds};
    use forkd_store::StoreFiles;

    use super::*;
    use crate::host::OF_NO_SANDBOX;
    use crate::snapshots::Catalog;

    /// Sandboxes whose VMMs have so many users. They are higher than anybody's on a host.
    fn with_users(count: u32, directory: &std::path::Path) -> Arc<Sandboxes> {
        let range = IdRange { first: 4_294_000_000, count: OF_NO_SANDBOX + count };
        let users = Users::of(OwnIds::Subordinate(SubordinateIds { users: range, groups: range }));
        let files = StoreFiles::open(directory, &directory.join("hot")).unwrap();
        let registry = Arc::new(Registry::open(&files.registry()).unwrap());
        let state = files.state().to_owned();
        let events = EventLog::new();
        let catalog = Catalog::new(Arc::clone(&registry), Vec::new(), state, Arc::clone(&events));
        let files = Arc::new(Files::new(files, Arc::new(catalog), None));
        Sandboxes::new(Limits::default(), events, registry, files, directory.join("run"), users)
    }

    #[test]
    fn each_id_that_is_reserved_has_a_user_of_its_own_until_it_is_given_back() {
        let directory = tempfile::tempdir().unwrap();
        let sandboxes = with_users(8, directory.path());
        let user_of = |id: &ReservedId| sandboxes.users.of_vmm(id.id()).unwrap().user;
        let mut reserved: Vec<ReservedId> = (0..8).map(|_| sandboxes.reserve_id()).collect();
        let users: BTreeSet<u32> = reserved.iter().map(user_of).collect();
        assert_eq!(users.len(), 8, "{users:?}");
        // Of eight one is free again, and is found.
        let given_back = user_of(&reserved[3]);
        reserved.remove(3);
        assert_eq!(user_of(&sandboxes.reserve_id()), given_back);
    }
}
