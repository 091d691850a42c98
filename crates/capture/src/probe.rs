//! A view into a capture, for tests.

use forkd_types::{PageIndex, PageRun};

use crate::CaptureError;

/// Called where the order of a capture's steps keeps it of one instant. A test can break that order
/// there, to see that it notices; production uses [`NoProbe`].
pub trait CaptureProbe: Send + Sync {
    /// The guest is stopped. `writable`, what it has written since the capture was armed (and maybe
    /// pages between), is about to be protected. What is removed from it stays writable.
    fn before_protect(&self, writable: &mut Vec<PageRun>) {
        let _ = writable;
    }

    /// The guest runs, and waits to write to `page`, which is about to be copied and then released.
    /// `release` releases a page at once.
    ///
    /// # Errors
    /// An error ends the capture.
    fn before_copy(&self, page: PageIndex, release: &Release<'_>) -> Result<(), CaptureError> {
        let (_page, _release) = (page, release);
        Ok(())
    }
}

/// Lifts the protection of one page.
pub type Release<'a> = dyn Fn(PageIndex) -> Result<(), CaptureError> + 'a;

/// Nobody looks.
#[derive(Debug, Clone, Copy)]
pub struct NoProbe;

impl CaptureProbe for NoProbe {}
