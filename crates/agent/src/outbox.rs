//! What waits to be sent to the host: bounded, and emptied when a new epoch begins.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use forkd_protocol::{DELIMITER, Reply, encode_reply};

use crate::link::Link;
use crate::sync::lock;

/// Frames of requests wait when more than this waits already, in bytes.
const QUEUE_BYTES_MAX: usize = 512 * 1024;

/// Direct answers of the reader thread, which never waits: more of them are dropped.
const DIRECT_REPLIES_MAX: usize = 1024;

/// What became of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pushed {
    /// It is queued.
    Queued,
    /// Its epoch is over; it was discarded.
    Stale,
    /// The queue stayed full for the time given; try again.
    Full,
}

#[derive(Default)]
struct Queue {
    epoch: u64,
    frames: VecDeque<Vec<u8>>,
    bytes: usize,
}

/// The queue between all threads and the writer.
#[derive(Default)]
pub(crate) struct Outbox {
    queue: Mutex<Queue>,
    filled: Condvar,
    drained: Condvar,
}

impl Outbox {
    /// The current epoch; 0 before the first `Hello`.
    pub(crate) fn epoch(&self) -> u64 {
        lock(&self.queue).epoch
    }

    /// Discards what waits and starts a new epoch. The next frame out is a delimiter, which ends
    /// what is left of an old frame.
    pub(crate) fn begin_epoch(&self) -> u64 {
        let mut queue = lock(&self.queue);
        queue.epoch += 1;
        queue.frames.clear();
        queue.frames.push_back(vec![DELIMITER]);
        queue.bytes = 1;
        self.drained.notify_all();
        self.filled.notify_one();
        queue.epoch
    }

    /// Queues a reply of a request, waiting up to `patience` for room.
    pub(crate) fn push(&self, epoch: u64, id: u64, reply: &Reply, patience: Duration) -> Pushed {
        let start = Instant::now();
        let mut queue = lock(&self.queue);
        while queue.epoch == epoch && queue.bytes >= QUEUE_BYTES_MAX {
            let Some(rest) = patience.checked_sub(start.elapsed()) else { return Pushed::Full };
            queue =
                self.drained.wait_timeout(queue, rest).unwrap_or_else(PoisonError::into_inner).0;
        }
        if queue.epoch != epoch {
            return Pushed::Stale;
        }
        self.enqueue(&mut queue, id, reply);
        Pushed::Queued
    }

    /// Queues an answer of the reader thread without waiting. Dropped when the host reads nothing.
    pub(crate) fn push_direct(&self, id: u64, reply: &Reply) {
        let mut queue = lock(&self.queue);
        if queue.frames.len() < DIRECT_REPLIES_MAX {
            self.enqueue(&mut queue, id, reply);
        }
    }

    fn enqueue(&self, queue: &mut Queue, id: u64, reply: &Reply) {
        let mut frame = Vec::new();
        if encode_reply(id, reply, &mut frame).is_err() {
            // Senders bound their texts and chunks; an answer that tells is better than silence.
            let code = forkd_protocol::code::BAD_REQUEST.to_owned();
            let message = "the reply does not fit a frame".to_owned();
            encode_reply(id, &Reply::Error { code, message }, &mut frame).ok();
        }
        queue.bytes += frame.len();
        queue.frames.push_back(frame);
        self.filled.notify_one();
    }

    /// Waits until everything queued was handed to the kernel, at most `patience`.
    pub(crate) fn flush(&self, patience: Duration) {
        let start = Instant::now();
        let mut queue = lock(&self.queue);
        while queue.bytes > 0 {
            let Some(rest) = patience.checked_sub(start.elapsed()) else { return };
            queue =
                self.drained.wait_timeout(queue, rest).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Sends what is queued, for ever.
    pub(crate) fn write_to(&self, link: &dyn Link) {
        loop {
            let (epoch, frame) = self.next_frame();
            link.write_all(&frame);
            let mut queue = lock(&self.queue);
            if queue.epoch == epoch {
                queue.bytes = queue.bytes.saturating_sub(frame.len());
            }
            self.drained.notify_all();
        }
    }

    fn next_frame(&self) -> (u64, Vec<u8>) {
        let mut queue = lock(&self.queue);
        loop {
            if let Some(frame) = queue.frames.pop_front() {
                return (queue.epoch, frame);
            }
            queue = self.filled.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_WAIT: Duration = Duration::ZERO;

    fn large() -> Reply {
        Reply::Stdout { data: vec![1; 60_000] }
    }

    #[test]
    fn a_full_queue_holds_requests_back_but_not_the_reader() {
        let outbox = Outbox::default();
        let epoch = outbox.begin_epoch();
        let queued =
            (0..100).take_while(|_| outbox.push(epoch, 1, &large(), NO_WAIT) == Pushed::Queued);
        assert!((8..=10).contains(&queued.count()));
        for _ in 0..5000 {
            outbox.push_direct(2, &Reply::Credit { bytes: 1 });
        }
        assert_eq!(lock(&outbox.queue).frames.len(), DIRECT_REPLIES_MAX);
    }

    #[test]
    fn a_new_epoch_discards_what_waits_and_what_comes_late() {
        let outbox = Outbox::default();
        let old = outbox.begin_epoch();
        assert_eq!(outbox.push(old, 1, &large(), NO_WAIT), Pushed::Queued);
        let new = outbox.begin_epoch();
        assert_eq!(outbox.push(old, 1, &large(), NO_WAIT), Pushed::Stale);
        assert_eq!(outbox.next_frame(), (new, vec![DELIMITER]));
        assert!(lock(&outbox.queue).frames.is_empty());
    }
}
