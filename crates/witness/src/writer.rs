//! A thread that writes its memory at full speed.
//!
//! In write `n`, in this order:
//!
//! 1. one page of its [`Scatter`], verified before;
//! 2. one word of a hot page, verified before;
//! 3. every 256 writes a page is filled with one number, or with zeros, verified before;
//! 4. every 4096 writes both ends of a cold page, verified before;
//! 5. the published count becomes `n`, having been `n - 1`;
//! 6. the first writer, every 64 writes: message `n / 64` goes into the pipe.
//!
//! `n` is kept in a register or on the stack, and every page's content follows from it. So a page
//! of another instant is found when it is next written or checked, however long that takes.

use std::fs::File;
use std::io::Write;
use std::sync::Arc;

use crate::gate::{Gate, Report};
use crate::order::{last_in_turn, mix};
use crate::page::{Page, WORDS, at, pages};
use crate::scatter::Scatter;
use crate::verdict::Violations;

const HOT_PAGES: u64 = 64;
const HOT_WORDS: u64 = HOT_PAGES * WORDS as u64;
const FLICKER_PAGES: u64 = 64;
const FLICKER_EVERY: u64 = 256;
const COLD_PAGES: u64 = 256;
const COLD_EVERY: u64 = 4096;
const STILL_PAGES: u64 = 64;
const MESSAGE_EVERY: u64 = 64;

/// One writer and its pages.
#[derive(Debug)]
pub(crate) struct Writer {
    number: usize,
    scatter: Scatter,
    hot: Arc<Vec<Page>>,
    flicker: Vec<Page>,
    cold: Vec<Page>,
    /// Written once, before the first write.
    still: Vec<Page>,
    seed: u64,
    published: Arc<Vec<Page>>,
    pipe: Option<File>,
    violations: Violations,
}

impl Writer {
    /// The writer that publishes its count in page `number` of `published`.
    pub(crate) fn new(
        number: usize,
        seed: u64,
        count: u64,
        published: Arc<Vec<Page>>,
        pipe: Option<File>,
    ) -> Self {
        let seed = mix(seed.wrapping_add(number as u64));
        let still = pages(STILL_PAGES);
        for (page, number) in still.iter().zip(0..) {
            page.fill(mix(seed ^ number));
        }
        Self {
            number,
            scatter: Scatter::new(&format!("writer {number}"), seed, count),
            hot: Arc::new(pages(HOT_PAGES)),
            flicker: pages(FLICKER_PAGES),
            cold: pages(COLD_PAGES),
            still,
            seed,
            published,
            pipe,
            violations: Violations::default(),
        }
    }

    /// The pages that are written in turn, one in each write.
    pub(crate) fn hot(&self) -> Arc<Vec<Page>> {
        Arc::clone(&self.hot)
    }

    /// Writes for ever.
    pub(crate) fn run(mut self, gate: &Gate) -> ! {
        let mut done = 0u64;
        loop {
            self.write(done + 1);
            done += 1;
            if gate.is_closed() {
                gate.stop(self.report(done));
            }
        }
    }

    fn write(&mut self, number: u64) {
        self.scatter.write(number, &mut self.violations);
        self.write_hot(number);
        if number.is_multiple_of(FLICKER_EVERY) {
            self.write_flicker(number / FLICKER_EVERY);
        }
        if number.is_multiple_of(COLD_EVERY) {
            self.write_cold(number / COLD_EVERY);
        }
        self.verify_published(number - 1);
        self.published[self.number].set(0, number);
        if number.is_multiple_of(MESSAGE_EVERY) {
            self.send(number / MESSAGE_EVERY);
        }
    }

    fn write_hot(&mut self, number: u64) {
        let place = (number - 1) % HOT_WORDS;
        self.verify_hot(place, number - 1);
        self.hot[at(place % HOT_PAGES)].set(at(place / HOT_PAGES), number);
    }

    fn write_flicker(&mut self, turn: u64) {
        let page = (turn - 1) % FLICKER_PAGES;
        self.verify_flicker(page, turn - 1);
        self.flicker[at(page)].fill(flicker(turn));
    }

    fn write_cold(&mut self, turn: u64) {
        let page = (turn - 1) % COLD_PAGES;
        self.verify_cold(page, turn - 1);
        self.cold[at(page)].set(0, turn);
        self.cold[at(page)].set(Page::TAIL, turn);
    }

    fn send(&mut self, message: u64) {
        let Some(pipe) = &mut self.pipe else { return };
        if let Err(error) = pipe.write_all(&message.to_le_bytes()) {
            self.violations.expect(0, 1, || format!("pipe: message {message}: {}", error.kind()));
        }
    }

    fn report(&mut self, done: u64) -> Report {
        self.scatter.verify_all(done, &mut self.violations);
        (0..HOT_WORDS).for_each(|place| self.verify_hot(place, done));
        (0..FLICKER_PAGES).for_each(|page| self.verify_flicker(page, done / FLICKER_EVERY));
        (0..COLD_PAGES).for_each(|page| self.verify_cold(page, done / COLD_EVERY));
        self.verify_still();
        self.verify_published(done);
        let (number, violations) = (self.number, self.violations.clone());
        let messages = if self.pipe.is_some() { done / MESSAGE_EVERY } else { 0 };
        Report::Writer { number, writes: done, messages, violations }
    }

    fn verify_hot(&mut self, place: u64, done: u64) {
        let found = self.hot[at(place % HOT_PAGES)].get(at(place / HOT_PAGES));
        let who = self.number;
        self.violations.expect(last_in_turn(place, HOT_WORDS, done), found, || {
            format!("writer {who}: hot word {place} after write {done}")
        });
    }

    fn verify_flicker(&mut self, page: u64, turns: u64) {
        let expected = flicker(last_in_turn(page, FLICKER_PAGES, turns));
        if let Some((word, found)) = self.flicker[at(page)].differs(expected) {
            let who = self.number;
            self.violations.expect(expected, found, || {
                format!("writer {who}: word {word} of flickering page {page} after turn {turns}")
            });
        }
    }

    fn verify_cold(&mut self, page: u64, turns: u64) {
        let expected = last_in_turn(page, COLD_PAGES, turns);
        for word in [0, Page::TAIL] {
            let (who, found) = (self.number, self.cold[at(page)].get(word));
            self.violations.expect(expected, found, || {
                format!("writer {who}: word {word} of cold page {page} after turn {turns}")
            });
        }
    }

    fn verify_still(&mut self) {
        for (page, number) in self.still.iter().zip(0..) {
            let expected = mix(self.seed ^ number);
            if let Some((word, found)) = page.differs(expected) {
                let who = self.number;
                self.violations.expect(expected, found, || {
                    format!("writer {who}: word {word} of still page {number}")
                });
            }
        }
    }

    fn verify_published(&mut self, done: u64) {
        let (who, found) = (self.number, self.published[self.number].get(0));
        self.violations.expect(done, found, || format!("writer {who}: published count"));
    }
}

/// What a flickering page holds after its turn `turn`: by turns a number and zeros.
fn flicker(turn: u64) -> u64 {
    let filled = turn > 0 && ((turn - 1) / FLICKER_PAGES).is_multiple_of(2);
    if filled { turn } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(count: u64) -> Writer {
        let mut writer = Writer::new(0, 9, 64, Arc::new(pages(1)), None);
        (1..=count).for_each(|number| writer.write(number));
        writer
    }

    fn violations(writer: &mut Writer, done: u64) -> Violations {
        match writer.report(done) {
            Report::Writer { violations, .. } => violations,
            Report::Recorder { .. } => unreachable!("a writer reports as such"),
        }
    }

    #[test]
    fn an_undisturbed_writer_finds_no_violation() {
        let count = COLD_EVERY * (COLD_PAGES + 3);
        let found = violations(&mut written(count), count);
        assert_eq!(found.count, 0, "{found:?}");
    }

    #[test]
    fn a_stale_page_of_each_kind_is_named() {
        let count = FLICKER_EVERY * (FLICKER_PAGES + 3);
        type Spoil = fn(&Writer);
        let spoil: [(&str, Spoil); 5] = [
            ("hot word 64", |writer| writer.hot[0].set(1, 1)),
            // Zeros again, after a number.
            ("flickering page 1", |writer| writer.flicker[1].set(77, 2)),
            ("cold page 0", |writer| writer.cold[0].set(Page::TAIL, 0)),
            ("still page 5", |writer| writer.still[5].set(200, 0)),
            ("published", |writer| writer.published[0].set(0, 1)),
        ];
        for (name, spoil) in spoil {
            let mut writer = written(count);
            spoil(&writer);
            let found = violations(&mut writer, count);
            assert_eq!(found.count, 1, "{name}: {found:?}");
            assert!(found.listed[0].at.contains(name), "{name}: {found:?}");
        }
    }
}
