//! What the requests to one guest may hold in the daemon together.
//!
//! Each request has its own bound, but many can be under way. These bounds are for all of them, so
//! that a guest cannot multiply what it is given.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forkd_protocol::{FRAME_BYTES_MAX, OUTPUT_WINDOW_BYTES};

use super::{GuestError, OUTPUT_BYTES_MAX};

/// Requests that get a whole window of credit; those beyond get a part of one.
const WHOLE_WINDOWS: usize = 16;
/// The part: two payloads of the largest size fit.
const SMALL_WINDOW_BYTES: u64 = OUTPUT_WINDOW_BYTES / 4;

/// Replies that need no credit and wait to be taken, all requests together, in bytes. A value of
/// `eval` fills a frame; others are short.
const WITHOUT_CREDIT_BYTES_MAX: u64 = 16 * FRAME_BYTES_MAX as u64;

/// Outputs and files that are collected at the same time, in bytes: two of the largest.
const COLLECTED_BYTES_MAX: u64 = 2 * OUTPUT_BYTES_MAX;

/// The credit that a request begins with when `others` are under way.
pub(super) const fn window(others: usize) -> u64 {
    if others < WHOLE_WINDOWS { OUTPUT_WINDOW_BYTES } else { SMALL_WINDOW_BYTES }
}

/// Bytes that are held for one guest, up to a limit.
#[derive(Debug)]
pub(super) struct Budget {
    held: AtomicU64,
    limit: u64,
}

impl Budget {
    pub(super) fn for_replies() -> Arc<Self> {
        Arc::new(Self { held: AtomicU64::new(0), limit: WITHOUT_CREDIT_BYTES_MAX })
    }

    pub(super) fn for_collected() -> Arc<Self> {
        Arc::new(Self { held: AtomicU64::new(0), limit: COLLECTED_BYTES_MAX })
    }

    /// Takes as much, or nothing when it would be too much.
    fn take(&self, bytes: u64) -> bool {
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        let sum = |held: u64| held.checked_add(bytes).filter(|sum| *sum <= self.limit);
        self.held.fetch_update(set, fetch, sum).is_ok()
    }
}

/// A part of a budget. Dropping it gives it back.
#[derive(Debug)]
pub(super) struct Held {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Held {
    pub(super) fn nothing(budget: &Arc<Budget>) -> Self {
        Self { budget: Arc::clone(budget), bytes: 0 }
    }

    /// Holds as much more, unless it would be too much.
    pub(super) fn add(&mut self, bytes: u64) -> bool {
        let taken = self.budget.take(bytes);
        if taken {
            self.bytes += bytes;
        }
        taken
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.budget.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// An output or a file on its way together: two streams, or the first of them.
#[derive(Debug)]
pub(super) struct Collected {
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
    held: Held,
}

impl Collected {
    pub(super) fn new(budget: &Arc<Budget>) -> Self {
        Self { stdout: Vec::new(), stderr: Vec::new(), held: Held::nothing(budget) }
    }

    /// Adds to the first stream, unless both together would be too large.
    pub(super) fn stdout(&mut self, data: &[u8]) -> Result<(), GuestError> {
        self.admit(data)?;
        self.stdout.extend_from_slice(data);
        Ok(())
    }

    /// Adds to the second stream, unless both together would be too large.
    pub(super) fn stderr(&mut self, data: &[u8]) -> Result<(), GuestError> {
        self.admit(data)?;
        self.stderr.extend_from_slice(data);
        Ok(())
    }

    fn admit(&mut self, data: &[u8]) -> Result<(), GuestError> {
        let bytes = data.len() as u64;
        if self.held.bytes + bytes > OUTPUT_BYTES_MAX {
            return Err(GuestError::OutputTooLarge { limit: OUTPUT_BYTES_MAX });
        }
        if self.held.add(bytes) {
            return Ok(());
        }
        Err(GuestError::OutputsTooLarge { limit: self.held.budget.limit })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_output_and_all_of_a_guest_together_are_bounded_and_given_back() {
        let budget = Budget::for_collected();
        let piece = vec![b'x'; 16 << 20];
        let fill = || {
            let mut output = Collected::new(&budget);
            for _ in 0..OUTPUT_BYTES_MAX / piece.len() as u64 {
                output.stderr(&piece)?;
            }
            Ok::<_, GuestError>(output)
        };
        let mut first = fill().unwrap();
        let too_large = GuestError::OutputTooLarge { limit: OUTPUT_BYTES_MAX };
        assert_eq!(first.stdout(b"x"), Err(too_large));
        let second = fill().unwrap();
        let mut third = Collected::new(&budget);
        let all = GuestError::OutputsTooLarge { limit: COLLECTED_BYTES_MAX };
        assert_eq!(third.stdout(b"x"), Err(all));
        drop(first);
        third.stdout(b"x").unwrap();
        drop((second, third));
        assert_eq!(budget.held.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn windows_get_smaller_and_fit_two_payloads() {
        assert_eq!(window(0), OUTPUT_WINDOW_BYTES);
        assert_eq!(window(WHOLE_WINDOWS), SMALL_WINDOW_BYTES);
        let payload = forkd_protocol::credit_cost(forkd_protocol::DATA_BYTES_MAX);
        assert!(SMALL_WINDOW_BYTES / 2 + payload > payload && SMALL_WINDOW_BYTES > payload);
    }
}
