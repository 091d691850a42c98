//! Taking a new identity after a fork: randomness, clock, names, then the image's own hooks.
//!
//! Two guests from one snapshot are equal in everything until this ran. It confirms only when every
//! step took effect; the daemon destroys a guest that does not confirm.
//!
//! A program that ran at the branch point must not run on before that. The identity is in the port
//! before the vCPUs start, and the VMM raises the port's interrupt as the first thing that it does
//! then. The kernel wakes the thread that reads the port. It has real-time priority, waits for no
//! disk and no other thread, and so takes the identity before any program runs. Hooks run beside
//! the programs, which they may want to talk to.
//!
//! Of several vCPUs the host lets the first one go, and the others when the guest has answered. So
//! the port's interrupt goes to that one, and the threads that read and answer stay on it.
//!
//! Does not do: stop programs to which the guest gave a real-time priority themselves.
//!
//! Under emulation every line of code that a child runs for the first time is translated, in the
//! kernel too. So what a renewal needs is opened when the machine starts, and it touches no disk.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use forkd_protocol::code;
use forkd_sys::schedule::become_realtime;
use rustix::time::{ClockId, Timespec, clock_settime};

use crate::active::Refusal;
use crate::hooks;
use crate::identity::{Identity, IdentityFiles};
use crate::renewals::Renewals;
use crate::threads;

/// The lowest real-time priority, which goes before every thread that has none.
const PRIORITY: u8 = 1;

const NANOS: i64 = 1_000_000_000;

/// An identity that is in effect.
pub(crate) struct Taken {
    /// How far the wall clock moved.
    pub(crate) clock_step_ns: i64,
    /// Programs that must run before the renewal is over.
    pub(crate) hooks: Vec<PathBuf>,
}

/// What a renewal changes, at hand.
pub(crate) struct Renewer {
    random: File,
    files: IdentityFiles,
    renewals: Renewals,
    hooks: hooks::Folder,
}

impl Renewer {
    /// For the machine that this process is the first one of. The calling thread is the one that
    /// reads the port: from now on it goes before every ordinary thread, and stays on the first
    /// CPU. Threads and programs that it starts do not.
    pub(crate) fn prepare() -> io::Result<Self> {
        let random = fs::OpenOptions::new().write(true).open("/dev/urandom")?;
        let hooks = hooks::Folder::at(Path::new(hooks::FOLDER));
        let files = IdentityFiles::mount()?;
        let renewals = Renewals::prepare()?;
        become_realtime(PRIORITY)?;
        threads::stay_on_first_cpu()?;
        Ok(Self { random, files, renewals, hooks })
    }

    /// Takes the identity. Tells what is left to do.
    pub(crate) fn take(&self, identity: &Identity) -> Result<Taken, Refusal> {
        check(identity)?;
        let step = |name: &'static str| move |error: io::Error| failed(name, &error);
        // The clock was read when the request was made: set it before anything takes time.
        let clock_step_ns = set_clock(identity.wall_clock_unix_ns).map_err(step("wall clock"))?;
        self.reseed(&identity.entropy).map_err(step("entropy"))?;
        rustix::system::sethostname(identity.hostname.as_bytes())
            .map_err(|errno| step("host name")(errno.into()))?;
        self.files.write(identity).map_err(|(path, error)| failed(path, &error))?;
        // Last: whoever sees it draws from the kernel.
        self.renewals.advance().map_err(step("count of renewals"))?;
        let hooks = self.hooks.hooks().map_err(step(hooks::FOLDER))?;
        Ok(Taken { clock_step_ns, hooks })
    }

    /// Adds the entropy and makes the kernel use it from the next random byte on.
    fn reseed(&self, entropy: &[u8]) -> io::Result<()> {
        forkd_sys::random::add_entropy(&self.random, entropy)?;
        forkd_sys::random::reseed(&self.random)
    }
}

fn failed(step: &str, error: &io::Error) -> Refusal {
    Refusal::new(code::RENEW_FAILED, format!("{step}: {error}"))
}

fn check(identity: &Identity) -> Result<(), Refusal> {
    let bad = |what: &str| Err(Refusal::new(code::BAD_REQUEST, format!("{what} is not valid")));
    let is_name = |text: &str, bytes_max: usize| {
        (1..=bytes_max).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
    };
    if !is_name(&identity.instance_id, 128) {
        return bad("instance_id");
    }
    if !is_name(&identity.hostname, 64) {
        return bad("hostname");
    }
    let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    if identity.machine_id.len() != 32 || !identity.machine_id.bytes().all(is_hex) {
        return bad("machine_id");
    }
    if !(16..=forkd_sys::random::ENTROPY_BYTES_MAX).contains(&identity.entropy.len()) {
        return bad("entropy");
    }
    if identity.wall_clock_unix_ns <= 0 {
        return bad("wall_clock_unix_ns");
    }
    Ok(())
}

/// Sets the wall clock of the machine that this process is the first one of.
pub(crate) fn step_clock(unix_ns: i64) -> Result<(), Refusal> {
    if unix_ns <= 0 {
        return Err(Refusal::new(code::BAD_REQUEST, "wall_clock_unix_ns is not valid"));
    }
    set_clock(unix_ns).map(drop).map_err(|error| failed("wall clock", &error))
}

/// Sets the wall clock and tells how far it moved.
fn set_clock(unix_ns: i64) -> io::Result<i64> {
    let before = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let before = i64::try_from(before.as_nanos()).unwrap_or(i64::MAX);
    let time = Timespec { tv_sec: unix_ns / NANOS, tv_nsec: unix_ns % NANOS };
    clock_settime(ClockId::Realtime, time)?;
    Ok(unix_ns.saturating_sub(before))
}

#[cfg(test)]
mod tests {
    use super::*;

    type Case = (&'static str, fn(&mut Identity));

    fn identity() -> Identity {
        Identity {
            instance_id: "sb-1".into(),
            hostname: "sb-1".into(),
            machine_id: "0123456789abcdef".repeat(2),
            wall_clock_unix_ns: 1,
            entropy: vec![0; 32],
            hook_timeout: None,
            announce: false,
        }
    }

    #[test]
    fn an_identity_with_one_bad_part_is_refused_by_name() {
        assert_eq!(check(&identity()), Ok(()));
        let cases: [Case; 5] = [
            ("instance_id", |identity| identity.instance_id = "a\nb".into()),
            ("hostname", |identity| identity.hostname = "x".repeat(65)),
            ("machine_id", |identity| identity.machine_id = "A".repeat(32)),
            ("entropy", |identity| identity.entropy.clear()),
            ("wall_clock", |identity| identity.wall_clock_unix_ns = 0),
        ];
        for (name, spoil) in cases {
            let mut spoilt = identity();
            spoil(&mut spoilt);
            assert!(check(&spoilt).is_err_and(|refusal| refusal.message.contains(name)), "{name}");
        }
    }
}
