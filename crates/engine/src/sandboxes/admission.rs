//! How much there may be at once: sandboxes, their guest RAM, branches.
//!
//! A place is taken before any work is done and given back when its holder is dropped, so two
//! requests cannot both take the last one. Guest RAM counts in full: it is what sandboxes may come
//! to use, although children of one snapshot share all that they have not written.

use std::fmt::Display;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forkd_types::{ByteCount, limit};

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
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            sandboxes: limit::SANDBOXES_DEFAULT,
            guest_memory: None,
            branches: limit::BRANCHES_AT_ONCE_DEFAULT,
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
    sandboxes: usize,
    guest_memory: ByteCount,
    branches: usize,
}

impl Admission {
    pub(crate) fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self { limits, used: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Places for `count` sandboxes with so much guest RAM each: all, or none.
    pub(crate) fn sandboxes(
        self: &Arc<Self>,
        count: u32,
        memory: ByteCount,
    ) -> Result<Vec<Place>, EngineError> {
        let asked = usize::try_from(count).unwrap_or(usize::MAX);
        let memory_asked = ByteCount::new(memory.get().saturating_mul(u64::from(count)));
        let mut used = self.lock();
        let (in_use, max) = (used.sandboxes, self.limits.sandboxes);
        if asked > max.saturating_sub(in_use) {
            return Err(reached("max_sandboxes", max, in_use, asked));
        }
        let in_use = used.guest_memory;
        if let Some(max) = self.limits.guest_memory
            && memory_asked.get() > max.get().saturating_sub(in_use.get())
        {
            return Err(reached("max_guest_memory_mib", max, in_use, memory_asked));
        }
        used.sandboxes += asked;
        used.guest_memory = in_use + memory_asked;
        drop(used);
        Ok((0..count).map(|_| Place { admission: Arc::clone(self), memory }).collect())
    }

    /// The place of a sandbox that is there already: taken over from an earlier daemon, which may
    /// have allowed more.
    pub(crate) fn occupied(self: &Arc<Self>, memory: ByteCount) -> Place {
        let mut used = self.lock();
        used.sandboxes += 1;
        used.guest_memory += memory;
        drop(used);
        Place { admission: Arc::clone(self), memory }
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

fn reached<T: Display>(limit: &'static str, max: T, in_use: T, asked: T) -> EngineError {
    let (max, in_use, asked) = (max.to_string(), in_use.to_string(), asked.to_string());
    EngineError::LimitReached { limit, max, in_use, asked }
}

/// The place of one sandbox.
#[derive(Debug)]
pub(crate) struct Place {
    admission: Arc<Admission>,
    memory: ByteCount,
}

impl Place {
    /// The VM is gone, the sandbox is still there.
    pub(crate) fn give_back_memory(&mut self) {
        let memory = std::mem::take(&mut self.memory);
        let mut used = self.admission.lock();
        used.guest_memory = used.guest_memory - memory;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.give_back_memory();
        self.admission.lock().sandboxes -= 1;
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
        Admission::new(Limits { sandboxes, guest_memory, branches })
    }

    #[test]
    fn all_are_admitted_or_none_and_places_come_back() {
        let admission = limits(3, None, 1);
        let two = admission.sandboxes(2, MIB).unwrap();
        let refusal = admission.sandboxes(2, MIB).unwrap_err().to_string();
        for figure in ["`max_sandboxes`", "of 3 ", "2 in use", "2 more"] {
            assert!(refusal.contains(figure), "{figure}: {refusal}");
        }
        let third = admission.sandboxes(1, MIB).unwrap();
        assert!(admission.sandboxes(1, MIB).is_err());
        drop(two);
        assert_eq!(admission.sandboxes(2, MIB).unwrap().len(), 2);
        drop(third);
        assert!(admission.sandboxes(3, MIB).is_ok());
    }

    #[test]
    fn guest_memory_counts_in_full_and_comes_back_with_the_vm() {
        let admission = limits(100, Some(10), 1);
        let mut places = admission.sandboxes(2, ByteCount::from_mib(4)).unwrap();
        let refusal = admission.sandboxes(1, ByteCount::from_mib(4)).unwrap_err().to_string();
        assert!(refusal.contains("`max_guest_memory_mib`"), "{refusal}");
        assert!(admission.sandboxes(1, ByteCount::from_mib(2)).is_ok());
        places[0].give_back_memory();
        let other = admission.sandboxes(1, ByteCount::from_mib(4)).unwrap();
        drop((places, other));
        assert!(admission.sandboxes(1, ByteCount::from_mib(10)).is_ok(), "nothing counts twice");
        assert!(admission.sandboxes(u32::MAX, ByteCount::from_mib(u64::from(u32::MAX))).is_err());
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
