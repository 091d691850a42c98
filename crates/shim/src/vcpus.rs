//! Holding the vCPUs of a child back while the VMM reads the identity that waits at its port.
//!
//! A VMM that loads device state does not read the guest agent's port before the vCPUs run. On a
//! busy host they would run for milliseconds before its main thread gets a processor and raises the
//! port's interrupt, and with them programs of the branch point. So for this while they are held
//! outside of all that the VMM locks:
//!
//! * emulated ones by a signal, whose handler waits. They wait for the VMM to let them run at that
//!   time, and hold no lock;
//! * those on KVM where they enter it, because the VMM asks their threads for something else first:
//!   this library's `ioctl` goes before that of the C library.
//!
//! One vCPU can be let go before the others: the one that gets the port's interrupt.
//!
//! Guarantees: a hold ends by itself after [`HOLD_MAX`], whatever becomes of the daemon.

use std::io;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use forkd_sys::shim_wire::HOLD_MAX;
use rustix::event::Timespec;
use rustix::io::Errno;
use rustix::thread::futex;

/// QEMU blocks every signal in the threads of its vCPUs but those of faults. An integer division
/// of the guest's is none of the host's.
const SIGNAL: libc::c_int = libc::SIGFPE;
/// `KVM_RUN` of `linux/kvm.h`.
const KVM_RUN: libc::c_ulong = 0xae80;

/// As many holds are told apart.
const NUMBERS: u32 = u32::MAX >> 1;

/// Every waiter. The kernel takes the number as a signed one, and wakes one if it is negative.
const ALL: u32 = i32::MAX.cast_unsigned();

/// For the threads to stand still: they sleep when they are told to.
const ARRIVE_MAX: Duration = Duration::from_millis(500);

/// Twice the number of the hold, and one more if a vCPU was let go; or 0: the vCPUs may run.
static HELD: AtomicU32 = AtomicU32::new(0);
/// The thread that was let go. Says nothing unless [`HELD`] does.
static FREE: AtomicU32 = AtomicU32::new(0);
/// Threads that wait for the end of this hold.
static ARRIVED: AtomicU32 = AtomicU32::new(0);
static LAST: AtomicU32 = AtomicU32::new(0);
static HANDLER: Once = Once::new();

/// Holds the vCPUs. Emulated ones are these threads, and stand still when this is done.
pub(crate) fn hold(threads: &[u32]) -> Result<(), Errno> {
    HANDLER.call_once(install);
    ARRIVED.store(0, Ordering::SeqCst);
    let number = (LAST.fetch_add(1, Ordering::SeqCst).wrapping_add(1) & NUMBERS).max(1);
    HELD.store(number << 1, Ordering::SeqCst);
    let arrived = threads.iter().try_for_each(|thread| signal(*thread)).and_then(|()| {
        let until = Instant::now() + ARRIVE_MAX;
        let wanted = u32::try_from(threads.len()).unwrap_or(u32::MAX);
        loop {
            let now = ARRIVED.load(Ordering::SeqCst);
            if now >= wanted {
                return Ok(());
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Errno::TIMEDOUT);
            }
            wait(&ARRIVED, now, left);
        }
    });
    if arrived.is_err() {
        end(number);
    }
    arrived
}

/// Lets held vCPUs go. An error if they were not held any more.
pub(crate) fn release() -> Result<(), Errno> {
    match HELD.load(Ordering::SeqCst) >> 1 {
        0 => Err(Errno::TIMEDOUT),
        number if end(number) => Ok(()),
        _ => Err(Errno::TIMEDOUT),
    }
}

/// Lets the held vCPU go that is this thread, and no other. An error if none is held any more.
pub(crate) fn release_one(thread: u32) -> Result<(), Errno> {
    FREE.store(thread, Ordering::SeqCst);
    let freed = HELD
        .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |held| (held != 0).then_some(held | 1));
    futex::wake(&HELD, futex::Flags::PRIVATE, ALL).ok();
    freed.map(drop).map_err(|_| Errno::TIMEDOUT)
}

/// Ends the hold of that number. Whether it was this.
fn end(number: u32) -> bool {
    let ended = HELD.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |held| {
        (held >> 1 == number).then_some(0)
    });
    futex::wake(&HELD, futex::Flags::PRIVATE, ALL).ok();
    ended.is_ok()
}

/// Waits for the end of the hold, if there is one. May be called in a signal handler: it makes
/// system calls and nothing else.
fn wait_for_release() {
    let held = HELD.load(Ordering::SeqCst);
    let number = held >> 1;
    if number == 0 || is_free(held) {
        return;
    }
    ARRIVED.fetch_add(1, Ordering::SeqCst);
    futex::wake(&ARRIVED, futex::Flags::PRIVATE, ALL).ok();
    let until = Instant::now() + HOLD_MAX;
    loop {
        let held = HELD.load(Ordering::SeqCst);
        if held >> 1 != number || is_free(held) {
            return;
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            end(number);
        }
        wait(&HELD, held, left);
    }
}

/// Whether the calling thread was let go of what is held.
fn is_free(held: u32) -> bool {
    let own = || rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
    held & 1 == 1 && FREE.load(Ordering::SeqCst) == own()
}

/// Waits until the word may have changed, or for that time.
fn wait(word: &AtomicU32, value: u32, time: Duration) {
    let seconds = time.as_secs().try_into().unwrap_or(i64::MAX);
    let timeout = Timespec { tv_sec: seconds, tv_nsec: time.subsec_nanos().into() };
    futex::wait(word, futex::Flags::PRIVATE, value, Some(&timeout)).ok();
}

fn signal(thread: u32) -> Result<(), Errno> {
    let process = rustix::process::getpid().as_raw_nonzero().get();
    // SAFETY: the call takes three integers. The signal has the handler below, so a wrong number
    // makes a thread of this process wait, or is an error.
    let sent = unsafe { libc::syscall(libc::SYS_tgkill, process, thread, SIGNAL) };
    let error = || Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::SRCH);
    if sent == 0 { Ok(()) } else { Err(error()) }
}

fn install() {
    // SAFETY: the action is plain data, zero where nothing is said, and its handler lives as long
    // as the process. The signal has no other use in the VMM.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_signal as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
        libc::sigaction(SIGNAL, &raw const action, std::ptr::null_mut());
    }
}

extern "C" fn on_signal(_: libc::c_int, info: *const libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel gives the handler a description of the signal.
    let was_sent = unsafe { (*info).si_code } <= 0;
    if was_sent {
        return wait_for_release();
    }
    // A fault of the VMM's ends it, as it would without us: it happens again.
    // SAFETY: the call takes two integers, and may be made in a handler.
    unsafe { libc::signal(SIGNAL, libc::SIG_DFL) };
}

/// The C library's `ioctl`, which a vCPU on KVM goes through each time that it runs.
///
/// # Safety
/// As `ioctl(2)`.
// JUSTIFICATION: nothing else in the process sees a vCPU that is about to run guest code, and that
// holds no lock.
// SAFETY: the name is the C library's; on x86-64 a variadic function of this shape takes its
// arguments as this one does.
#[unsafe(no_mangle)]
unsafe extern "C" fn ioctl(
    descriptor: libc::c_int,
    request: libc::c_ulong,
    argument: *mut libc::c_void,
) -> libc::c_int {
    if request == KVM_RUN {
        wait_for_release();
    }
    // SAFETY: what the caller promises of `ioctl` is what the system call needs, which `syscall`
    // returns and reports as `ioctl` does.
    let result = unsafe { libc::syscall(libc::SYS_ioctl, descriptor, request, argument) };
    libc::c_int::try_from(result).unwrap_or(-1)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use super::*;

    /// There is one hold for the process.
    static TURN: Mutex<()> = Mutex::new(());

    /// A thread that counts, and its number. It sleeps between, so that it gets a processor soon
    /// on a busy machine, as a vCPU does that has waited.
    fn counting<'scope>(
        scope: &'scope thread::Scope<'scope, '_>,
        count: &'scope AtomicU32,
        is_over: &'scope AtomicBool,
    ) -> u32 {
        let (told, number) = std::sync::mpsc::channel();
        scope.spawn(move || {
            told.send(rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned()).unwrap();
            while !is_over.load(Ordering::SeqCst) {
                count.fetch_add(1, Ordering::SeqCst);
                thread::sleep(Duration::from_micros(100));
            }
        });
        number.recv().unwrap()
    }

    /// Ends the threads that count, also when a test fails: its scope waits for them.
    struct End<'a>(&'a AtomicBool);

    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    fn moves(count: &AtomicU32) -> bool {
        let before = count.load(Ordering::SeqCst);
        thread::sleep(Duration::from_millis(50));
        count.load(Ordering::SeqCst) != before
    }

    /// How long it takes until it moves.
    fn time_until_it_moves(count: &AtomicU32) -> Duration {
        let (begun, before) = (Instant::now(), count.load(Ordering::SeqCst));
        while count.load(Ordering::SeqCst) == before {
            assert!(begun.elapsed() < Duration::from_secs(60), "it does not move");
            thread::sleep(Duration::from_micros(100));
        }
        begun.elapsed()
    }

    #[test]
    fn a_held_thread_stands_still_until_it_is_released() {
        let _turn = TURN.lock().unwrap();
        let (count, is_over) = (AtomicU32::new(0), AtomicBool::new(false));
        thread::scope(|scope| {
            let _end = End(&is_over);
            let number = counting(scope, &count, &is_over);
            for _ in 0..20 {
                hold(&[number]).unwrap();
                assert!(!moves(&count));
                release().unwrap();
                time_until_it_moves(&count);
            }
        });
        assert_eq!(release(), Err(Errno::TIMEDOUT), "nothing is held");
    }

    #[test]
    fn one_of_four_held_threads_goes_before_the_others() {
        const TIMES: u32 = 20;
        let _turn = TURN.lock().unwrap();
        let counts: [AtomicU32; 4] = Default::default();
        let is_over = AtomicBool::new(false);
        let (mut soon, mut looked) = (0, 0);
        thread::scope(|scope| {
            let _end = End(&is_over);
            let threads = counts.each_ref().map(|count| counting(scope, count, &is_over));
            for _ in 0..TIMES {
                let begun = Instant::now();
                hold(&threads).unwrap();
                release_one(threads[0]).unwrap();
                soon += u32::from(time_until_it_moves(&counts[0]) < HOLD_MAX / 2);
                let others_move = counts[1..].iter().any(moves);
                // Later they may: the hold is over then.
                if begun.elapsed() < HOLD_MAX {
                    assert!(!others_move);
                    looked += 1;
                    release().unwrap();
                }
                for count in &counts {
                    time_until_it_moves(count);
                }
            }
            // If one is woken of all that wait, three times of four it is another, and the first
            // moves when the hold ends by itself. A busy machine may be late now and then.
            assert!(
                soon >= TIMES * 3 / 4 && looked > 0,
                "{soon} times soon, looked {looked} times"
            );
            assert_eq!(release_one(threads[1]), Err(Errno::TIMEDOUT), "nothing is held");
        });
    }

    #[test]
    fn a_hold_that_nobody_ends_ends_by_itself() {
        let _turn = TURN.lock().unwrap();
        let (count, is_over) = (AtomicU32::new(0), AtomicBool::new(false));
        thread::scope(|scope| {
            let _end = End(&is_over);
            let number = counting(scope, &count, &is_over);
            let begun = Instant::now();
            hold(&[number]).unwrap();
            while !moves(&count) {}
            assert!(begun.elapsed() >= HOLD_MAX);
            assert_eq!(release(), Err(Errno::TIMEDOUT));
        });
    }

    #[test]
    fn a_thread_that_is_not_there_is_an_error_and_nothing_stays_held() {
        let _turn = TURN.lock().unwrap();
        assert_eq!(hold(&[u32::MAX >> 1]), Err(Errno::SRCH));
        assert_eq!(release(), Err(Errno::TIMEDOUT));
    }

    #[test]
    fn a_vcpu_on_kvm_waits_where_it_enters_it_and_other_requests_do_not() {
        let _turn = TURN.lock().unwrap();
        let entered = AtomicBool::new(false);
        hold(&[]).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                // SAFETY: there is no such descriptor.
                let failed = unsafe { ioctl(-1, KVM_RUN, std::ptr::null_mut()) };
                let error = io::Error::last_os_error().raw_os_error();
                assert_eq!((failed, error), (-1, Some(libc::EBADF)));
                entered.store(true, Ordering::SeqCst);
            });
            // SAFETY: there is no such descriptor.
            assert_eq!(unsafe { ioctl(-1, 0x5421, std::ptr::null_mut()) }, -1);
            thread::sleep(Duration::from_millis(50));
            assert!(!entered.load(Ordering::SeqCst));
            release().unwrap();
        });
        assert!(entered.load(Ordering::SeqCst));
    }
}
