//! Defects that can be built in on purpose, so that a test of consistency can show that it would
//! notice them.

/// A way to tear a capture; each strikes so rarely that the guest lives to tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// Some of the pages written between arming and the pause are not caught up with.
    StaleDirtySet,
    /// Some of the pages that fault are released before they are copied.
    ReleaseBeforeCapture,
    /// One page is not captured.
    SkippedPage,
    /// The disk is cut only after the guest has resumed. Not the capture's: the branch's.
    LateDisk,
}

impl Flaw {
    /// Whether `chosen` is this defect. Always false, and optimized away, in programs that are
    /// compiled without the feature `flaws`.
    #[must_use]
    #[inline]
    pub fn is_built_in(self, chosen: Option<Self>) -> bool {
        cfg!(feature = "flaws") && chosen == Some(self)
    }
}
