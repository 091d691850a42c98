//! What the creator of a sandbox may want its VMM to be kept from: more memory than a limit, and
//! the host's network.
//!
//! Guarantees: a sandbox is not started without what was asked for; the groups of sandboxes that
//! are gone are removed at the next start at the latest.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use forkd_store::StoreError;
use forkd_sys::confine::try_network_namespace;
use forkd_types::SandboxId;
use forkd_vmm::{CgroupsUnavailable, Confinement, MemoryCgroups, MemoryLimit};

use crate::{EngineError, SandboxOptions};

/// Confines VMMs, as far as this host permits.
#[derive(Debug)]
pub(crate) struct Confiner {
    groups: Result<MemoryCgroups, CgroupsUnavailable>,
    networks: OnceLock<Result<(), String>>,
    daemon: String,
    /// Where the groups are that this daemon and earlier ones have made, one place a line. Another
    /// daemon may be started in another group.
    places: PathBuf,
}

impl Confiner {
    /// For the daemon that works in `state_dir`.
    pub(crate) fn open(state_dir: &Path) -> Result<Self, EngineError> {
        let directory = fs::metadata(state_dir).map_err(|source| StoreError::File {
            what: "look at",
            path: state_dir.to_owned(),
            source,
        })?;
        let daemon = format!("{:x}-{:x}", directory.dev(), directory.ino());
        let groups = MemoryCgroups::find(&daemon);
        match &groups {
            Ok(groups) => tracing::debug!(base = %groups.base().display(), "memory can be limited"),
            Err(error) => tracing::debug!(%error, "a request for a limit will be refused"),
        }
        let places = state_dir.join("memory-groups");
        Ok(Self { groups, networks: OnceLock::new(), daemon, places })
    }

    /// Refuses what cannot be done here.
    pub(crate) fn check(&self, options: &SandboxOptions) -> Result<(), EngineError> {
        if options.memory_limit.is_some() {
            self.groups()?;
        }
        if options.own_network {
            let networks = self
                .networks
                .get_or_init(|| try_network_namespace().map_err(|error| error.to_string()));
            if let Err(reason) = networks {
                return Err(EngineError::OwnNetworkUnavailable { reason: reason.clone() });
            }
        }
        Ok(())
    }

    fn groups(&self) -> Result<&MemoryCgroups, EngineError> {
        let refused = |error: &CgroupsUnavailable| EngineError::MemoryLimitUnavailable {
            reason: error.to_string(),
        };
        self.groups.as_ref().map_err(refused)
    }

    /// What the VMM of a new sandbox is kept from.
    pub(crate) fn of(
        &self,
        id: &SandboxId,
        options: &SandboxOptions,
    ) -> Result<Confinement, EngineError> {
        self.check(options)?;
        let memory = match options.memory_limit {
            None => None,
            Some(bytes) => {
                let groups = self.groups()?;
                self.remember(groups.base());
                Some(MemoryLimit { bytes, cgroup: groups.cgroup_of(id.as_str()) })
            }
        };
        Ok(Confinement { memory, own_network: options.own_network, jail: None })
    }

    /// So that a later daemon knows where to look for groups.
    fn remember(&self, base: &Path) {
        let mut known = self.known_places();
        if known.iter().any(|place| place == base) {
            return;
        }
        known.push(base.to_owned());
        self.write_places(&known);
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
            MemoryCgroups::at(base.clone(), &self.daemon).sweep(&keep);
        }
        // Gone with a reboot, or with the session that it belonged to.
        places.retain(|base| base.is_dir());
        self.write_places(&places);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forkd_types::ByteCount;

    fn limited() -> SandboxOptions {
        SandboxOptions { memory_limit: Some(ByteCount::from_mib(64)), ..SandboxOptions::default() }
    }

    fn confiner(state: &Path, base: Option<PathBuf>) -> Confiner {
        let mut confiner = Confiner::open(state).unwrap();
        let found = MemoryCgroups::find("x");
        confiner.groups = match base {
            Some(base) => Ok(MemoryCgroups::at(base, &confiner.daemon)),
            None => Err(found.err().unwrap_or_else(|| CgroupsUnavailable::because("it is a test"))),
        };
        confiner
    }

    #[test]
    fn a_sandbox_is_refused_and_not_started_without_what_it_asks_for() {
        let state = tempfile::tempdir().unwrap();
        let confiner = confiner(state.path(), None);
        assert!(confiner.check(&SandboxOptions::default()).is_ok());
        let id = SandboxId::random();
        for refused in [confiner.check(&limited()).err(), confiner.of(&id, &limited()).err()] {
            let error = refused.expect("a limit that nobody enforces");
            assert!(matches!(error, EngineError::MemoryLimitUnavailable { .. }), "{error}");
        }
        confiner.networks.set(Err("not permitted".to_owned())).unwrap();
        let own = SandboxOptions { own_network: true, ..SandboxOptions::default() };
        let error = confiner.check(&own).unwrap_err();
        assert!(matches!(error, EngineError::OwnNetworkUnavailable { .. }), "{error}");
    }

    #[test]
    fn groups_of_an_earlier_daemon_are_found_wherever_it_was_started() {
        let state = tempfile::tempdir().unwrap();
        let bases = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let ids = [(); 2].map(|()| SandboxId::random());
        let groups: Vec<PathBuf> = bases
            .iter()
            .zip(&ids)
            .map(|(base, id)| {
                let confiner = confiner(state.path(), Some(base.path().to_owned()));
                let group = confiner.of(id, &limited()).unwrap().memory.unwrap().cgroup;
                fs::create_dir(&group).unwrap();
                group
            })
            .collect();
        assert_ne!(groups[0].parent(), groups[1].parent());
        let next = confiner(state.path(), None);
        next.sweep(|| groups[1..].to_vec());
        assert!(!groups[0].exists() && groups[1].exists());
        next.sweep(Vec::new);
        assert!(!groups[1].exists());
    }
}
