//! The KVM tier: the branch tests on real KVM, on any machine.
//!
//! ```text
//! this machine: QEMU, which emulates a machine whose CPU has AMD's virtualisation
//!   that machine: Debian's kernel with kvm_amd, the test programs, the product
//!     guests of the tests: the microVM build of QEMU on KVM
//! ```
//!
//! Guarantees: a machine that ends without saying how the tests ended, or is not done in time, has
//! failed. One that stands still itself is started again, a test that does is not repeated. The
//! disks are not changed by a run.
//!
//! It says nothing about speed: a guest is emulated twice.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use super::harness::Harness;
use super::programs::{self, TestProgram};
use crate::emulated::{self, Clock, END, KERNEL, PRODUCT_ENVIRONMENT, Payload};
use crate::images::{self, KvmHost};
use crate::workspace::Workspace;

/// Test programs and which of their tests run: those whose names hold one of the words. The rest
/// takes too long here and does not depend on the accelerator.
const PROGRAMS: [(&str, &[&str]); 4] = [
    ("vm_kvm", &["--ignored"]),
    // The emulated vCPUs of Debian 12's QEMU take turns.
    ("vm_hazards", &["programs_on_two_vcpus_wait"]),
    // Without KVM there is nothing to try out.
    ("vm_isolation", &["vmm_that_tries_kvm_out"]),
    (
        "vm_branch",
        &[
            "branches_nest_three_deep",
            "children_are_isolated_from_each_other_and_the_source",
            "disk_of_a_child_is_that_of_the_branch_point",
            "repeated_branches_stay_correct",
        ],
    ),
];

/// What the tests need of the images.
const IMAGES: [&str; 4] = ["kernel", "initramfs", "tiny", "python"];
/// The machine's console shows that it lives, whatever the tests do.
const HEARTBEAT: &str = "while :; do echo alive; sleep 5; done > /dev/ttyS0 &\n";

/// For the whole tier: several times what it takes on two idle cores.
const DEADLINE: Duration = Duration::from_secs(1800);
/// How often the machine is started when its own kernel panics or stands still: what emulates its
/// CPU is not perfect, and has lost the timer's interrupt. A test that fails is not repeated.
const ATTEMPTS: u32 = 3;
/// The machine's console says something every 5 s, whatever the tests do.
const STANDS_STILL_AFTER: Duration = Duration::from_secs(90);
/// Between two looks at the console.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// Runs the tests. Tells whether all programs succeeded.
pub(super) fn run(
    workspace: &Workspace,
    all: &[TestProgram],
    harness: &mut Harness,
) -> anyhow::Result<bool> {
    let host = images::kvm_host(workspace)?;
    harness.begin("emulated machine")?;
    let work = workspace.kvm_host().join("run");
    remove(&work)?;
    fs::create_dir_all(&work).with_context(|| format!("create {}", work.display()))?;
    let payload = payload(workspace, &work, all)?;
    let console = workspace.log("test-kvm-console");
    let words = workspace.log("test-kvm-qemu");
    let mut code = Ok(String::new());
    for attempt in 1..=ATTEMPTS {
        code = play(&host, &payload, &console, &words, harness);
        let Err(error) = &code else { break };
        if attempt == ATTEMPTS || !(panicked(&console) || error.is::<StandsStill>()) {
            break;
        }
        let what = "the emulated machine panicked or stands still";
        harness.say(&format!("{what}: {attempt} of {ATTEMPTS}"));
        harness.forget();
    }
    remove(&work)?;
    let code =
        code.with_context(|| format!("see {} and {}", console.display(), words.display()))?;
    Ok(code == "0")
}

/// Runs the machine once; what it said was the exit code.
fn play(
    host: &KvmHost,
    payload: &Path,
    console: &Path,
    words: &Path,
    harness: &mut Harness,
) -> anyhow::Result<String> {
    let mut qemu = emulated::machine(host, payload, console, Clock::Host);
    // It warns about each feature of the CPU that it does not emulate.
    qemu.stderr(File::create(words).with_context(|| format!("create {}", words.display()))?);
    let mut machine = qemu.spawn().context("start qemu-system-x86_64")?;
    let code = follow(&mut machine, harness, &mut Pulse::new(console, STANDS_STILL_AFTER));
    // It may have ended by itself.
    machine.kill().ok();
    machine.wait().context("wait for the machine")?;
    code
}

/// Whether the machine's own kernel gave up, which is no word about the tests.
fn panicked(console: &Path) -> bool {
    fs::read(console).is_ok_and(|text| String::from_utf8_lossy(&text).contains("Kernel panic"))
}

/// The machine's kernel runs no more, which is no word about the tests either.
#[derive(Debug)]
struct StandsStill;

impl std::fmt::Display for StandsStill {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the emulated machine stands still")
    }
}

impl std::error::Error for StandsStill {}

/// What the console tells of the machine's life: it grows.
struct Pulse {
    console: PathBuf,
    allowed: Duration,
    bytes: u64,
    since: Instant,
}

impl Pulse {
    fn new(console: &Path, allowed: Duration) -> Self {
        Self { console: console.to_owned(), allowed, bytes: 0, since: Instant::now() }
    }

    fn feel(&mut self, now: Instant) -> Result<(), StandsStill> {
        let bytes = fs::metadata(&self.console).map_or(0, |found| found.len());
        if bytes != self.bytes {
            (self.bytes, self.since) = (bytes, now);
        }
        if now.duration_since(self.since) > self.allowed { Err(StandsStill) } else { Ok(()) }
    }
}

/// Makes the disk with the product, the images and the tests.
fn payload(workspace: &Workspace, work: &Path, all: &[TestProgram]) -> anyhow::Result<PathBuf> {
    let mut payload = Payload::begin(work)?;
    payload.add_images(workspace, &IMAGES)?;
    for (name, _) in PROGRAMS {
        payload.add_program(&programs::system_test(all, name)?.path, name)?;
    }
    // The network gateway is in it.
    payload.add_product(&workspace.tested())?;
    payload.finish(&format!("{PRODUCT_ENVIRONMENT}{HEARTBEAT}"), &tests())
}

/// One command line for each test program.
fn tests() -> String {
    let line = |(name, arguments): (&str, &[&str])| {
        // One at a time: two guests would make each other slow and the deadlines short.
        format!("{name} --test-threads=1 {}\n", arguments.join(" "))
    };
    PROGRAMS.into_iter().map(line).collect()
}

/// Reads what the tests print until the machine ends; what it said was the exit code.
fn follow(machine: &mut Child, harness: &mut Harness, pulse: &mut Pulse) -> anyhow::Result<String> {
    let output = machine.stdout.take().context("the machine's output is piped")?;
    let (sender, lines) = mpsc::sync_channel::<Vec<u8>>(64);
    std::thread::Builder::new().name("kvm-tests".to_owned()).spawn(move || {
        let mut reader = BufReader::new(output);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0) {
            if sender.send(std::mem::take(&mut line)).is_err() {
                return;
            }
        }
    })?;
    let until = Instant::now() + DEADLINE;
    let (mut code, mut is_kernels) = (None, false);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match lines.recv_timeout(left.min(LOOK_INTERVAL).min(pulse.allowed)) {
            Ok(bytes) => {
                let line = harness.line(&bytes)?;
                if is_kernels {
                    harness.say(&line);
                }
                is_kernels |= line == KERNEL;
                code = line.strip_prefix(END).map(str::to_owned).or(code);
            }
            Err(RecvTimeoutError::Timeout) if left.is_zero() => {
                bail!("not done within {} s", DEADLINE.as_secs());
            }
            Err(RecvTimeoutError::Timeout) => pulse.feel(Instant::now())?,
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    code.context("the machine ended without saying how the tests went")
}

fn remove(folder: &Path) -> anyhow::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}", folder.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    /// Follows a machine that is given up only when no test would wait any more.
    fn followed(script: &str) -> anyhow::Result<String> {
        followed_for(script, STANDS_STILL_AFTER)
    }

    fn followed_for(script: &str, allowed: Duration) -> anyhow::Result<String> {
        let folder = tempfile::tempdir().unwrap();
        let mut harness = Harness::new("KVM", &folder.path().join("log")).unwrap();
        let mut sh = Command::new("sh");
        sh.args(["-c", script]).current_dir(folder.path()).stdout(Stdio::piped());
        let mut machine = sh.spawn().unwrap();
        let mut pulse = Pulse::new(&folder.path().join("console"), allowed);
        let code = follow(&mut machine, &mut harness, &mut pulse);
        machine.kill().unwrap();
        machine.wait().unwrap();
        code
    }

    #[test]
    fn a_machine_whose_console_stands_still_is_given_up() {
        let script = "echo alive > console; exec sleep 60";
        let error = followed_for(script, Duration::from_millis(300)).unwrap_err();
        assert!(error.is::<StandsStill>(), "{error}");
    }

    #[test]
    fn a_console_that_grows_now_and_then_does_not_stand_still() {
        let folder = tempfile::tempdir().unwrap();
        let console = folder.path().join("console");
        let mut pulse = Pulse::new(&console, Duration::from_secs(90));
        let begun = pulse.since;
        for number in 1..=8_u8 {
            fs::write(&console, vec![b'x'; number.into()]).unwrap();
            assert!(pulse.feel(begun + Duration::from_secs(60) * number.into()).is_ok());
        }
        assert!(pulse.feel(begun + Duration::from_secs(8 * 60 + 91)).is_err());
    }

    #[test]
    fn a_machine_that_ends_without_an_exit_code_has_failed() {
        assert!(followed("echo test a ... ok").is_err());
        assert!(followed("echo 'test result: ok. 1 passed; 0 failed'").is_err());
    }

    #[test]
    fn the_exit_code_is_what_the_machine_said() {
        assert_eq!(followed(&format!("echo '{END}101'")).unwrap(), "101");
        assert_eq!(followed(&format!("echo '{END}0'; exit 1")).unwrap(), "0");
    }

    #[test]
    fn every_program_has_a_line_and_runs_one_test_at_a_time() {
        let tests = tests();
        assert_eq!(tests.lines().count(), PROGRAMS.len());
        assert!(tests.lines().all(|line| line.contains(" --test-threads=1 ")), "{tests}");
    }
}
