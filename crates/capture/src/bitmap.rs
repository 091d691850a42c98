//! One bit for each page of guest RAM: 32 KiB for 1 GiB.

use forkd_types::{PageCount, PageIndex, PageRun};

/// A set of pages.
#[derive(Debug, Clone)]
pub(crate) struct PageBitmap {
    words: Vec<u64>,
}

impl PageBitmap {
    pub(crate) fn new(pages: PageCount) -> Self {
        Self { words: vec![0; pages.as_usize().div_ceil(64)] }
    }

    pub(crate) fn insert(&mut self, page: PageIndex) {
        let at = page.as_usize();
        self.words[at / 64] |= 1 << (at % 64);
    }

    pub(crate) fn insert_run(&mut self, run: PageRun) {
        self.for_words(run, |word, ones| *word |= ones);
    }

    pub(crate) fn remove_run(&mut self, run: PageRun) {
        self.for_words(run, |word, ones| *word &= !ones);
    }

    fn for_words(&mut self, run: PageRun, change: impl Fn(&mut u64, u64)) {
        let (mut at, end) = (run.start.as_usize(), run.end().as_usize());
        while at < end {
            let (word, bit) = (at / 64, at % 64);
            let count = (64 - bit).min(end - at);
            let ones = if count == 64 { u64::MAX } else { ((1 << count) - 1) << bit };
            change(&mut self.words[word], ones);
            at += count;
        }
    }

    /// The set; what is left is empty.
    pub(crate) fn take(&mut self) -> Self {
        let empty = Self { words: vec![0; self.words.len()] };
        std::mem::replace(self, empty)
    }

    /// How many pages are in the set.
    pub(crate) fn count(&self) -> PageCount {
        PageCount::new(self.words.iter().map(|word| u64::from(word.count_ones())).sum())
    }

    pub(crate) fn contains(&self, page: PageIndex) -> bool {
        let at = page.as_usize();
        self.words.get(at / 64).is_some_and(|word| word >> (at % 64) & 1 == 1)
    }

    /// The set as maximal runs, ascending.
    pub(crate) fn runs(&self) -> Vec<PageRun> {
        let mut runs: Vec<PageRun> = Vec::new();
        for (number, word) in self.words.iter().enumerate() {
            let mut left = *word;
            while left != 0 {
                let page = number as u64 * 64 + u64::from(left.trailing_zeros());
                left &= left - 1;
                match runs.last_mut() {
                    Some(last) if last.end().get() == page => last.count += PageCount::new(1),
                    _ => runs.push(PageRun::new(page, 1)),
                }
            }
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_maximal_across_word_borders() {
        let mut set = PageBitmap::new(PageCount::new(200));
        for page in [0, 1, 62, 63, 64, 65, 199] {
            set.insert(PageIndex::new(page));
        }
        let want = [PageRun::new(0, 2), PageRun::new(62, 4), PageRun::new(199, 1)];
        assert_eq!(set.runs(), want);
        assert!(set.contains(PageIndex::new(64)) && !set.contains(PageIndex::new(66)));
        assert_eq!(set.count(), PageCount::new(7));
    }

    #[test]
    fn a_run_inserted_at_once_is_the_same_as_page_by_page() {
        for (start, count) in [(0, 1), (3, 61), (3, 62), (0, 64), (60, 140), (64, 128), (199, 1)] {
            let (mut whole, mut single) =
                (PageBitmap::new(PageCount::new(200)), PageBitmap::new(PageCount::new(200)));
            whole.insert_run(PageRun::new(start, count));
            (start..start + count).for_each(|page| single.insert(PageIndex::new(page)));
            assert_eq!(whole.words, single.words, "{start} + {count}");
            whole.insert(PageIndex::new(150));
            whole.remove_run(PageRun::new(start, count));
            let kept = !(start..start + count).contains(&150);
            assert_eq!(whole.count(), PageCount::new(u64::from(kept)), "{start} + {count}");
        }
    }
}
