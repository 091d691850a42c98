//! Whether a sandbox is used, and when it will be removed because it is not.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// When a sandbox was used, and how long it may live.
#[derive(Debug)]
pub(super) struct Lease {
    born: Instant,
    ttl: Option<Duration>,
    idle_timeout: Option<Duration>,
    /// Requests that use it now.
    users: usize,
    last_use: Instant,
}

impl Lease {
    pub(super) fn new(
        created_at: SystemTime,
        ttl: Option<Duration>,
        idle_timeout: Option<Duration>,
    ) -> Self {
        let now = Instant::now();
        let age = created_at.elapsed().unwrap_or_default();
        let born = now.checked_sub(age).unwrap_or(now);
        Self { born, ttl, idle_timeout, users: 0, last_use: now }
    }

    fn touch(&mut self, now: Instant) {
        self.last_use = now;
    }

    /// It may live for `left` from now on. Gives the time to live that this is, which counts from
    /// the request.
    pub(super) fn live_for(&mut self, left: Option<Duration>, now: Instant) -> Option<Duration> {
        self.ttl = left.map(|left| now.saturating_duration_since(self.born) + left);
        self.ttl
    }

    fn enter(&mut self, now: Instant) {
        self.users += 1;
        self.touch(now);
    }

    fn leave(&mut self, now: Instant) {
        self.users -= 1;
        self.touch(now);
    }

    /// When it ends, if nothing uses the sandbox from now on; while something does, the earliest
    /// moment at which it could.
    pub(super) fn end(&self, now: Instant) -> Option<Instant> {
        let idle_since = if self.users == 0 { self.last_use } else { now };
        let old = self.ttl.map(|ttl| self.born + ttl);
        let idle = self.idle_timeout.map(|timeout| idle_since + timeout);
        old.into_iter().chain(idle).min()
    }

    /// Whether its time to live is over, however much it is used.
    pub(super) fn is_too_old(&self, now: Instant) -> bool {
        self.ttl.is_some_and(|ttl| self.born + ttl <= now)
    }

    pub(super) fn has_ended(&self, now: Instant) -> bool {
        self.end(now).is_some_and(|end| end <= now)
    }
}

/// A lease that several hold.
#[derive(Debug, Clone)]
pub(super) struct SharedLease(Arc<Mutex<Lease>>);

impl SharedLease {
    pub(super) fn new(lease: Lease) -> Self {
        Self(Arc::new(Mutex::new(lease)))
    }

    /// Changes it, or asks it.
    pub(super) fn with<T>(&self, work: impl FnOnce(&mut Lease, Instant) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner), Instant::now())
    }

    /// Something is asked of the sandbox now.
    pub(super) fn touch(&self) {
        self.with(Lease::touch);
    }

    /// The sandbox is used until what this gives is dropped.
    pub(super) fn enter(&self) -> UseGuard {
        self.with(Lease::enter);
        UseGuard(self.clone())
    }
}

/// A sandbox in use: it is not idle before this is dropped.
#[derive(Debug)]
pub(crate) struct UseGuard(SharedLease);

impl Drop for UseGuard {
    fn drop(&mut self) {
        self.0.with(Lease::leave);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn lease(ttl: Option<u32>, idle: Option<u32>) -> (Lease, Instant) {
        let secs = |n: Option<u32>| n.map(|n| n * SECOND);
        let lease = Lease::new(SystemTime::now(), secs(ttl), secs(idle));
        let start = lease.last_use;
        (Lease { born: start, ..lease }, start)
    }

    #[test]
    fn a_sandbox_without_a_wish_lives_on() {
        let (lease, start) = lease(None, None);
        assert_eq!(lease.end(start), None);
        assert!(!lease.has_ended(start + 1_000_000 * SECOND));
    }

    #[test]
    fn a_time_to_live_ends_whoever_uses_it_and_counts_from_the_request() {
        let (mut lease, start) = lease(Some(10), Some(60));
        lease.enter(start);
        assert!(!lease.has_ended(start + 9 * SECOND));
        assert!(lease.has_ended(start + 10 * SECOND));
        assert!(lease.is_too_old(start + 10 * SECOND));
        let old = Lease::new(SystemTime::now() - 20 * SECOND, Some(10 * SECOND), None);
        assert!(old.has_ended(Instant::now()));
    }

    #[test]
    fn what_is_left_of_a_life_can_be_changed_in_both_directions() {
        let (mut lease, start) = lease(Some(10), None);
        assert_eq!(lease.live_for(Some(30 * SECOND), start + 5 * SECOND), Some(35 * SECOND));
        assert!(!lease.has_ended(start + 34 * SECOND));
        assert!(lease.has_ended(start + 35 * SECOND));
        assert_eq!(lease.live_for(Some(SECOND), start + 6 * SECOND), Some(7 * SECOND));
        assert!(lease.has_ended(start + 7 * SECOND));
        assert_eq!(lease.live_for(None, start + 6 * SECOND), None);
        assert!(!lease.has_ended(start + 1_000_000 * SECOND));
    }

    #[test]
    fn idleness_begins_with_the_end_of_the_last_use() {
        let (mut lease, start) = lease(None, Some(10));
        assert!(lease.has_ended(start + 10 * SECOND));
        assert!(!lease.is_too_old(start + 10 * SECOND), "it is idle, not old");
        lease.enter(start + 5 * SECOND);
        lease.enter(start + 6 * SECOND);
        lease.leave(start + 7 * SECOND);
        assert!(!lease.has_ended(start + 100 * SECOND), "one use goes on");
        assert_eq!(lease.end(start + 100 * SECOND), Some(start + 110 * SECOND));
        lease.leave(start + 100 * SECOND);
        assert!(!lease.has_ended(start + 109 * SECOND));
        assert!(lease.has_ended(start + 110 * SECOND));
        lease.touch(start + 111 * SECOND);
        assert!(!lease.has_ended(start + 112 * SECOND));
    }
}
