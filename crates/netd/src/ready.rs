//! Which flows of a link have something to do. One task drives all flows of a link; each flow wakes
//! it by a waker of its own, so that the task looks at that flow alone.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Wake, Waker};

use tokio::sync::Notify;

/// Keys of flows that have been woken, in their order.
#[derive(Debug)]
pub(crate) struct ReadyQueue<K> {
    woken: Mutex<VecDeque<Arc<Flow<K>>>>,
    notify: Notify,
}

impl<K> Default for ReadyQueue<K> {
    fn default() -> Self {
        Self { woken: Mutex::default(), notify: Notify::new() }
    }
}

/// One flow's place in the queue.
#[derive(Debug)]
struct Flow<K> {
    key: K,
    queued: AtomicBool,
    /// The queue holds its flows, so they must not hold it.
    queue: Weak<ReadyQueue<K>>,
}

impl<K: Copy + Send + Sync + 'static> ReadyQueue<K> {
    /// A waker that puts `key` into the queue, once until it is taken.
    pub(crate) fn waker(self: &Arc<Self>, key: K) -> Waker {
        let queue = Arc::downgrade(self);
        Waker::from(Arc::new(Flow { key, queued: AtomicBool::new(false), queue }))
    }

    /// Takes the key that was put in first.
    pub(crate) fn take(&self) -> Option<K> {
        let flow = self.woken().pop_front()?;
        flow.queued.store(false, Ordering::Release);
        Some(flow.key)
    }

    /// How many can be taken.
    pub(crate) fn len(&self) -> usize {
        self.woken().len()
    }

    /// Whether there is nothing to take.
    pub(crate) fn is_empty(&self) -> bool {
        self.woken().is_empty()
    }

    fn woken(&self) -> MutexGuard<'_, VecDeque<Arc<Flow<K>>>> {
        self.woken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until something is put in.
    pub(crate) async fn wait(&self) {
        self.notify.notified().await;
    }
}

impl<K: Copy + Send + Sync + 'static> Wake for Flow<K> {
    fn wake(self: Arc<Self>) {
        let Some(queue) = self.queue.upgrade() else { return };
        if self.queued.swap(true, Ordering::AcqRel) {
            return;
        }
        queue.woken().push_back(self);
        queue.notify.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_that_is_woken_twice_is_taken_once_and_can_be_woken_again() {
        let queue = Arc::new(ReadyQueue::default());
        let (first, second) = (queue.waker(1), queue.waker(2));
        first.wake_by_ref();
        second.wake_by_ref();
        first.wake_by_ref();
        assert_eq!((queue.take(), queue.len()), (Some(1), 1));
        first.wake_by_ref();
        assert_eq!([queue.take(), queue.take(), queue.take()], [Some(2), Some(1), None]);
        assert!(queue.is_empty());
    }
}
