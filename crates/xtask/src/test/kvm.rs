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
use std::io::{self, BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use forkd_sys::tsc;
use sha2::{Digest as _, Sha256};

use super::harness::Harness;
use super::programs::{self, TestProgram};
use crate::command::output;
use crate::images::{self, KvmHost};
use crate::workspace::{LAUNCHER, SHIM, Workspace};

/// Test programs and which of their tests run: those whose names hold one of the words. The rest
/// of the branch tests takes too long here and does not depend on the accelerator.
const PROGRAMS: [(&str, &[&str]); 2] = [
    ("vm_kvm", &["--ignored"]),
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
/// Size of the root disk in the machine: its content and room for what the tests write.
const ROOT_DISK: &str = "384M";

/// For the whole tier: several times what it takes on two idle cores.
const DEADLINE: Duration = Duration::from_secs(1800);
/// Everything in the machine is slow enough by itself, and tests of other tiers run beside it: it
/// goes first where that is permitted.
const NICENESS: &str = "-15";
/// How often the machine is started when its own kernel panics or stands still: what emulates its
/// CPU is not perfect, and has lost the timer's interrupt. A test that fails is not repeated.
const ATTEMPTS: u32 = 3;
/// The machine's console says something every 5 s, whatever the tests do.
const STANDS_STILL_AFTER: Duration = Duration::from_secs(90);
/// Between two looks at the console.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// RAM of the machine: its guests and their snapshots live in it.
const MEMORY_MIB: u32 = 3072;
/// What the machine writes last, before the exit code.
const END: &str = "KVM tier: exit code ";
/// What it writes before what its own kernel said, if tests failed.
const KERNEL: &str = "KVM tier: kernel";
/// Runs in the machine.
const RUN: &str = include_str!("kvm_run.sh");

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
    let mut qemu = machine(host, payload, console);
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
    let tree = work.join("payload");
    fs::create_dir(&tree).with_context(|| format!("create {}", tree.display()))?;
    copy_images(&workspace.images(), &tree.join("images"))?;
    for (name, _) in PROGRAMS {
        copy_program(&programs::system_test(all, name)?.path, &tree.join(name))?;
    }
    // The network gateway.
    copy_program(&workspace.tested().join("forkd"), &tree.join("forkd"))?;
    fs::copy(workspace.tested().join(SHIM), tree.join("shim.so")).context("copy the shim")?;
    let launcher = workspace.tested().join(LAUNCHER);
    fs::copy(launcher, tree.join(LAUNCHER)).context("copy the launcher")?;
    let environment = "export HOME=/tmp RUST_BACKTRACE=0 FORKD_IMAGE_DIR=/payload/images\n\
        export FORKD_SHIM=/payload/shim.so FORKD_ACCEL=kvm\n\
        export FORKD_QEMU=/usr/bin/qemu-system-x86_64-microvm\n";
    let files = [("environment", environment), ("tests", &tests()), ("run", RUN)];
    for (name, content) in files {
        fs::write(tree.join(name), content).with_context(|| format!("write {name}"))?;
    }
    let disk = work.join("payload.ext4");
    File::create(&disk)?.set_len(4 << 30).context("create the disk")?;
    let mut mke2fs = administrators("mke2fs");
    mke2fs.args(["-q", "-F", "-t", "ext4", "-m", "0", "-O", "^has_journal", "-d"]);
    output(mke2fs.arg(&tree).arg(&disk)).context("make the disk with the tests")?;
    Ok(disk)
}

/// A program for administrators, which need not be in PATH.
fn administrators(program: &str) -> Command {
    let mut command = Command::new(program);
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
    command
}

/// Copies what the tests need of the images. The root disk gets smaller: the product reads all of
/// it for its checksum, and the emulated CPU has no instructions for that.
fn copy_images(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::create_dir(to).with_context(|| format!("create {}", to.display()))?;
    let mut cp = Command::new("cp");
    cp.args(["-r", "--sparse=always"]).args(IMAGES.map(|name| from.join(name))).arg(to);
    output(&mut cp).context("copy the images")?;
    let disk = to.join("python/root.ext4");
    output(administrators("resize2fs").arg(&disk).arg(ROOT_DISK)).context("shrink the disk")?;
    let mut hash = Sha256::new();
    let read = File::open(&disk).and_then(|mut file| io::copy(&mut file, &mut hash));
    let bytes = read.with_context(|| format!("read {}", disk.display()))?;
    let about = to.join("python/image.json");
    let text = fs::read(&about).with_context(|| format!("read {}", about.display()))?;
    let mut image: serde_json::Value = serde_json::from_slice(&text)?;
    image["sha256"]["root_disk"] = hex::encode(hash.finalize()).into();
    image["root_disk_bytes"] = bytes.into();
    fs::write(&about, image.to_string()).with_context(|| format!("write {}", about.display()))
}

/// Copies a program without what only a debugger needs.
fn copy_program(from: &Path, to: &Path) -> anyhow::Result<()> {
    let mut strip = Command::new("strip");
    strip.arg("--strip-debug").arg("-o").arg(to).arg(from);
    output(&mut strip).with_context(|| format!("copy {}", from.display())).map(drop)
}

/// One command line for each test program.
fn tests() -> String {
    let line = |(name, arguments): (&str, &[&str])| {
        // One at a time: two guests would make each other slow and the deadlines short.
        format!("{name} --test-threads=1 {}\n", arguments.join(" "))
    };
    PROGRAMS.into_iter().map(line).collect()
}

/// The machine's kernel compares its time stamp counter, which is this host's, with an emulated
/// timer, which is late on a busy host. It would then distrust the counter, by which KVM gives its
/// guests their time. So it is told the frequency, and not to compare.
fn command_line() -> String {
    let kilohertz = tsc::kilohertz();
    format!(
        "console=ttyS0 reboot=t panic=-1 cryptomgr.notests tsc=reliable tsc_early_khz={kilohertz}"
    )
}

fn machine(host: &KvmHost, payload: &Path, console: &Path) -> Command {
    // Where a higher priority is not permitted, this says so and starts it all the same.
    let mut qemu = Command::new("nice");
    qemu.args(["-n", NICENESS, "qemu-system-x86_64"]);
    qemu.args(["-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "EPYC,+svm,+npt"]);
    // One: with two, emulated at the same time, the machine's kernel panicked or its guests hung
    // in two runs of three.
    qemu.args(["-smp", "1", "-m", &MEMORY_MIB.to_string()]);
    qemu.args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"]);
    qemu.arg("-kernel").arg(&host.kernel).arg("-initrd").arg(&host.initramfs);
    qemu.args(["-append", &command_line()]);
    // Commas in paths are doubled.
    let escaped = |path: &Path| path.to_string_lossy().replace(',', ",,");
    qemu.args(["-serial", &format!("file:{}", escaped(console))]);
    // Not the chardev "stdio": it counts as closed when there is no input, and writes then block.
    qemu.args(["-chardev", "file,id=tests,path=/dev/stdout"]);
    qemu.args(["-device", "virtio-serial-pci", "-device", "virtserialport,chardev=tests"]);
    for (name, disk) in [("root", &*host.root_disk), ("payload", payload)] {
        let file = escaped(disk);
        let drive = format!("if=none,id={name},format=raw,readonly=on,file={file}");
        qemu.args(["-drive", &drive, "-device", &format!("virtio-blk-pci,drive={name}")]);
    }
    qemu.stdin(Stdio::null()).stdout(Stdio::piped());
    qemu
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
    use super::*;

    fn followed(script: &str) -> anyhow::Result<String> {
        let folder = tempfile::tempdir().unwrap();
        let mut harness = Harness::new("KVM", &folder.path().join("log")).unwrap();
        let mut sh = Command::new("sh");
        sh.args(["-c", script]).current_dir(folder.path()).stdout(Stdio::piped());
        let mut machine = sh.spawn().unwrap();
        let mut pulse = Pulse::new(&folder.path().join("console"), Duration::from_millis(300));
        let code = follow(&mut machine, &mut harness, &mut pulse);
        machine.kill().unwrap();
        machine.wait().unwrap();
        code
    }

    #[test]
    fn a_machine_whose_console_stands_still_is_given_up() {
        let error = followed("echo alive > console; exec sleep 60").unwrap_err();
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
