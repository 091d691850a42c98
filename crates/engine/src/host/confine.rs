//! How much of this host each VMM may use: memory, processors, threads, and space on its disk.
//!
//! Every VMM is limited, as far as the host has what it takes: to what its guest can come to need,
//! or to what the daemon's configuration or the creator of its sandbox says, whichever is less.
//!
//! Guarantees: a sandbox is not started without what was asked for; what is started from a snapshot
//! has the limits of the sandbox that the snapshot was branched from; the groups of sandboxes that
//! are gone are removed at the next start at the latest.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::{Once, OnceLock};

use forkd_store::{InheritedLimits, StoreError};
use forkd_sys::confine::try_network_namespace;
use forkd_types::{ByteCount, Isolation, SandboxId, limit};
use forkd_vmm::{CgroupLimits, Cgroups, Confinement, Controller, Jail, VmmCgroup, sweep_cgroups};

use crate::{EngineConfig, EngineError, SandboxLimits, SandboxOptions};

/// Confines VMMs, as far as this host permits.
#[derive(Debug)]
pub(crate) struct Confiner {
    cgroups: Cgroups,
    networks: OnceLock<Result<(), String>>,
    daemon: String,
    /// Where the groups are that this daemon and earlier ones have made, one place a line. Another
    /// daemon may be started in another group.
    places: PathBuf,
    remembered: Once,
    /// What nobody can have more of.
    most: SandboxLimits,
}

impl Confiner {
    /// For a daemon that keeps VMMs as far from the host as `isolation` says.
    pub(crate) fn open(config: &EngineConfig, isolation: Isolation) -> Result<Self, EngineError> {
        let state_dir = &config.state_dir;
        let directory = fs::metadata(state_dir).map_err(|source| StoreError::File {
            what: "look at",
            path: state_dir.clone(),
            source,
        })?;
        let daemon = format!("{:x}-{:x}", directory.dev(), directory.ino());
        let cgroups = Cgroups::find(&daemon);
        for controller in Controller::ALL {
            if let Err(error) = cgroups.require(controller) {
                tracing::debug!(%error, "VMMs are not limited so");
            }
        }
        let most = config.limits.each_sandbox;
        require(&cgroups, &most, isolation)?;
        let places = state_dir.join("memory-groups");
        let (networks, remembered) = (OnceLock::new(), Once::new());
        Ok(Self { cgroups, networks, daemon, places, remembered, most })
    }

    /// What the creator of a sandbox gets who asks for `options`, where the snapshot that it is
    /// started from has limits of its own. Refuses what cannot be done here.
    pub(crate) fn permit(
        &self,
        options: SandboxOptions,
        inherited: &InheritedLimits,
    ) -> Result<SandboxOptions, EngineError> {
        let cannot_exceed = |most: Option<ByteCount>, whose: &str| match options.memory_limit {
            Some(asked) if most.is_some_and(|most| asked > most) => {
                let problem = format!("{asked} is more than {} of {whose}", most.unwrap_or(asked));
                Err(EngineError::BadRequest { field: "memory_limit_mib", problem })
            }
            _ => Ok(()),
        };
        cannot_exceed(inherited.memory, "the sandbox that the snapshot was branched from")?;
        cannot_exceed(self.most.memory, "this daemon's `sandbox_max_memory_mib`")?;
        let options = SandboxOptions {
            memory_limit: options.memory_limit.or(inherited.memory),
            own_network: options.own_network || inherited.own_network,
            ..options
        };
        if options.memory_limit.is_some() {
            self.cgroups.require(Controller::Memory).map_err(|error| {
                EngineError::MemoryLimitUnavailable { reason: error.to_string() }
            })?;
        }
        if options.own_network {
            let networks = self
                .networks
                .get_or_init(|| try_network_namespace().map_err(|error| error.to_string()));
            if let Err(reason) = networks {
                return Err(EngineError::OwnNetworkUnavailable { reason: reason.clone() });
            }
        }
        Ok(options)
    }

    /// What a VMM may use whose guest has so much RAM and so many virtual CPUs. None stands for
    /// what this host cannot limit.
    pub(crate) fn limits(
        &self,
        asked: Option<ByteCount>,
        guest: ByteCount,
        vcpus: u32,
    ) -> CgroupLimits {
        let has = |controller| self.cgroups.require(controller).is_ok();
        let enough = enough_memory(guest);
        let memory = [asked, self.most.memory].into_iter().flatten().fold(enough, Ord::min);
        let enough = vcpus.saturating_mul(1000).saturating_add(limit::VMM_MILLICPUS_OVERHEAD);
        let millicpus = self.most.millicpus.map_or(enough, |most| most.min(enough));
        CgroupLimits {
            memory: has(Controller::Memory).then_some(memory),
            millicpus: has(Controller::Cpu).then_some(millicpus),
            threads: has(Controller::Pids).then_some(limit::VMM_THREADS_MAX),
        }
    }

    /// The cgroups of a new VMM.
    pub(crate) fn cgroup(&self, id: &SandboxId, limits: CgroupLimits) -> Option<VmmCgroup> {
        self.remembered.call_once(|| self.remember());
        self.cgroups.of(id.as_str(), limits)
    }

    /// The largest file that a VMM may write, whose guest has a disk of so many bytes.
    pub(crate) fn file_max(&self, disk: Option<ByteCount>) -> ByteCount {
        file_max(disk, self.most.disk)
    }

    /// What a VMM is kept from that may use so much, whose guest has a disk of so many bytes. It
    /// may be given a network namespace besides.
    pub(crate) fn confinement(
        &self,
        id: &SandboxId,
        limits: CgroupLimits,
        disk: Option<ByteCount>,
        jail: Option<Jail>,
    ) -> Confinement {
        Confinement {
            cgroup: self.cgroup(id, limits),
            file_max: Some(self.file_max(disk)),
            own_network: false,
            jail,
        }
    }

    /// So that a later daemon knows where to look for groups.
    fn remember(&self) {
        let mut known = self.known_places();
        let count = known.len();
        for base in self.cgroups.bases() {
            if !known.iter().any(|place| place == base) {
                known.push(base.to_owned());
            }
        }
        if known.len() > count {
            self.write_places(&known);
        }
    }

    fn known_places(&self) -> Vec<PathBuf> {
        fs::read_to_string(&self.places).unwrap_or_default().lines().map(PathBuf::from).collect()
    }

    fn write_places(&self, places: &[PathBuf]) {
        let text: String = places.iter().map(|place| format!("{}\n", place.display())).collect();
        if let Err(error) = fs::write(&self.places, text) {
            tracing::warn!(%error, "a group that is left behind may not be found again");
        }
    }

    /// Removes the groups of earlier daemons but those to `keep`, which is asked for only if there
    /// may be any.
    pub(crate) fn sweep(&self, keep: impl FnOnce() -> Vec<PathBuf>) {
        let mut places = self.known_places();
        if places.is_empty() {
            return;
        }
        let keep = keep();
        for base in &places {
            sweep_cgroups(base, &self.daemon, &keep);
        }
        // Gone with a reboot, or with the session that it belonged to.
        places.retain(|base| base.is_dir());
        self.write_places(&places);
    }
}

/// The largest file that a VMM may write, whose guest has a disk of so many bytes, where nobody's
/// overlays may take more than `most`.
pub(crate) fn file_max(disk: Option<ByteCount>, most: Option<ByteCount>) -> ByteCount {
    let overlay = [disk.map(overlay_max), most].into_iter().flatten().min();
    overlay.unwrap_or_default().max(limit::DEVICE_STATE_MAX)
}

/// What all overlays that a sandbox writes may take together. The merge of all frozen ones, the one
/// that a branch has just frozen and the next one take no more, so a guest that keeps to the size
/// of its disk never gets there.
pub(crate) fn disk_max(disk: ByteCount, most: Option<ByteCount>) -> ByteCount {
    let enough = ByteCount::new(overlay_max(disk).get().saturating_mul(3));
    most.map_or(enough, |most| most.min(enough))
}

/// What one overlay of a disk can come to take: all its data, and the tables of the format.
fn overlay_max(disk: ByteCount) -> ByteCount {
    disk + limit::OVERLAY_OVERHEAD + ByteCount::new(disk.get() / 1024)
}

/// Twice its RAM, although a page is charged once: what is left bounds VMMs that were taken over,
/// and ends no guest for what its VMM needs at times.
fn enough_memory(guest: ByteCount) -> ByteCount {
    guest + guest + limit::VMM_MEMORY_OVERHEAD
}

/// Refuses a configuration that this host cannot keep.
fn require(
    cgroups: &Cgroups,
    most: &SandboxLimits,
    isolation: Isolation,
) -> Result<(), EngineError> {
    let unavailable = |option, reason| EngineError::LimitUnavailable { option, reason };
    let needs = |is_set: bool, option, controller| match cgroups.require(controller) {
        Err(error) if is_set => Err(unavailable(option, error.to_string())),
        _ => Ok(()),
    };
    needs(most.memory.is_some(), "sandbox_max_memory_mib", Controller::Memory)?;
    needs(most.millicpus.is_some(), "sandbox_max_cpus", Controller::Cpu)?;
    if most.disk.is_some() && isolation == Isolation::None {
        let reason = "it needs confined VMMs, and this daemon's are plain processes".to_owned();
        return Err(unavailable("sandbox_max_disk_mib", reason));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const MIB: ByteCount = ByteCount::from_mib(1);

    fn asking(mebibytes: u64) -> SandboxOptions {
        let memory_limit = Some(ByteCount::from_mib(mebibytes));
        SandboxOptions { memory_limit, ..SandboxOptions::default() }
    }

    fn confiner(state: &Path, cgroups: Cgroups) -> Confiner {
        Confiner {
            cgroups,
            networks: OnceLock::new(),
            daemon: "x".to_owned(),
            places: state.join("memory-groups"),
            remembered: Once::new(),
            most: SandboxLimits::default(),
        }
    }

    #[test]
    fn a_sandbox_is_refused_and_not_started_without_what_it_asks_for() {
        let state = tempfile::tempdir().unwrap();
        let confiner = confiner(state.path(), Cgroups::none("it is a test"));
        let free = InheritedLimits::default();
        assert!(confiner.permit(SandboxOptions::default(), &free).is_ok());
        let error = confiner.permit(asking(64), &free).unwrap_err();
        assert!(matches!(error, EngineError::MemoryLimitUnavailable { .. }), "{error}");
        confiner.networks.set(Err("not permitted".to_owned())).unwrap();
        let own = SandboxOptions { own_network: true, ..SandboxOptions::default() };
        let error = confiner.permit(own, &free).unwrap_err();
        assert!(matches!(error, EngineError::OwnNetworkUnavailable { .. }), "{error}");
        let none = confiner.limits(None, MIB, 1);
        assert_eq!(none, CgroupLimits::default(), "nobody says what is not so");
    }

    #[test]
    fn limits_are_inherited_and_cannot_be_shed() {
        let state = tempfile::tempdir().unwrap();
        let confiner = confiner(state.path(), Cgroups::at(state.path().to_owned(), "x"));
        confiner.networks.set(Ok(())).unwrap();
        let inherited = InheritedLimits { memory: Some(MIB + MIB), own_network: true };
        let silent = confiner.permit(SandboxOptions::default(), &inherited).unwrap();
        assert_eq!((silent.memory_limit, silent.own_network), (inherited.memory, true));
        assert_eq!(confiner.permit(asking(1), &inherited).unwrap().memory_limit, Some(MIB));
        let refused = confiner.permit(asking(3), &inherited).unwrap_err().to_string();
        assert!(refused.contains("memory_limit_mib: 3.0 MiB is more than 2.0 MiB of"), "{refused}");
    }

    #[test]
    fn the_least_of_what_is_enough_asked_for_and_allowed_holds() {
        let state = tempfile::tempdir().unwrap();
        let mut confiner = confiner(state.path(), Cgroups::at(state.path().to_owned(), "x"));
        let memory = |confiner: &Confiner, asked: Option<u64>| {
            confiner.limits(asked.map(ByteCount::from_mib), ByteCount::from_mib(100), 2).memory
        };
        let mib = |count| Some(ByteCount::from_mib(count));
        assert_eq!(memory(&confiner, None), mib(712));
        assert_eq!(memory(&confiner, Some(9999)), mib(712), "more is of no use to it");
        assert_eq!(memory(&confiner, Some(96)), mib(96));
        assert_eq!(confiner.file_max(mib(1 << 10)), ByteCount::from_mib(1024 + 64 + 1));
        confiner.most = SandboxLimits { memory: mib(300), disk: mib(200), millicpus: None };
        assert_eq!((memory(&confiner, None), memory(&confiner, Some(96))), (mib(300), mib(96)));
        assert_eq!(confiner.file_max(mib(1 << 10)), ByteCount::from_mib(200));
        assert_eq!(confiner.file_max(None), ByteCount::from_mib(200));
        assert_eq!(disk_max(ByteCount::from_mib(1 << 10), None), ByteCount::from_mib(3 * 1089));
        assert_eq!(disk_max(ByteCount::from_mib(1 << 10), mib(200)), ByteCount::from_mib(200));
        let free = InheritedLimits::default();
        let refused = confiner.permit(asking(301), &free).unwrap_err().to_string();
        assert!(refused.contains("`sandbox_max_memory_mib`"), "{refused}");
    }

    #[test]
    fn a_configuration_that_this_host_cannot_keep_is_refused_by_name() {
        let none = Cgroups::none("it is a test");
        let refused =
            |most: SandboxLimits| require(&none, &most, Isolation::None).unwrap_err().to_string();
        let free = SandboxLimits::default();
        assert!(require(&none, &free, Isolation::None).is_ok());
        let memory = refused(SandboxLimits { memory: Some(MIB), ..free });
        assert!(memory.contains("sandbox_max_memory_mib: no memory limit"), "{memory}");
        let cpus = refused(SandboxLimits { millicpus: Some(1), ..free });
        assert!(cpus.contains("sandbox_max_cpus: no cpu limit"), "{cpus}");
        let disk = SandboxLimits { disk: Some(MIB), ..free };
        assert!(refused(disk).contains("sandbox_max_disk_mib: "));
        assert!(require(&none, &disk, Isolation::Namespaces).is_ok());
    }

    #[test]
    fn groups_of_an_earlier_daemon_are_found_wherever_it_was_started() {
        let state = tempfile::tempdir().unwrap();
        let bases = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let groups = bases.each_ref().map(|base| {
            let confiner = confiner(state.path(), Cgroups::at(base.path().to_owned(), "x"));
            let plan = confiner.cgroup(&SandboxId::random(), CgroupLimits::default()).unwrap();
            let group = plan.paths().next().unwrap().to_owned();
            fs::create_dir(&group).unwrap();
            group
        });
        assert_ne!(groups[0].parent(), groups[1].parent());
        let next = confiner(state.path(), Cgroups::none("it is a test"));
        next.sweep(|| groups[1..].to_vec());
        assert!(!groups[0].exists() && groups[1].exists());
        next.sweep(Vec::new);
        assert!(!groups[1].exists());
    }
}
