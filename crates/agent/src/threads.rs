//! The threads of the agent, and which CPUs they may run on.
//!
//! The host lets the first CPU of a child go first, and the others once the child has answered. So
//! the two threads that take an identity and answer stay on that CPU: elsewhere they would wait for
//! one that waits for them.
//!
//! Guarantees: what such a thread starts, programs among it, may run wherever the agent could.

use std::io;
use std::sync::OnceLock;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Where the agent could run before a thread of it stayed on one CPU.
static ALLOWED: OnceLock<CpuSet> = OnceLock::new();

/// Starts a thread that may run on each CPU that the agent was given.
pub(crate) fn start(
    name: &str,
    stack_bytes: usize,
    work: impl FnOnce() + Send + 'static,
) -> io::Result<()> {
    let thread = std::thread::Builder::new().name(name.to_owned()).stack_size(stack_bytes);
    let work = move || {
        // A thread inherits the CPUs of the one that starts it. If this fails, it works there.
        ALLOWED.get().map(|allowed| sched_setaffinity(None, allowed));
        work();
    };
    thread.spawn(work).map(drop)
}

/// Keeps the calling thread on the first CPU from now on. Does nothing in a machine with one.
pub(crate) fn stay_on_first_cpu() -> io::Result<()> {
    let allowed = match ALLOWED.get() {
        Some(allowed) => *allowed,
        None => sched_getaffinity(None)?,
    };
    if allowed.count() < 2 {
        return Ok(());
    }
    ALLOWED.get_or_init(|| allowed);
    let mut first = CpuSet::new();
    first.set(0);
    Ok(sched_setaffinity(None, &first)?)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn what_a_thread_on_the_first_cpu_starts_may_run_on_all() {
        let (tell, told) = mpsc::channel();
        start("outer", 64 * 1024, move || {
            let before = sched_getaffinity(None).unwrap();
            stay_on_first_cpu().unwrap();
            let kept = sched_getaffinity(None).unwrap();
            let inner = move || {
                tell.send((before, kept, sched_getaffinity(None).unwrap())).unwrap();
            };
            start("inner", 64 * 1024, inner).unwrap();
        })
        .unwrap();
        let (before, kept, inner) = told.recv().unwrap();
        assert_eq!(inner, before);
        if before.count() > 1 {
            assert!(kept.is_set(0) && kept.count() == 1);
        }
    }
}
