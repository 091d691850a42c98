//! Goal: the agent as the first process of a real machine. Method: QEMU without KVM boots a kernel
//! and an initramfs with the agent as `/init`; the real client talks to it over virtio-serial.
//!
//! Needs `FORKD_TEST_KERNEL` and `FORKD_TEST_INITRAMFS` (the agent, the drivers, and a busybox),
//! for the disk `FORKD_TEST_ROOT_DISK` (ext4) too, and is run with `--ignored`: a machine without
//! them reports these tests as ignored, not as passed.

#![expect(clippy::unwrap_used, reason = "a test whose setup fails has failed")]

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant, SystemTime};

use forkd_engine::guest::{ExecRequest, FileWrite, GuestAgent, GuestError, Identity, Renewal};
use tempfile::TempDir;
use tokio::net::UnixStream;

/// A boot without KVM on a busy machine.
const BOOT: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_secs(120);

const SHELL: [&str; 2] = ["sh", "-c"];

struct Machine {
    process: Child,
    folder: TempDir,
}

impl Machine {
    fn start(more: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        // QEMU inherits a socket that listens already: connecting never comes too early.
        let socket = UnixListener::bind(folder.path().join("agent")).unwrap();
        let mut command = Command::new("qemu-system-x86_64");
        command
            .args("-M microvm -accel tcg -m 256 -nographic -nodefaults -no-user-config".split(' '))
            .args("-no-reboot -device virtio-serial-device".split(' '))
            .args("-chardev file,id=console,path=/dev/stdout -serial chardev:console".split(' '))
            .arg("-append")
            .arg(command_line())
            .arg("-kernel")
            .arg(given("FORKD_TEST_KERNEL"))
            .arg("-initrd")
            .arg(given("FORKD_TEST_INITRAMFS"))
            .args(["-chardev", "socket,id=a,fd=0,server=on,wait=off"])
            .args(["-device", "virtserialport,chardev=a,name=forkd.agent"])
            .args(more)
            .stdin(OwnedFd::from(socket));
        Self { process: command.spawn().unwrap(), folder }
    }

    async fn greet(&self) -> GuestAgent {
        let stream = UnixStream::connect(self.folder.path().join("agent")).await.unwrap();
        let agent = GuestAgent::connect(stream).unwrap();
        agent.hello(BOOT).await.unwrap();
        agent
    }

    fn has_ended(&mut self, within: Duration) -> bool {
        let start = Instant::now();
        while start.elapsed() < within {
            if self.process.try_wait().unwrap().is_some() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        false
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // It has ended already where a test ended it.
        self.process.kill().ok();
        self.process.wait().unwrap();
    }
}

/// Without KVM the kernel measures its time stamp counter against an emulated timer, which fails
/// now and then on a busy host; it then waits for ever for interrupts that this machine type does
/// not deliver. So it is told the host's frequency, near enough for a test.
fn command_line() -> String {
    let facts = std::fs::read_to_string("/proc/cpuinfo").unwrap();
    let mhz = facts.lines().find_map(|line| line.strip_prefix("cpu MHz")?.split_once(": "));
    let khz = mhz.map_or(String::new(), |(_, mhz)| mhz.replace('.', ""));
    format!("console=ttyS0 quiet reboot=t panic=-1 tsc=reliable tsc_early_khz={khz}")
}

fn given(name: &str) -> PathBuf {
    std::env::var_os(name).unwrap_or_else(|| panic!("{name} is not set")).into()
}

async fn shell(agent: &GuestAgent, script: &str) -> String {
    let request = ExecRequest::new([SHELL[0], SHELL[1], script]);
    let output = agent.exec(request).await.unwrap();
    assert_eq!(output.exit_code, 0, "{script}: {output:?}");
    String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
}

async fn renew(agent: &GuestAgent, name: &str, within: Duration) -> Result<Renewal, GuestError> {
    let identity = Identity {
        instance_id: name.to_owned(),
        hostname: name.to_owned(),
        machine_id: "0123456789abcdef".repeat(2),
    };
    agent.begin_renewal(identity, within).await?.confirmed().await
}

#[tokio::test]
#[ignore = "boots a VM: needs QEMU, FORKD_TEST_KERNEL, FORKD_TEST_INITRAMFS"]
async fn the_first_process_sets_up_the_machine_and_renews_its_identity() {
    let mut machine = Machine::start(&["-rtc", "base=2001-01-01"]);
    let agent = machine.greet().await;
    let facts = agent.hello(SOON).await.unwrap();
    assert!(facts.is_init && !facts.has_root_disk, "{facts:?}");
    for folder in ["/proc", "/sys", "/dev", "/dev/pts", "/dev/shm", "/run", "/sys/fs/cgroup"] {
        let mounted = shell(&agent, &format!("grep -c ' {folder} ' /proc/mounts")).await;
        assert_eq!(mounted, "1", "{folder}");
    }
    assert_eq!(shell(&agent, "cat /sys/class/net/lo/flags").await, "0x9", "loopback is up");

    let hook = FileWrite {
        mode: Some(0o755),
        create_parents: true,
        ..FileWrite::new("/etc/forkd/on-fork.d/10-note.optional")
    };
    let content = b"#!/bin/sh\necho $FORKD_INSTANCE_ID > /run/noted\nexit 3\n".to_vec();
    agent.write_file(hook, content, SOON).await.unwrap();
    let slow =
        FileWrite { mode: Some(0o755), ..FileWrite::new("/etc/forkd/on-fork.d/20-slow.optional") };
    agent.write_file(slow, b"#!/bin/sh\nsleep 100\n".to_vec(), SOON).await.unwrap();
    let begun = Instant::now();
    let renewal = renew(&agent, "sb-one", Duration::from_secs(6)).await.unwrap();
    let renewed_in = begun.elapsed();
    let hooks: Vec<_> =
        renewal.hooks.iter().map(|hook| (hook.name.as_str(), hook.exit_code)).collect();
    assert_eq!(hooks, [("10-note.optional", 3), ("20-slow.optional", 124)]);
    assert!(renewal.clock_step_ns > 20 * 365 * 24 * 3600 * 1_000_000_000);
    let state = "hostname; cat /etc/hostname /etc/machine-id /run/forkd/instance-id /run/noted";
    let id = "0123456789abcdef".repeat(2);
    assert_eq!(shell(&agent, state).await, format!("sb-one\nsb-one\n{id}\nsb-one\nsb-one"));
    // What programs do to the files does not outlive a renewal.
    let other = "echo longer-than-any-name-of-ours > /etc/hostname; rm /run/forkd/instance-id";
    shell(&agent, other).await;
    renew(&agent, "sb-1", Duration::from_secs(6)).await.unwrap();
    assert_eq!(shell(&agent, state).await, format!("sb-1\nsb-1\n{id}\nsb-1\nsb-1"));
    renew(&agent, "sb-one", Duration::from_secs(6)).await.unwrap();

    let now = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let before = now();
    let guest: u64 = shell(&agent, "date +%s").await.parse().unwrap();
    // The guest was told the time at some moment of the renewal, and tells whole seconds.
    let earliest = (before - renewed_in).as_secs();
    assert!((earliest..=now().as_secs()).contains(&guest), "guest {guest}, host {earliest} on");

    shell(&agent, "mv /etc/forkd/on-fork.d/10-note.optional /etc/forkd/on-fork.d/10-note").await;
    let refused = renew(&agent, "sb-two", Duration::from_secs(6)).await.unwrap_err();
    let failed = GuestError::HookFailed { name: "10-note".to_owned(), exit_code: 3 };
    assert_eq!(refused, failed, "a hook that is not optional must not fail");

    agent.power_off(SOON).await.unwrap();
    assert!(machine.has_ended(SOON), "the machine stays on");
}

#[tokio::test]
#[ignore = "boots a VM: needs QEMU, FORKD_TEST_KERNEL, FORKD_TEST_INITRAMFS"]
async fn the_first_process_reaps_orphans_and_serves_one_host_after_the_other() {
    let machine = Machine::start(&[]);
    let agent = machine.greet().await;
    for _ in 0..20 {
        shell(&agent, "(sleep 0.1 &) ; true").await;
    }
    // Those that the shells left behind have ended, and nobody is a zombie.
    let gone = "until ! pidof sleep && ! grep -q 'State:.Z' /proc/[0-9]*/status; do :; done";
    shell(&agent, gone).await;

    let started = Instant::now();
    let rounds = 20;
    for round in 0..rounds {
        let renewal = renew(&agent, &format!("sb-{round}"), SOON).await.unwrap();
        assert_eq!(renewal.hooks, []);
    }
    println!("renew takes {:?} on average", started.elapsed() / rounds);

    // The old host goes away in the middle of a request, and a new one comes.
    let flood = ExecRequest::new([SHELL[0], SHELL[1], "while true; do echo flood; done"]);
    let mut stream = agent.exec_stream(flood).unwrap();
    stream.next().await.unwrap();
    stream.next().await.unwrap();
    // The flood fills the way up to us, in the middle of a frame.
    tokio::time::sleep(Duration::from_millis(300)).await;
    drop((agent, stream));
    tokio::time::sleep(Duration::from_millis(300)).await;
    let agent = machine.greet().await;
    assert_eq!(shell(&agent, "echo still here").await, "still here");
    let content: Vec<u8> = (0..5_000_000u32).map(|n| (n >> 2).to_le_bytes()[0]).collect();
    agent.write_file(FileWrite::new("/tmp/content"), content.clone(), BOOT).await.unwrap();
    let back = agent.read_file("/tmp/content", BOOT).await.unwrap();
    assert!(back == content, "the content changed on the way");
}

#[tokio::test]
#[ignore = "boots a VM: needs QEMU, FORKD_TEST_KERNEL, FORKD_TEST_INITRAMFS, FORKD_TEST_ROOT_DISK"]
async fn the_first_process_moves_to_the_disk() {
    let disk = format!(
        "if=none,id=disk,format=raw,snapshot=on,file={}",
        given("FORKD_TEST_ROOT_DISK").display()
    );
    let mut machine = Machine::start(&["-drive", &disk, "-device", "virtio-blk-device,drive=disk"]);
    let agent = machine.greet().await;
    assert!(agent.hello(SOON).await.unwrap().has_root_disk);
    let root = agent.read_file("/proc/mounts", SOON).await.unwrap();
    let root = String::from_utf8(root).unwrap();
    let line = root.lines().rfind(|line| line.split(' ').nth(1) == Some("/")).unwrap();
    assert!(line.starts_with("/dev/vda / ext4 rw,noatime"), "{root}");
    for folder in ["/proc", "/sys", "/dev", "/dev/pts", "/dev/shm", "/run"] {
        assert!(root.contains(&format!(" {folder} ")), "{folder}: {root}");
    }
    renew(&agent, "sb-disk", SOON).await.unwrap();
    assert_eq!(agent.read_file("/etc/hostname", SOON).await.unwrap(), b"sb-disk\n");
    agent.power_off(SOON).await.unwrap();
    assert!(machine.has_ended(SOON), "the machine stays on");
}
