//! Pages written in a random order, each bearing the number of its last write at both ends.
//!
//! In one write, in this order: the page and its belief are verified, the first word of the page is
//! written, its belief, its last word. The beliefs are a list of the last writes in pages of their
//! own. What must be there follows from the count of writes, which the caller keeps in a register.

use crate::order::{Order, mix};
use crate::page::{Page, WORDS, at, pages};
use crate::verdict::Violations;

/// The pages of one party.
#[derive(Debug)]
pub(crate) struct Scatter {
    whose: String,
    seed: u64,
    order: Order,
    pages: Vec<Page>,
    beliefs: Vec<Page>,
}

impl Scatter {
    pub(crate) fn new(whose: &str, seed: u64, count: u64) -> Self {
        Self {
            whose: whose.to_owned(),
            seed,
            order: Order::new(seed, count),
            pages: pages(count),
            beliefs: pages(count.div_ceil(WORDS as u64)),
        }
    }

    /// Write `number`, which follows all those before it.
    pub(crate) fn write(&self, number: u64, violations: &mut Violations) {
        let page = self.order.page(number);
        self.verify(page, number - 1, violations);
        self.pages[at(page)].set(0, number);
        self.belief(page).0.set(self.belief(page).1, number);
        self.pages[at(page)].set(Page::TAIL, self.tail(page, number));
    }

    /// Verifies all pages after `done` writes.
    pub(crate) fn verify_all(&self, done: u64, violations: &mut Violations) {
        (0..self.order.pages()).for_each(|page| self.verify(page, done, violations));
    }

    fn verify(&self, page: u64, done: u64, violations: &mut Violations) {
        let last = self.order.last(page, done);
        let whose = &self.whose;
        let (beliefs, word) = self.belief(page);
        violations.expect(last, self.pages[at(page)].get(0), || {
            format!("{whose}: head of page {page} after write {done}")
        });
        violations.expect(last, beliefs.get(word), || {
            format!("{whose}: belief about page {page} after write {done}")
        });
        violations.expect(self.tail(page, last), self.pages[at(page)].get(Page::TAIL), || {
            format!("{whose}: tail of page {page} after write {done}")
        });
    }

    fn belief(&self, page: u64) -> (&Page, usize) {
        (&self.beliefs[at(page) / WORDS], at(page) % WORDS)
    }

    /// The last word tells pages apart: one that took another's place does not fit.
    fn tail(&self, page: u64, number: u64) -> u64 {
        if number == 0 { 0 } else { number ^ mix(self.seed ^ page) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written() -> Scatter {
        let scatter = Scatter::new("test", 5, 16);
        let mut violations = Violations::default();
        (1..=50).for_each(|number| scatter.write(number, &mut violations));
        scatter.verify_all(50, &mut violations);
        assert_eq!(violations.count, 0, "{violations:?}");
        scatter
    }

    #[test]
    fn a_count_of_another_instant_fits_no_memory() {
        for wrong in [49, 51] {
            let mut violations = Violations::default();
            written().verify_all(wrong, &mut violations);
            // One write more or less is one page: its head, belief and tail.
            assert_eq!(violations.count, 3, "{violations:?}");
        }
    }

    #[test]
    fn a_stale_page_is_found_at_its_next_write_although_that_heals_it() {
        for word in [0, Page::TAIL] {
            let scatter = written();
            let page = scatter.order.page(60);
            scatter.pages[at(page)].set(word, 3);
            let mut violations = Violations::default();
            (51..=80).for_each(|number| scatter.write(number, &mut violations));
            assert_eq!(violations.count, 1, "{violations:?}");
            scatter.verify_all(80, &mut violations);
            assert_eq!(violations.count, 1, "healed: {violations:?}");
        }
    }
}
