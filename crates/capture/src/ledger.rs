//! What has been captured, and what it cost.

use std::io;
use std::time::Duration;

use forkd_types::{PAGE_BYTES, PageCount, PageIndex, PageRun, TimeHistogram};

use crate::bitmap::PageBitmap;
use crate::run::runs_within;
use crate::{PageSink, PagesBelow};

/// Which pages a capture found to be changed, by what they hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CapturedPages {
    /// Pages that reached the sink, as ascending runs.
    pub stored: Vec<PageRun>,
    /// Pages of zeros, which did not.
    pub zero: Vec<PageRun>,
}

/// Figures of one capture.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CaptureStats {
    /// Pages that may have been written, and were looked at.
    pub captured: PageCount,
    /// Those pages of the dirty set that hold what the layers below hold.
    pub unchanged: PageCount,
    /// Those that reached the sink; the others were changed to zeros.
    pub stored: PageCount,
    /// Pages of `captured` that are in the dirty set; the others were asked for besides.
    pub in_dirty_set: PageCount,
    /// Pages of `stored` that are in the dirty set and differ from what is below.
    pub dirty_stored: PageCount,
    /// Time that the sweep took for pages that are not in the dirty set; it comes to them last.
    pub beyond_dirty: Duration,
    /// Pages opened between arming and the pause; zero where the window scanned.
    pub written_since_armed: PageCount,
    /// Time to close the dirty set, in the pause window.
    pub protect: Duration,
    /// Write faults served.
    pub faults: u64,
    /// Median time from reading a fault to its release.
    pub fault_service_median: Option<Duration>,
    /// The longest such time.
    pub fault_service_max: Option<Duration>,
    /// All of them.
    pub fault_service: TimeHistogram,
}

/// What is done about pages that are as they are below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unchanged {
    /// They are left out: the layer is a difference.
    Dropped,
    /// They are counted, and stored: the layer is to be complete.
    Counted,
    /// Nobody asks: they are stored.
    Ignored,
}

/// Keeps account of captured pages, and hands them to the sink without those of zeros and those
/// that the layers below have already.
pub(crate) struct Ledger {
    captured: PageBitmap,
    stored: PageBitmap,
    zero: PageBitmap,
    stored_count: u64,
    unchanged_count: u64,
    /// Pages of zeros apart, those of the unchanged that were stored all the same.
    unchanged_stored: u64,
    treatment: Unchanged,
    sink: Box<dyn PageSink>,
    below: Box<dyn PagesBelow>,
    /// Reused answer of `below`.
    same: Vec<bool>,
}

const PAGE: usize = 4096;
const _: () = assert!(PAGE as u64 == PAGE_BYTES);

impl Ledger {
    pub(crate) fn new(
        pages: PageCount,
        sink: Box<dyn PageSink>,
        below: Box<dyn PagesBelow>,
        treatment: Unchanged,
    ) -> Self {
        Self {
            captured: PageBitmap::new(pages),
            stored: PageBitmap::new(pages),
            zero: PageBitmap::new(pages),
            stored_count: 0,
            unchanged_count: 0,
            unchanged_stored: 0,
            treatment,
            sink,
            below,
            same: Vec::new(),
        }
    }

    /// The first pages of `run` that have not been taken.
    pub(crate) fn first_missing(&self, run: PageRun) -> Option<PageRun> {
        runs_within(run, |page| !self.captured.contains(page)).next()
    }

    /// Takes the content of consecutive pages, none of which has been taken before.
    pub(crate) fn take(&mut self, start: PageIndex, data: &[u8]) -> io::Result<()> {
        let mut same = std::mem::take(&mut self.same);
        if self.treatment == Unchanged::Ignored {
            same.clear();
            same.resize(data.len() / PAGE, false);
        } else {
            self.below.compare(start, data, &mut same)?;
        }
        let mut pending: Option<usize> = None;
        for (number, page) in data.chunks_exact(PAGE).enumerate() {
            let index = PageIndex::new(start.get() + number as u64);
            debug_assert!(!self.captured.contains(index), "a page is captured once");
            self.captured.insert(index);
            let (unchanged, zero) = (same[number], is_zero(page));
            self.unchanged_count += u64::from(unchanged);
            let dropped = unchanged && self.treatment == Unchanged::Dropped;
            if dropped || zero {
                if !dropped {
                    self.zero.insert(index);
                }
                if let Some(first) = pending.take() {
                    self.write(start, data, first, number)?;
                }
            } else {
                self.unchanged_stored += u64::from(unchanged);
                self.stored.insert(index);
                pending.get_or_insert(number);
            }
        }
        self.same = same;
        match pending {
            Some(first) => self.write(start, data, first, data.len() / PAGE),
            None => Ok(()),
        }
    }

    /// Writes the pages `[first, end)` of `data`, which begins at page `start`.
    fn write(&mut self, start: PageIndex, data: &[u8], first: usize, end: usize) -> io::Result<()> {
        self.stored_count += (end - first) as u64;
        let at = PageIndex::new(start.get() + first as u64);
        self.sink.write(at, &data[first * PAGE..end * PAGE])
    }

    /// From now on nobody asks which pages are unchanged.
    pub(crate) fn ignore_unchanged(&mut self) {
        self.treatment = Unchanged::Ignored;
    }

    /// Pages stored that differ from what is below.
    pub(crate) fn changed_stored_count(&self) -> PageCount {
        PageCount::new(self.stored_count - self.unchanged_stored)
    }

    pub(crate) fn captured_count(&self) -> PageCount {
        self.captured.count()
    }

    pub(crate) fn unchanged_count(&self) -> PageCount {
        PageCount::new(self.unchanged_count)
    }

    pub(crate) fn stored_count(&self) -> PageCount {
        PageCount::new(self.stored_count)
    }

    pub(crate) fn into_pages(self) -> CapturedPages {
        CapturedPages { stored: self.stored.runs(), zero: self.zero.runs() }
    }
}

/// Whether a page holds only zeros. Most pages that are not all zero show it in the first words.
fn is_zero(page: &[u8]) -> bool {
    let (head, words, tail) = (&page[..64], page[64..].chunks_exact(64), &[0u8; 64]);
    head == tail && words.into_iter().all(|chunk| chunk == tail)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::NothingBelow;

    type Writes = Arc<Mutex<Vec<(u64, usize)>>>;
    struct Recorder(Writes);

    impl PageSink for Recorder {
        fn write(&mut self, start: PageIndex, data: &[u8]) -> io::Result<()> {
            self.0.lock().unwrap().push((start.get(), data.len() / PAGE));
            Ok(())
        }
    }

    #[test]
    fn zero_pages_are_kept_from_the_sink_and_listed() {
        let writes = Writes::default();
        let sink = Box::new(Recorder(writes.clone()));
        let mut ledger =
            Ledger::new(PageCount::new(64), sink, Box::new(NothingBelow), Unchanged::Dropped);
        let mut data = vec![0u8; 6 * PAGE];
        for page in [0, 1, 4] {
            data[page * PAGE + 4095] = 1;
        }
        ledger.take(PageIndex::new(10), &data).unwrap();
        assert_eq!(*writes.lock().unwrap(), [(10, 2), (14, 1)]);
        assert_eq!(ledger.first_missing(PageRun::new(12, 6)), Some(PageRun::new(16, 2)));
        assert_eq!(ledger.stored_count(), PageCount::new(3));
        let pages = ledger.into_pages();
        assert_eq!(pages.stored, [PageRun::new(10, 2), PageRun::new(14, 1)]);
        assert_eq!(pages.zero, [PageRun::new(12, 2), PageRun::new(15, 1)]);
    }

    /// Below, page 3 holds ones and all others are zero.
    struct OnesInPageThree;

    impl PagesBelow for OnesInPageThree {
        fn compare(
            &mut self,
            start: PageIndex,
            data: &[u8],
            same: &mut Vec<bool>,
        ) -> io::Result<()> {
            same.clear();
            for (number, page) in data.chunks_exact(PAGE).enumerate() {
                let below = u8::from(start.get() + number as u64 == 3);
                same.push(page.iter().all(|byte| *byte == below));
            }
            Ok(())
        }
    }

    #[test]
    fn pages_that_are_as_below_are_neither_stored_nor_listed() {
        let writes = Writes::default();
        let sink = Box::new(Recorder(writes.clone()));
        let mut ledger =
            Ledger::new(PageCount::new(64), sink, Box::new(OnesInPageThree), Unchanged::Dropped);
        let mut data = vec![0u8; 4 * PAGE];
        data[PAGE..].fill(1);
        ledger.take(PageIndex::new(1), &data).unwrap();
        ledger.take(PageIndex::new(5), &[0; PAGE]).unwrap();
        assert_eq!(*writes.lock().unwrap(), [(2, 1), (4, 1)]);
        assert_eq!(ledger.unchanged_count(), PageCount::new(3), "pages 1, 3 and 5");
        let pages = ledger.into_pages();
        assert_eq!(pages.zero, [], "zeros over zeros");
        assert_eq!(pages.stored, [PageRun::new(2, 1), PageRun::new(4, 1)]);
    }

    #[test]
    fn a_complete_layer_has_unchanged_pages_too_and_counts_them() {
        let writes = Writes::default();
        let sink = Box::new(Recorder(writes.clone()));
        let below = Box::new(OnesInPageThree);
        let mut ledger = Ledger::new(PageCount::new(64), sink, below, Unchanged::Counted);
        ledger.take(PageIndex::new(2), &[1; 3 * PAGE]).unwrap();
        assert_eq!(*writes.lock().unwrap(), [(2, 3)]);
        assert_eq!(ledger.unchanged_count(), PageCount::new(1));
        assert_eq!(ledger.changed_stored_count(), PageCount::new(2));
        ledger.ignore_unchanged();
        ledger.take(PageIndex::new(9), &[0; PAGE]).unwrap();
        assert_eq!(ledger.unchanged_count(), PageCount::new(1));
        assert_eq!(ledger.into_pages().stored, [PageRun::new(2, 3)]);
    }
}
