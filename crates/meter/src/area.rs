//! Memory to write to, page by page.

use std::hint::black_box;
use std::num::NonZeroU64;

use forkd_meter_protocol::{Order, PAGES_PER_MIB, Touch};

/// Words of eight bytes in a page of 4 KiB.
const WORDS_PER_PAGE: usize = 512;

/// Pages, all of them written with content that cannot be compressed. The first word may lie within
/// a page of the machine; one word for every page of ours is still one for each of theirs.
#[derive(Debug)]
pub(crate) struct Area {
    words: Vec<u64>,
    random: Random,
    next: usize,
}

impl Area {
    /// Writes `mib` MiB.
    pub(crate) fn filled(mib: NonZeroU64) -> Result<Self, String> {
        let mib = mib.get();
        let pages = mib.checked_mul(PAGES_PER_MIB).and_then(|pages| usize::try_from(pages).ok());
        let count = pages.and_then(|pages| pages.checked_mul(WORDS_PER_PAGE));
        let count = count.ok_or("the area is too large")?;
        let mut words = Vec::new();
        words.try_reserve_exact(count).map_err(|error| format!("take {mib} MiB: {error}"))?;
        let mut random = Random(mib);
        words.extend((0..count).map(|_| random.next()));
        Ok(Self { words, random, next: 0 })
    }

    /// How many pages it has.
    pub(crate) fn pages(&self) -> usize {
        self.words.len() / WORDS_PER_PAGE
    }

    /// Writes the next `count` pages with content that they did not have.
    pub(crate) fn write(&mut self, count: usize, order: Order, touch: Touch) {
        let pages = self.pages();
        for _ in 0..count {
            let fresh = self.random.next();
            let page = match order {
                Order::Sequential => self.next,
                Order::Random => self.random.below(pages),
            };
            self.next = (page + 1) % pages;
            let start = page * WORDS_PER_PAGE;
            let words = &mut self.words[start..start + WORDS_PER_PAGE];
            match touch {
                Touch::Word => words[0] = fresh,
                Touch::Page => {
                    for word in words {
                        *word ^= fresh;
                    }
                }
            }
        }
        // What nobody reads must be written all the same.
        black_box(self.words.as_mut_slice());
    }
}

/// Numbers without a pattern that a compressor would find (splitmix64).
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`, which is not 0.
    fn below(&mut self, limit: usize) -> usize {
        let wide = u128::from(self.next()) * limit as u128;
        usize::try_from(wide >> 64).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(before: &[u64], area: &Area) -> Vec<usize> {
        (0..area.pages())
            .filter(|page| {
                let range = page * WORDS_PER_PAGE..(page + 1) * WORDS_PER_PAGE;
                before[range.clone()] != area.words[range]
            })
            .collect()
    }

    #[test]
    fn a_round_in_order_changes_every_page_again_and_again() {
        let mut area = Area::filled(NonZeroU64::MIN).unwrap();
        for touch in [Touch::Word, Touch::Page, Touch::Word] {
            let before = area.words.clone();
            area.write(area.pages(), Order::Sequential, touch);
            assert_eq!(changed(&before, &area).len(), 256);
        }
        let before = area.words.clone();
        area.write(3, Order::Sequential, Touch::Word);
        assert_eq!(changed(&before, &area), [0, 1, 2]);
    }

    #[test]
    fn random_order_reaches_pages_of_the_whole_area() {
        let mut area = Area::filled(NonZeroU64::MIN).unwrap();
        let before = area.words.clone();
        area.write(64, Order::Random, Touch::Word);
        let changed = changed(&before, &area);
        assert!(changed.len() > 40, "{changed:?}");
        assert!(changed.iter().any(|page| *page > 200), "{changed:?}");
    }
}
