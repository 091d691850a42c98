//! What is known of the pages of a protected guest: which may have been written since they were
//! protected, and which are wanted by the capture that is under way.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forkd_types::{PageCount, PageIndex, PageRun};

use crate::bitmap::PageBitmap;

/// Faults that can be noted without allocating.
pub(crate) const FAULTS_RESERVED: usize = 16 * 1024;

/// The state that the capture's thread shares with whoever closes the dirty set.
#[derive(Clone)]
pub(crate) struct SharedWatch(Arc<Mutex<Watch>>);

impl SharedWatch {
    pub(crate) fn new(pages: PageCount) -> Self {
        Self(Arc::new(Mutex::new(Watch {
            tracks: false,
            open: PageBitmap::new(pages),
            dirty: PageBitmap::new(pages),
            recent: Vec::with_capacity(FAULTS_RESERVED),
            wanted: None,
            also: None,
            streams: Streams::new(pages),
        })))
    }

    /// Held for a batch of faults by the thread, and by others for what the pause window does;
    /// whoever holds it waits for nobody.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Watch> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See [`SharedWatch`].
pub(crate) struct Watch {
    /// All pages but `open` are protected, and have not been written since the last capture.
    pub(crate) tracks: bool,
    /// Pages that are not protected: written, or released beside one that was.
    pub(crate) open: PageBitmap,
    /// The dirty set of the next capture as it was known when all pages were protected.
    pub(crate) dirty: PageBitmap,
    /// What was opened since then, in the order of the faults.
    pub(crate) recent: Vec<PageRun>,
    /// The closed dirty set of the capture under way.
    pub(crate) wanted: Option<Arc<PageBitmap>>,
    /// Pages that it shall have besides. The guest is paused until they are copied.
    pub(crate) also: Option<Arc<PageBitmap>>,
    streams: Streams,
}

impl Watch {
    /// Begins a new count: what has been open so far, as a set of its own.
    pub(crate) fn take_open(&mut self) -> PageBitmap {
        self.recent.clear();
        self.open.take()
    }

    /// What was opened since the capture was armed, ascending. The count begins anew.
    pub(crate) fn take_recent(&mut self) -> Vec<PageRun> {
        let mut recent = std::mem::take(&mut self.recent);
        recent.sort_unstable_by_key(|run| run.start);
        recent.iter().for_each(|run| self.open.remove_run(*run));
        recent
    }

    /// Notes a write to `page`. Returns the pages to release, among them this one.
    pub(crate) fn note_write(&mut self, page: PageIndex) -> PageRun {
        let widest = if self.wanted.is_some() { WIDEST_CAPTURED } else { WIDEST };
        let run = self.streams.run_from(page, widest);
        self.open.insert_run(run);
        self.recent.push(run);
        run
    }
}

/// Pages released at once for a guest that writes on and on: 2 MiB.
const WIDEST: u64 = 512;
/// The same while pages must be copied before they are released: the guest waits for 64 KiB.
const WIDEST_CAPTURED: u64 = 16;
/// Sequential writers that are told apart.
const STREAMS: usize = 8;

/// Read-ahead for writes: a guest that fills a buffer faults at each page of it, one after the
/// other. Where a fault follows the last one, twice as many pages are released at once. Pages that
/// are released and then not written are found to be unchanged when they are captured.
struct Streams {
    pages: u64,
    slots: [Stream; STREAMS],
    /// The slot that is given up next.
    oldest: usize,
}

#[derive(Clone, Copy)]
struct Stream {
    /// Where the next fault of this writer would be.
    next: u64,
    /// Pages released at its last fault.
    width: u64,
}

impl Streams {
    fn new(pages: PageCount) -> Self {
        let none = Stream { next: u64::MAX, width: 0 };
        Self { pages: pages.get(), slots: [none; STREAMS], oldest: 0 }
    }

    fn run_from(&mut self, page: PageIndex, widest: u64) -> PageRun {
        let start = page.get();
        let known = self.slots.iter_mut().find(|slot| slot.next == start);
        let stream = match known {
            Some(stream) => {
                stream.width *= 2;
                stream
            }
            None => {
                let stream = &mut self.slots[self.oldest];
                self.oldest = (self.oldest + 1) % STREAMS;
                stream.width = 1;
                stream
            }
        };
        stream.width = stream.width.min(widest).min(self.pages.saturating_sub(start)).max(1);
        stream.next = start + stream.width;
        PageRun::new(start, stream.width)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults_of(watch: &SharedWatch, pages: impl IntoIterator<Item = u64>) -> usize {
        let mut watch = watch.lock();
        let mut faults = 0;
        for page in pages.into_iter().map(PageIndex::new) {
            if !watch.open.contains(page) {
                let run = watch.note_write(page);
                assert!(run.contains(page) && run.end().get() <= 4096, "{run:?}");
                faults += 1;
            }
        }
        faults
    }

    #[test]
    fn a_sequential_writer_faults_ever_more_rarely_even_beside_another_one() {
        let watch = SharedWatch::new(PageCount::new(4096));
        let two = (0..2000u64).flat_map(|step| [step, 2048 + step]);
        let faults = faults_of(&watch, two);
        assert!(faults <= 2 * 14, "{faults} faults for 4000 pages");
    }

    #[test]
    fn a_scattered_writer_opens_no_page_that_it_does_not_write() {
        let watch = SharedWatch::new(PageCount::new(4096));
        let pages = (0..300u64).map(|step| step * 1201 % 4093 / 3 * 3);
        let distinct: std::collections::BTreeSet<u64> = pages.clone().collect();
        assert_eq!(faults_of(&watch, pages), distinct.len());
        assert_eq!(watch.lock().open.count(), PageCount::new(distinct.len() as u64));
    }

    #[test]
    fn while_pages_must_be_copied_first_few_are_released_at_once() {
        let watch = SharedWatch::new(PageCount::new(4096));
        watch.lock().wanted = Some(Arc::new(PageBitmap::new(PageCount::new(4096))));
        let faults = faults_of(&watch, 0..4096);
        assert!(faults >= 4096 / 16, "{faults}");
    }
}
