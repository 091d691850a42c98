//! What a process wrote, as far as it is kept: the bytes of both streams in the order of their
//! arrival, numbered from the process's start.
//!
//! Guarantees: bytes and stretches are bounded when [`OutputLog::trim`] follows every
//! [`OutputLog::push`]; a piece never ends inside a character that goes on.

use std::collections::VecDeque;

use forkd_protocol::CREDIT_OVERHEAD_BYTES;
use forkd_types::limit::PROCESS_OUTPUT_BYTES_MAX;

use super::split::incomplete_tail;
use crate::guest::OUTPUT_WINDOW_BYTES;

/// Most stretches of one stream that are kept; each costs 16 bytes.
const RUNS_MAX: usize = 8192;

/// Stretches that a whole window of credit can become: each frame may end one that was held back.
const RUNS_PER_WINDOW: usize = 2 * (OUTPUT_WINDOW_BYTES / CREDIT_OVERHEAD_BYTES) as usize;

const KEPT_BYTES: u64 = PROCESS_OUTPUT_BYTES_MAX as u64;

const _: () = assert!(OUTPUT_WINDOW_BYTES < KEPT_BYTES && RUNS_PER_WINDOW < RUNS_MAX);

/// Which stream of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Consecutive bytes of one stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) stream: Stream,
    pub(super) data: Vec<u8>,
}

#[derive(Debug)]
struct Run {
    stream: Stream,
    /// Offset after its last byte.
    end: u64,
}

/// The kept output of one process.
#[derive(Debug, Default)]
pub(super) struct OutputLog {
    bytes: VecDeque<u8>,
    /// Oldest first; the last one ends where the bytes end.
    runs: VecDeque<Run>,
    from: u64,
}

impl OutputLog {
    /// Of a process of which so many bytes were given to somebody else.
    pub(super) fn starting_at(from: u64) -> Self {
        Self { from, ..Self::default() }
    }

    /// Offset of the oldest byte that is kept.
    pub(super) fn from(&self) -> u64 {
        self.from
    }

    /// Offset that the next byte will have.
    pub(super) fn to(&self) -> u64 {
        self.from + self.bytes.len() as u64
    }

    pub(super) fn push(&mut self, stream: Stream, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        self.bytes.extend(data);
        let end = self.to();
        match self.runs.back_mut().filter(|run| run.stream == stream) {
            Some(run) => run.end = end,
            None => self.runs.push_back(Run { stream, end }),
        }
    }

    /// Drops the oldest bytes beyond what is kept, but none from `needed` on.
    pub(super) fn trim(&mut self, needed: Option<u64>) {
        let needed = needed.unwrap_or(u64::MAX);
        let mut from = self.to().saturating_sub(KEPT_BYTES);
        if let Some(surplus) = self.runs.len().checked_sub(RUNS_MAX + 1) {
            from = from.max(self.runs[surplus].end);
        }
        let mut from = from.min(needed);
        if from <= self.from {
            return;
        }
        // The rest of a character whose beginning is dropped would spoil the text after it.
        let goes_on = |at: u64| {
            let index = usize::try_from(at - self.from).unwrap_or(usize::MAX);
            self.bytes.get(index).is_some_and(|byte| byte & 0xC0 == 0x80)
        };
        for _ in 0..3 {
            if from < needed && goes_on(from) {
                from += 1;
            }
        }
        let count = usize::try_from(from - self.from).unwrap_or(usize::MAX);
        self.bytes.drain(..count.min(self.bytes.len()));
        self.from = from;
        while self.runs.front().is_some_and(|run| run.end <= from) {
            self.runs.pop_front();
        }
    }

    /// Whether a whole window of output may still come when nothing from `at` on is dropped.
    pub(super) fn has_room_after(&self, at: u64) -> bool {
        let bytes = self.to().saturating_sub(at);
        let runs = self.runs.len() - self.runs.partition_point(|run| run.end <= at);
        bytes + OUTPUT_WINDOW_BYTES <= KEPT_BYTES && runs + RUNS_PER_WINDOW <= RUNS_MAX
    }

    /// The bytes from `at` on that are of one stream, at most `bytes_max` of them (at least four).
    /// `None` when there are none, or they are no longer kept.
    pub(super) fn piece(&self, at: u64, bytes_max: u64) -> Option<Piece> {
        if at < self.from {
            return None;
        }
        let run = self.runs.get(self.runs.partition_point(|run| run.end <= at))?;
        let end = run.end.min(at.saturating_add(bytes_max.max(4)));
        let index = |offset: u64| usize::try_from(offset - self.from).unwrap_or(usize::MAX);
        let mut data: Vec<u8> = self.bytes.range(index(at)..index(end)).copied().collect();
        if end < run.end {
            data.truncate(data.len() - incomplete_tail(&data));
        }
        Some(Piece { stream: run.stream, data })
    }

    /// Nothing comes any more.
    pub(super) fn close(&mut self) {
        self.bytes.shrink_to_fit();
        self.runs.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::Stream::{Stderr, Stdout};
    use super::*;

    /// All that is kept, piece by piece.
    fn kept(log: &OutputLog, bytes_max: u64) -> Vec<(Stream, Vec<u8>)> {
        let mut at = log.from();
        let mut pieces = Vec::new();
        while let Some(Piece { stream, data }) = log.piece(at, bytes_max) {
            at += data.len() as u64;
            pieces.push((stream, data));
        }
        assert_eq!(at, log.to());
        pieces
    }

    #[test]
    fn both_streams_come_back_in_the_order_of_their_arrival() {
        let mut log = OutputLog::default();
        for (stream, text) in [(Stdout, "a"), (Stdout, "b"), (Stderr, "c"), (Stdout, "d")] {
            log.push(stream, text.as_bytes());
        }
        let expected = [(Stdout, b"ab".to_vec()), (Stderr, b"c".to_vec()), (Stdout, b"d".to_vec())];
        assert_eq!(kept(&log, 100), expected);
        assert_eq!(log.piece(1, 100), Some(Piece { stream: Stdout, data: b"b".to_vec() }));
        assert_eq!(log.piece(4, 100), None);
    }

    #[test]
    fn a_piece_does_not_end_inside_a_character() {
        let mut log = OutputLog::default();
        log.push(Stdout, "aaaé€".as_bytes());
        for (_, data) in kept(&log, 4) {
            std::str::from_utf8(&data).unwrap();
        }
    }

    #[test]
    fn bytes_beyond_the_limit_are_dropped_at_a_character_unless_needed() {
        let mut log = OutputLog::default();
        let text = "é".repeat(PROCESS_OUTPUT_BYTES_MAX / 2);
        log.push(Stdout, text.as_bytes());
        log.push(Stdout, b"x");
        log.trim(Some(0));
        assert_eq!(log.from(), 0, "somebody has not read it");
        log.trim(None);
        assert_eq!((log.from(), log.to()), (2, KEPT_BYTES + 1));
        assert_eq!(log.piece(1, 9), None);
        for (_, data) in kept(&log, 1000) {
            std::str::from_utf8(&data).unwrap();
        }
    }

    #[test]
    fn streams_that_alternate_with_each_byte_are_bounded_too() {
        let mut log = OutputLog::default();
        for _ in 0..RUNS_MAX {
            log.push(Stdout, b"o");
            log.push(Stderr, b"e");
            log.trim(None);
            assert!(log.runs.len() <= RUNS_MAX);
        }
        assert_eq!(log.from(), RUNS_MAX as u64);
        assert!(log.has_room_after(log.to()) && !log.has_room_after(log.from()));
    }

    #[test]
    fn room_ends_where_a_window_more_would_exceed_what_is_kept() {
        let mut log = OutputLog::default();
        let half = vec![0; usize::try_from(KEPT_BYTES - OUTPUT_WINDOW_BYTES).unwrap()];
        log.push(Stdout, &half);
        assert!(log.has_room_after(0));
        log.push(Stdout, &[0]);
        assert!(!log.has_room_after(0) && log.has_room_after(1));
    }
}
