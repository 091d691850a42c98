//! How much memory this host has left.

use std::fs;

use forkd_types::ByteCount;

/// With less, a host has no memory for what nobody has asked for. The first guests use up less.
pub const MEMORY_COMFORTABLE: ByteCount = ByteCount::from_mib(1024);

/// What programs can still have, by the text of `/proc/meminfo` (`proc(5)`).
#[must_use]
pub fn available_memory(meminfo: &str) -> Option<ByteCount> {
    let field = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = field.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(ByteCount::new(kibibytes << 10))
}

/// Whether this host has too little left.
pub(crate) fn is_short_of_memory() -> bool {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    available_memory(&meminfo).is_some_and(|available| available < MEMORY_COMFORTABLE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_is_understood_and_nothing_else() {
        let plenty = "MemTotal: 9 kB\nMemAvailable:   22644000 kB\n";
        assert_eq!(available_memory(plenty), Some(ByteCount::new(22_644_000 << 10)));
        for text in ["", "MemAvailable: 7 MB", "MemAvailable: x kB"] {
            assert_eq!(available_memory(text), None, "{text}");
        }
    }
}
