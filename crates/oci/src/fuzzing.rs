//! Parsers of foreign bytes, for the search for input that breaks them.

use crate::archive::Archive;
use crate::ext4::Plan;
use crate::layer::{Totals, merge_archive};
pub use crate::manifest::fuzz_documents;
use crate::source::Watch;
use crate::tree::Tree;

struct Nobody;
impl Watch for Nobody {}

/// Whether these bytes are an archive that can be read to its end.
#[must_use]
pub fn is_archive(input: &[u8]) -> bool {
    let mut archive = Archive::new(input);
    while let Ok(entry) = archive.next() {
        if entry.is_none() {
            return true;
        }
    }
    false
}

/// An archive as it may come: it is refused, or merged into a tree whose disk has a plan or is
/// refused.
pub fn fuzz_archive(input: &[u8]) {
    let (mut tree, mut archive) = (Tree::new(), Archive::new(input));
    let mut totals = Totals::default();
    if merge_archive(&mut archive, 0, "it", &mut tree, &mut totals, &Nobody).is_ok()
        && let Ok(plan) = Plan::new(&tree, 0, "00")
    {
        assert!(plan.bytes().is_multiple_of(4096), "a disk has whole blocks");
    }
}
