//! How large the machine of a guest may be.

use crate::{ByteCount, limit};

/// RAM and virtual CPUs of a guest, within what forkd supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MachineSize {
    memory: ByteCount,
    vcpus: u32,
}

/// No guest can be that large, or that small.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MachineSizeError {
    /// Its RAM.
    #[error(
        "a guest has {min} to {max} MiB of memory, in whole MiB, not {given}",
        min = limit::MEM_SIZE_MIB_MIN,
        max = limit::MEM_SIZE_MIB_MAX,
        given = .0
    )]
    Memory(ByteCount),
    /// Its virtual CPUs.
    #[error("a guest has 1 to {max} virtual CPUs, not {given}", max = limit::VCPUS_MAX, given = .0)]
    Vcpus(u32),
}

impl MachineSize {
    /// `memory` is whole mebibytes.
    ///
    /// # Errors
    /// Names what is out of bounds.
    pub fn new(memory: ByteCount, vcpus: u32) -> Result<Self, MachineSizeError> {
        let mib = memory.get() >> 20;
        let is_whole = ByteCount::from_mib(mib) == memory;
        if !is_whole || !(limit::MEM_SIZE_MIB_MIN..=limit::MEM_SIZE_MIB_MAX).contains(&mib) {
            return Err(MachineSizeError::Memory(memory));
        }
        if !(1..=limit::VCPUS_MAX).contains(&vcpus) {
            return Err(MachineSizeError::Vcpus(vcpus));
        }
        Ok(Self { memory, vcpus })
    }

    /// Guest RAM.
    #[must_use]
    pub const fn memory(self) -> ByteCount {
        self.memory
    }

    /// Virtual CPUs.
    #[must_use]
    pub const fn vcpus(self) -> u32 {
        self.vcpus
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_out_of_bounds_is_named() {
        let mib = ByteCount::from_mib;
        let size = MachineSize::new(mib(64), 64).unwrap();
        assert_eq!((size.memory(), size.vcpus()), (mib(64), 64));
        assert!(MachineSize::new(mib(1 << 20), 1).is_ok());
        for memory in [mib(63), mib((1 << 20) + 1), ByteCount::new((64 << 20) + 4096)] {
            assert_eq!(MachineSize::new(memory, 1), Err(MachineSizeError::Memory(memory)));
        }
        for vcpus in [0, 65] {
            assert_eq!(MachineSize::new(mib(64), vcpus), Err(MachineSizeError::Vcpus(vcpus)));
        }
        let words = MachineSizeError::Memory(mib(1)).to_string();
        assert_eq!(words, "a guest has 64 to 1048576 MiB of memory, in whole MiB, not 1.0 MiB");
    }
}
