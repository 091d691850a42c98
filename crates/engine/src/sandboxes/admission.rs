//! How much there may be at once, in all and of each owner: sandboxes, their guest RAM, branches.
//!
//! A place is taken before any work is done and given back when its holder is dropped, so two
//! requests cannot both take the last one. Guest RAM counts in full: it is what sandboxes may come
//! to use, although children of one snapshot share all that they have not written.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forkd_types::{ByteCount, Owner, limit};

use crate::EngineError;

/// How much there may be at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Sandboxes that exist, dead ones among them.
    pub sandboxes: usize,
    /// Guest RAM of all sandboxes whose VM is there; no limit when absent.
    pub guest_memory: Option<ByteCount>,
    /// Branches under way or waiting for their turn.
    pub branches: usize,
    /// VMMs that stand by for sandboxes to come.
    pub standby: usize,
    /// How much of it one owner may have.
    pub each_owner: OwnerLimits,
    /// How much the VMM of one sandbox may use.
    pub each_sandbox: SandboxLimits,
}

/// How much of the host the VMM of one sandbox may use at most. Where absent, as much as its guest
/// can come to need. Nobody can ask for more.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SandboxLimits {
    /// Memory and swap.
    pub memory: Option<ByteCount>,
    /// Time of the processors, in thousandths of one.
    pub millicpus: Option<u32>,
    /// Each overlay of its disk.
    pub disk: Option<ByteCount>,
}

/// How much one owner may have at once; no limit where absent. Admins are owners like others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OwnerLimits {
    /// Sandboxes that exist, dead ones among them.
    pub sandboxes: Option<usize>,
    /// Guest RAM of its sandboxes whose VM is there.
    pub guest_memory: Option<ByteCount>,
    /// What its snapshots occupy.
    pub disk: Option<ByteCount>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            sandboxes: limit::SANDBOXES_DEFAULT,
            guest_memory: None,
            branches: limit::BRANCHES_AT_ONCE_DEFAULT,
            standby: 0,
            each_owner: OwnerLimits::default(),
            each_sandbox: SandboxLimits::default(),
        }
    }
}

/// Who is there.
#[derive(Debug)]
pub(crate) struct Admission {
    limits: Limits,
    used: Mutex<Used>,
}

#[derive(Debug, Default)]
struct Used {
    all: Share,
    branches: usize,
    of_owners: BTreeMap<Owner, Share>,
}

/// What is in use of what is shared out.
#[derive(Debug, Clone, Copy, Default)]
struct Share {
    sandboxes: usize,
    guest_memory: ByteCount,
}

impl Used {
    /// Somebody has come to use more.
    fn add(&mut self, owner: &Owner, more: Share) {
        for share in [&mut self.all, self.of_owners.entry(owner.clone()).or_default()] {
            share.sandboxes += more.sandboxes;
            share.guest_memory += more.guest_memory;
        }
    }

    /// Somebody uses so much less.
    fn take(&mut self, owner: &Owner, less: Share) {
        for share in [Some(&mut self.all), self.of_owners.get_mut(owner)].into_iter().flatten() {
            share.sandboxes -= less.sandboxes;
            share.guest_memory = share.guest_memory - less.guest_memory;
        }
        // Nobody can make this grow by making owners.
        self.of_owners.retain(|_, share| share.sandboxes > 0);
    }
}

/// How much of something there may be.
#[derive(Debug, Clone, Copy)]
struct Maximum {
    sandboxes: Option<usize>,
    sandboxes_name: &'static str,
    guest_memory: Option<ByteCount>,
    guest_memory_name: &'static str,
}

impl Maximum {
    /// Refuses `asked` beside `used` when that would be more.
    fn check(&self, used: Share, asked: Share) -> Result<(), EngineError> {
        let (in_use, wanted) = (used.sandboxes, asked.sandboxes);
        if let Some(max) = self.sandboxes
            && wanted > max.saturating_sub(in_use)
        {
            return Err(reached(self.sandboxes_name, max, in_use, wanted));
        }
        let (in_use, wanted) = (used.guest_memory, asked.guest_memory);
        if let Some(max) = self.guest_memory
            && wanted.get() > max.get().saturating_sub(in_use.get())
        {
            return Err(reached(self.guest_memory_name, max, in_use, wanted));
        }
        Ok(())
    }
}

impl Admission {
    pub(crate) fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self { limits, used: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Places for `count` sandboxes of `owner` with so much guest RAM each: all, or none.
    pub(crate) fn sandboxes(
        self: &Arc<Self>,
        owner: &Owner,
        count: u32,
        memory: ByteCount,
    ) -> Result<Vec<Place>, EngineError> {
        let asked = Share {
            sandboxes: usize::try_from(count).unwrap_or(usize::MAX),
            guest_memory: ByteCount::new(memory.get().saturating_mul(u64::from(count))),
        };
        let of_owner = self.limits.each_owner;
        let of_owner = Maximum {
            sandboxes: of_owner.sandboxes,
            sandboxes_name: "owner_max_sandboxes",
            guest_memory: of_owner.guest_memory,
            guest_memory_name: "owner_max_guest_memory_mib",
        };
        let of_all = Maximum {
            sandboxes: Some(self.limits.sandboxes),
            sandboxes_name: "max_sandboxes",
            guest_memory: self.limits.guest_memory,
            guest_memory_name: "max_guest_memory_mib",
        };
        let mut used = self.lock();
        // First what is the owner's own business.
        of_owner.check(used.of_owners.get(owner).copied().unwrap_or_default(), asked)?;
        of_all.check(used.all, asked)?;
        used.add(owner, asked);
        drop(used);
        Ok((0..count).map(|_| self.place(owner, memory)).collect())
    }

    fn place(self: &Arc<Self>, owner: &Owner, memory: ByteCount) -> Place {
        Place { admission: Arc::clone(self), owner: owner.clone(), memory }
    }

    /// The place of a sandbox that is there already: taken over from an earlier daemon, which may
    /// have allowed more.
    pub(crate) fn occupied(self: &Arc<Self>, owner: &Owner, memory: ByteCount) -> Place {
        self.lock().add(owner, Share { sandboxes: 1, guest_memory: memory });
        self.place(owner, memory)
    }

    /// Whether a branch is under way, or waits for its turn.
    pub(crate) fn has_branches(&self) -> bool {
        self.lock().branches > 0
    }

    /// A place for a branch.
    pub(crate) fn branch(self: &Arc<Self>) -> Result<BranchPlace, EngineError> {
        let mut used = self.lock();
        let max = self.limits.branches;
        if used.branches >= max {
            return Err(reached("max_branches", max, used.branches, 1));
        }
        used.branches += 1;
        drop(used);
        Ok(BranchPlace { admission: Arc::clone(self) })
    }
}

pub(crate) fn reached<T: Display>(limit: &'static str, max: T, in_use: T, asked: T) -> EngineError {
    let (max, in_use, asked) = (max.to_string(), in_use.to_string(), asked.to_string());
    EngineError::LimitReached { limit, max, in_use, asked }
}

/// The place of one sandbox.
#[derive(Debug)]
pub(crate) struct Place {
    admission: Arc<Admission>,
    owner: Owner,
    memory: ByteCount,
}

impl Place {
    /// The VM is gone, the sandbox is still there.
    pub(crate) fn give_back_memory(&mut self) {
        let guest_memory = std::mem::take(&mut self.memory);
        self.admission.lock().take(&self.owner, Share { sandboxes: 0, guest_memory });
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.give_back_memory();
        self.admission.lock().take(&self.owner, Share { sandboxes: 1, ..Share::default() });
    }
}

/// The place of one branch.
#[derive(Debug)]
pub(crate) struct BranchPlace {
    admission: Arc<Admission>,
}

impl Drop for BranchPlace {
    fn drop(&mut self) {
        self.admission.lock().branches -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: ByteCount = ByteCount::from_mib(1);

    fn limits(sandboxes: usize, mebibytes: Option<u64>, branches: usize) -> Arc<Admission> {
        let guest_memory = mebibytes.map(ByteCount::from_mib);
        Admission::new(Limits { sandboxes, guest_memory, branches, ..Limits::default() })
    }

    #[test]
    fn all_are_admitted_or_none_and_places_come_back() {
        let admission = limits(3, None, 1);
        let two = admission.sandboxes(&Owner::default(), 2, MIB).unwrap();
        let refusal = admission.sandboxes(&Owner::default(), 2, MIB).unwrap_err().to_string();
        for figure in ["`max_sandboxes`", "of 3 ", "2 in use", "2 more"] {
            assert!(refusal.contains(figure), "{figure}: {refusal}");
        }
        let third = admission.sandboxes(&Owner::default(), 1, MIB).unwrap();
        assert!(admission.sandboxes(&Owner::default(), 1, MIB).is_err());
        drop(two);
        assert_eq!(admission.sandboxes(&Owner::default(), 2, MIB).unwrap().len(), 2);
        drop(third);
        assert!(admission.sandboxes(&Owner::default(), 3, MIB).is_ok());
    }

    #[test]
    fn guest_memory_counts_in_full_and_comes_back_with_the_vm() {
        let admission = limits(100, Some(10), 1);
        let mut places = admission.sandboxes(&Owner::default(), 2, ByteCount::from_mib(4)).unwrap();
        let refusal = admission
            .sandboxes(&Owner::default(), 1, ByteCount::from_mib(4))
            .unwrap_err()
            .to_string();
        assert!(refusal.contains("`max_guest_memory_mib`"), "{refusal}");
        assert!(admission.sandboxes(&Owner::default(), 1, ByteCount::from_mib(2)).is_ok());
        places[0].give_back_memory();
        let other = admission.sandboxes(&Owner::default(), 1, ByteCount::from_mib(4)).unwrap();
        drop((places, other));
        assert!(
            admission.sandboxes(&Owner::default(), 1, ByteCount::from_mib(10)).is_ok(),
            "nothing counts twice"
        );
        assert!(
            admission
                .sandboxes(&Owner::default(), u32::MAX, ByteCount::from_mib(u64::from(u32::MAX)))
                .is_err()
        );
    }

    #[test]
    fn an_owner_who_has_its_share_leaves_the_rest_to_others() {
        let each_owner = OwnerLimits {
            sandboxes: Some(2),
            guest_memory: Some(ByteCount::from_mib(10)),
            disk: None,
        };
        let admission = Admission::new(Limits { each_owner, ..Limits::default() });
        let [ann, bob]: [Owner; 2] = ["ann", "bob"].map(|name| name.parse().unwrap());
        let mut places = admission.sandboxes(&ann, 2, MIB).unwrap();
        let refusal = admission.sandboxes(&ann, 1, MIB).unwrap_err().to_string();
        for figure in ["`owner_max_sandboxes`", "of 2 ", "2 in use", "1 more"] {
            assert!(refusal.contains(figure), "{figure}: {refusal}");
        }
        assert!(admission.sandboxes(&bob, 2, MIB).is_ok());
        let refusal = admission.sandboxes(&bob, 1, ByteCount::from_mib(11)).unwrap_err();
        assert!(refusal.to_string().contains("`owner_max_guest_memory_mib`"), "{refusal}");
        places[0].give_back_memory();
        assert!(admission.sandboxes(&ann, 1, MIB).is_err(), "a dead one still counts");
        places.pop();
        let big = ByteCount::from_mib(10);
        assert!(admission.sandboxes(&ann, 1, big).is_ok(), "the dead one has no memory");
        drop((places, admission.occupied(&ann, big)));
        assert!(admission.lock().of_owners.is_empty(), "nothing is kept of who has nothing");
    }

    #[test]
    fn branches_at_once_are_bounded() {
        let admission = limits(1, None, 2);
        let (first, _second) = (admission.branch().unwrap(), admission.branch().unwrap());
        let refusal = admission.branch().unwrap_err().to_string();
        assert!(refusal.contains("`max_branches`"), "{refusal}");
        drop(first);
        assert!(admission.branch().is_ok());
    }
}
