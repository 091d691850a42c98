//! What a capture is asked for.

use std::fmt;
use std::sync::Arc;

use forkd_types::PageRun;

use crate::{CaptureProbe, PageSink, PagesBelow};

/// When pages are copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Copy {
    /// Before the guest resumes.
    BeforeResume,
    /// After the guest resumed; pages are write-protected until they are copied.
    AfterResume,
}

/// One capture.
pub struct CapturePlan {
    /// When pages are copied.
    pub copy: Copy,
    /// Pages to capture after the dirty ones: those of the layers below, when the snapshot shall
    /// depend on no other. Only with [`Copy::BeforeResume`].
    pub also: Vec<PageRun>,
    /// Where they go.
    pub sink: Box<dyn PageSink>,
    /// What they are compared with. Unchanged pages are left out, unless the capture is to be
    /// complete (`also`): then they are only counted.
    pub below: Box<dyn PagesBelow>,
    /// Who looks on; [`NoProbe`](crate::NoProbe) but in tests.
    pub probe: Arc<dyn CaptureProbe>,
}

impl fmt::Debug for CapturePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CapturePlan").field("copy", &self.copy).finish_non_exhaustive()
    }
}
