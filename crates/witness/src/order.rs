//! Which page each write goes to, and so what every page must hold after any number of writes.
//!
//! Writes are numbered from 1. Each epoch visits every page once, in an order that the seed tells;
//! so the last write of a page follows from the page's number and the count of writes alone, and
//! nobody has to remember it.
//!
//! Does not do: touch memory.

/// Scatters the bits of a number.
pub(crate) fn mix(number: u64) -> u64 {
    let mut bits = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}

/// The number of the last write to `place` when `done` writes have gone round `period` places in
/// turn; 0 for none.
pub(crate) fn last_in_turn(place: u64, period: u64, done: u64) -> u64 {
    match done.checked_sub(place + 1) {
        None => 0,
        Some(since_first) => done - since_first % period,
    }
}

/// The order of writes over a power of two of pages.
#[derive(Debug)]
pub(crate) struct Order {
    pages: u64,
    seed: u64,
    multiplier: u64,
    /// `multiplier * inverse` is 1 modulo the number of pages.
    inverse: u64,
}

impl Order {
    pub(crate) fn new(seed: u64, pages: u64) -> Self {
        assert!(pages.is_power_of_two(), "{pages} is not a power of two");
        let multiplier = mix(seed) | 1;
        // Each round doubles the number of right bits, beginning with three.
        let inverse = (0..5).fold(multiplier, |inverse, _| {
            inverse.wrapping_mul(2u64.wrapping_sub(multiplier.wrapping_mul(inverse)))
        });
        Self { pages, seed, multiplier, inverse }
    }

    pub(crate) fn pages(&self) -> u64 {
        self.pages
    }

    fn shift(&self, epoch: u64) -> u64 {
        mix(self.seed ^ mix(epoch))
    }

    /// The page that write `number` goes to.
    pub(crate) fn page(&self, number: u64) -> u64 {
        let (epoch, place) = ((number - 1) / self.pages, (number - 1) % self.pages);
        place.wrapping_mul(self.multiplier).wrapping_add(self.shift(epoch)) & (self.pages - 1)
    }

    /// The number of the last write to `page` after `done` writes; 0 for none.
    pub(crate) fn last(&self, page: u64, done: u64) -> u64 {
        let Some(newest) = done.checked_sub(1) else { return 0 };
        let epoch = newest / self.pages;
        let in_epoch = |epoch: u64| {
            let place = page.wrapping_sub(self.shift(epoch)).wrapping_mul(self.inverse);
            epoch * self.pages + (place & (self.pages - 1)) + 1
        };
        match in_epoch(epoch) {
            number if number <= done => number,
            _ => epoch.checked_sub(1).map_or(0, in_epoch),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_write_of_each_page_is_what_a_list_of_all_writes_says() {
        for seed in 0..20 {
            let order = Order::new(seed, 16);
            let mut written = [0; 16];
            for number in 1..200 {
                written[usize::try_from(order.page(number)).unwrap()] = number;
                for page in 0..16 {
                    let want = written[usize::try_from(page).unwrap()];
                    assert_eq!(order.last(page, number), want, "seed {seed}, page {page}");
                }
            }
        }
    }

    #[test]
    fn before_the_first_write_no_page_has_one() {
        assert!((0..16).all(|page| Order::new(3, 16).last(page, 0) == 0));
    }

    #[test]
    fn turns_are_what_a_list_of_all_turns_says() {
        let mut written = [0; 7];
        for number in 1..60 {
            written[usize::try_from((number - 1) % 7).unwrap()] = number;
            for place in 0..7 {
                let want = written[usize::try_from(place).unwrap()];
                assert_eq!(last_in_turn(place, 7, number), want);
            }
        }
        assert_eq!(last_in_turn(0, 7, 0), 0);
    }
}
