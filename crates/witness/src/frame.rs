//! Where pages are in guest RAM, as the kernel tells root.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::page::Page;

/// In a word of `/proc/PID/pagemap`: the page is present.
const PRESENT: u64 = 1 << 63;
/// In such a word: the number of its frame; 0 for those who may not know it.
const FRAME: u64 = (1 << 55) - 1;

/// The frame of each page.
pub(crate) fn frames<'a>(pages: impl Iterator<Item = &'a Page>) -> io::Result<Vec<u64>> {
    let pagemap = File::open("/proc/self/pagemap")?;
    let frame = |page: &Page| {
        let number = std::ptr::from_ref(page).addr() / size_of::<Page>();
        let mut word = [0; size_of::<u64>()];
        pagemap.read_exact_at(&mut word, (number * size_of::<u64>()) as u64)?;
        let word = u64::from_le_bytes(word);
        let known = word & PRESENT != 0 && word & FRAME != 0;
        if known { Ok(word & FRAME) } else { Err(io::ErrorKind::PermissionDenied.into()) }
    };
    pages.map(frame).collect()
}
