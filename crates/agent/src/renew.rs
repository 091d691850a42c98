//! Taking a new identity after a fork: randomness, clock, names, then the image's own hooks.
//!
//! Two guests from one snapshot are equal in everything until this ran. It confirms only when every
//! step took effect; the daemon destroys a guest that does not confirm.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, SystemTime};

use forkd_protocol::{HookReport, Reply, code};
use rustix::time::{ClockId, Timespec, clock_settime};

use crate::active::Refusal;
use crate::environment;
use crate::process::Processes;
use crate::sync::lock;

/// Where an image puts programs that must run in every new child.
const HOOKS: &str = "/etc/forkd/on-fork.d";

/// Where programs in the guest find the id of their sandbox.
const INSTANCE_ID: &str = "/run/forkd/instance-id";

const HOOK_TIMEOUT_DEFAULT: Duration = Duration::from_secs(5);

const SIGKILL: i32 = 9;
/// As of `timeout(1)`.
const EXIT_TIMED_OUT: i32 = 124;
/// As of a shell.
const EXIT_NOT_RUN: i32 = 126;

const NANOS: i64 = 1_000_000_000;

/// One renewal at a time.
static UNDER_WAY: Mutex<()> = Mutex::new(());

/// The new identity.
pub(crate) struct Identity {
    pub(crate) instance_id: String,
    pub(crate) hostname: String,
    pub(crate) machine_id: String,
    pub(crate) wall_clock_unix_ns: i64,
    pub(crate) entropy: Vec<u8>,
    pub(crate) hook_timeout: Option<Duration>,
}

/// Takes the identity. The reply says that all of it is in effect.
pub(crate) fn renew(processes: &Processes, identity: &Identity) -> Result<Reply, Refusal> {
    check(identity)?;
    let _alone = lock(&UNDER_WAY);
    let step = |name: &'static str| {
        move |error: io::Error| Refusal::new(code::RENEW_FAILED, format!("{name}: {error}"))
    };
    // The clock was read when the request was made: set it before anything takes time.
    let clock_step_ns = set_clock(identity.wall_clock_unix_ns).map_err(step("wall clock"))?;
    reseed(&identity.entropy).map_err(step("entropy"))?;
    rustix::system::sethostname(identity.hostname.as_bytes())
        .map_err(|errno| step("host name")(errno.into()))?;
    write("/etc/hostname", &identity.hostname).map_err(step("/etc/hostname"))?;
    write("/etc/machine-id", &identity.machine_id).map_err(step("/etc/machine-id"))?;
    write(INSTANCE_ID, &identity.instance_id).map_err(step(INSTANCE_ID))?;
    let hooks = run_hooks(processes, identity).map_err(step(HOOKS))?;
    Ok(Reply::Renewed { instance_id: identity.instance_id.clone(), clock_step_ns, hooks })
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

/// Sets the wall clock and tells how far it moved.
fn set_clock(unix_ns: i64) -> io::Result<i64> {
    let before = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let before = i64::try_from(before.as_nanos()).unwrap_or(i64::MAX);
    let time = Timespec { tv_sec: unix_ns / NANOS, tv_nsec: unix_ns % NANOS };
    clock_settime(ClockId::Realtime, time)?;
    Ok(unix_ns.saturating_sub(before))
}

/// Adds the entropy and makes the kernel use it from the next random byte on.
fn reseed(entropy: &[u8]) -> io::Result<()> {
    let random = fs::OpenOptions::new().write(true).open("/dev/urandom")?;
    forkd_sys::random::add_entropy(&random, entropy)?;
    forkd_sys::random::reseed(&random)
}

/// Replaces a small file in one step.
fn write(path: &str, line: &str) -> io::Result<()> {
    let path = Path::new(path);
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    // Through a link, which some images have here.
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let temporary = path.with_extension("forkd-tmp");
    fs::write(&temporary, format!("{line}\n"))?;
    fs::rename(&temporary, &path).or_else(|_| {
        // A bind mount cannot be replaced, but written.
        fs::remove_file(&temporary).ok();
        fs::write(&path, format!("{line}\n"))
    })
}

fn run_hooks(processes: &Processes, identity: &Identity) -> io::Result<Vec<HookReport>> {
    let folder = match fs::read_dir(HOOKS) {
        Ok(folder) => folder,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut hooks: Vec<PathBuf> =
        folder.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<_>>()?;
    hooks.retain(|hook| {
        fs::metadata(hook)
            .is_ok_and(|facts| facts.is_file() && facts.permissions().mode() & 0o111 != 0)
    });
    hooks.sort();
    Ok(hooks.iter().map(|hook| run_hook(processes, identity, hook)).collect())
}

fn run_hook(processes: &Processes, identity: &Identity, hook: &Path) -> HookReport {
    let name = hook.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let added = [("FORKD_INSTANCE_ID".to_owned(), identity.instance_id.clone())];
    let mut command = Command::new(hook);
    command
        .env_clear()
        .envs(environment::variables(&added))
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let (told, exited) = mpsc::channel();
    let watcher = move |exit| {
        // The receiver is gone only when the hook's time was over.
        told.send(exit).ok();
    };
    let Ok(pid) = processes.spawn(&mut command, watcher) else {
        return HookReport { name, exit_code: EXIT_NOT_RUN };
    };
    let timeout = identity.hook_timeout.unwrap_or(HOOK_TIMEOUT_DEFAULT);
    let exit_code = match exited.recv_timeout(timeout) {
        Ok(exit) => exit.code,
        Err(_) => {
            processes.signal_group(pid, SIGKILL);
            EXIT_TIMED_OUT
        }
    };
    HookReport { name, exit_code }
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
