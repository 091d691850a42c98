//! What captures may use of the host.

/// Abilities of the host's kernel. Captures use each where it is there and has a way without it;
/// leaving one out here forces that way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostFeatures {
    /// userfaultfd with write protection of shared memory (Linux 5.19, and permission). Without it
    /// pages can only be captured while the guest is paused.
    pub write_protect: bool,
    /// Protection of pages that are not present (Linux 6.4). Without it the dirty set is found in
    /// the pause, and anew by each capture.
    pub write_protect_unpopulated: bool,
    /// The `PAGEMAP_SCAN` ioctl (Linux 6.7). Without it page tables are read word by word.
    pub pagemap_scan: bool,
    /// The host has no swap. With swap the mark of a protected page cannot be told from a page that
    /// is swapped out, and the dirty set is found in the pause.
    pub no_swap: bool,
}

impl HostFeatures {
    /// Everything that is there.
    pub const ALL: Self = Self {
        write_protect: true,
        write_protect_unpopulated: true,
        pagemap_scan: true,
        no_swap: true,
    };

    /// Whether dirty pages can be told by the faults of their writes.
    pub(crate) fn can_track(self, uffd: &forkd_sys::uffd::Userfaultfd) -> bool {
        self.write_protect_unpopulated
            && uffd.protects_unpopulated()
            && self.no_swap
            && !host_has_swap()
    }
}

impl Default for HostFeatures {
    fn default() -> Self {
        Self::ALL
    }
}

/// Whether anonymous pages of any process can be in swap. Unknown counts as yes.
fn host_has_swap() -> bool {
    // A line of titles, then one line for each area.
    std::fs::read_to_string("/proc/swaps").map_or(true, |areas| areas.lines().count() > 1)
}
