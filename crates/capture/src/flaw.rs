//! Defects that can be built in on purpose, so that a test of consistency can show that it would
//! notice them.

/// A way to tear a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// Pages written between arming and the pause are not caught up with.
    StaleDirtySet,
    /// A page that faults is released before it is copied.
    ReleaseBeforeCapture,
    /// One page of each stretch is not captured.
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
