//! The launcher on this host's kernel, with a program that only waits.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use command_fds::CommandFdExt as _;
use forkd_launcher::{
    Access, Bind, Descriptor, Ids, Job, LaunchError, Launcher, LauncherConfig, Mounted, OwnIds,
    Setup, needed_by,
};
use landlock::{CompatLevel, Compatible as _, Ruleset, RulesetAttr as _, Scope};
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketType};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tempfile::TempDir;

const PROGRAM: &str = "/bin/sleep";
/// Sends a datagram to the socket with an abstract name, and says what comes of it.
const SENDER: &str = "/usr/bin/perl";
const SEND: &str = r#"socket(S, 1, 2, 0) or die;
send(S, "hello", 0, pack("Sa*", 1, "\0$ARGV[0]")) or print "$!"; print ".""#;
/// Nobody's.
const USER: u32 = 0x7000_0001;

fn launcher(root: &TempDir) -> Launcher {
    launcher_of(root, env!("CARGO_BIN_EXE_forkd-launcher").into())
}

/// A launcher that leaves out these steps.
fn launcher_without(root: &TempDir, scripts: &TempDir, steps: &[&str]) -> Launcher {
    let program = scripts.path().join(steps.join("-"));
    let (real, options) = (env!("CARGO_BIN_EXE_forkd-launcher"), steps.join(" --without "));
    fs::write(&program, format!("#!/bin/sh\nexec '{real}' --without {options}\n")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    launcher_of(root, program)
}

fn launcher_of(root: &TempDir, program: PathBuf) -> Launcher {
    let mut binds = needed_by(Path::new(PROGRAM), None).unwrap();
    for bind in needed_by(Path::new(SENDER), None).unwrap() {
        if !binds.iter().any(|known| known.to == bind.to) {
            binds.push(bind);
        }
    }
    let setup = Setup { root: root.path().to_owned(), binds, places: Vec::new() };
    Launcher::start(LauncherConfig { program, setup }).unwrap()
}

fn job(launcher: &Launcher) -> Job {
    Job {
        program: PROGRAM.into(),
        arguments: vec!["1000".to_owned()],
        environment: vec![("ONLY".to_owned(), "this".to_owned())],
        descriptors: vec![Descriptor { index: 0, number: 0 }],
        cgroups: Vec::new(),
        binds: Vec::new(),
        host_network: false,
        descriptors_max: Some(1024),
        ids: (launcher.own_ids() == OwnIds::Any).then(|| Ids {
            user: USER,
            group: USER,
            groups: Some(Vec::new()),
        }),
        threads_max: 64,
        file_bytes_max: None,
        oom_score_adj: 500,
    }
}

fn launch(launcher: &Launcher, job: Job) -> Result<Pid, LaunchError> {
    launcher.launch(job, &[File::open("/dev/null").unwrap().as_fd()])
}

/// Programs that are ended however the test ends.
#[derive(Default)]
struct Programs(Vec<Pid>);

impl Drop for Programs {
    fn drop(&mut self) {
        self.0.drain(..).for_each(end);
    }
}

/// Ends a program, which is a child of this process.
fn end(pid: Pid) {
    kill_process(pid, Signal::KILL).unwrap();
    let status = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED).unwrap().unwrap();
    assert_eq!(status.terminating_signal(), Some(Signal::KILL.as_raw()));
}

fn read(pid: Pid, file: &str) -> String {
    fs::read_to_string(format!("/proc/{}/{file}", pid.as_raw_nonzero())).unwrap()
}

/// Waits until the program does nothing: before, it opens libraries.
fn wait_until_it_sleeps(pid: Pid) {
    let until = Instant::now() + Duration::from_secs(120);
    while !read(pid, "stat").rsplit(')').next().unwrap().starts_with(" S ") {
        assert!(Instant::now() < until, "it never sleeps: {}", read(pid, "stat"));
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Children of this process with that name.
fn children(name: &str) -> Vec<Pid> {
    let own = std::process::id().to_string();
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(Pid::from_raw)
        .filter(|pid| {
            let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
            let stat = stat.unwrap_or_default();
            let fields = stat.rsplit(')').next().unwrap_or_default();
            stat.contains(&format!("({name})"))
                && fields.split_whitespace().nth(1) == Some(own.as_str())
        })
        .collect()
}

/// One test, because it counts the children of this process.
#[test]
fn a_program_begins_with_every_step_taken_or_not_at_all() {
    let root = TempDir::new().unwrap();
    let launcher = launcher(&root);

    let mut programs = Programs::default();
    let pid = launch(&launcher, job(&launcher)).unwrap();
    programs.0.push(pid);
    let status = read(pid, "status");
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("{name} in {status}")).trim().to_owned()
    };
    assert_eq!(field("NoNewPrivs"), "1");
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(field(set), "0000000000000000", "{set}");
    }
    if launcher.own_ids() == OwnIds::Any {
        assert_eq!(field("Uid"), [USER.to_string().as_str(); 4].join("\t"));
    }
    assert_eq!(read(pid, "environ"), "ONLY=this\0");
    wait_until_it_sleeps(pid);
    let open = fs::read_dir(format!("/proc/{}/fd", pid.as_raw_nonzero())).unwrap().count();
    assert_eq!(open, 1, "the one that it was given");

    // What cannot be done is named, and no process is left.
    let missing = Bind {
        from: "/nonexistent/file".into(),
        to: "/etc/ld.so.cache".into(),
        access: Access::ReadOnly,
        mounted: Mounted::Data,
    };
    let refused = launch(&launcher, Job { binds: vec![missing], ..job(&launcher) });
    let words = refused.unwrap_err().to_string();
    for word in ["/nonexistent/file", "No such file", "check that the file is there"] {
        assert!(words.contains(word), "{word}: {words}");
    }
    let absent = Job { program: "/bin/absent".into(), ..job(&launcher) };
    let words = launch(&launcher, absent).unwrap_err().to_string();
    assert!(words.contains("execute `/bin/absent`"), "{words}");
    assert_eq!(children("sleep"), [pid]);
    a_program_with_the_hosts_network_reaches_no_abstract_socket_of_it(&launcher);
    let other_root = TempDir::new().unwrap();
    a_step_that_is_left_out_is_not_taken(&other_root);

    // A launcher that has died is started again.
    let died = children("forkd-launcher");
    assert_eq!(died.len(), 1);
    kill_process(died[0], Signal::KILL).unwrap();
    // It is gone once it can be waited for.
    waitid(WaitId::Pid(died[0]), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).unwrap();
    let second = launch(&launcher, job(&launcher)).unwrap();
    programs.0.push(second);
    assert_ne!(children("forkd-launcher"), died);

    // Programs live on without their launcher.
    drop(launcher);
    assert!(children("forkd-launcher").is_empty());
    let mut left = children("sleep");
    left.sort_by_key(|pid| pid.as_raw_nonzero());
    let mut both = [pid, second];
    both.sort_by_key(|pid| pid.as_raw_nonzero());
    assert_eq!(left, both);
}

/// What comes of a datagram that a program with the host's network sends to an abstract socket of
/// the host: what it says, and whether the socket has got it.
fn datagram(launcher: &Launcher) -> (String, bool) {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::SeqCst);
    let name = format!("forkd-test-{}-{count}", std::process::id());
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
    let server = rustix::net::socket(AddressFamily::UNIX, SocketType::DGRAM, None).unwrap();
    rustix::net::bind(&server, &address).unwrap();
    let (mut said, to) = std::io::pipe().unwrap();
    let (script, mut writer) = std::io::pipe().unwrap();
    writer.write_all(SEND.as_bytes()).unwrap();
    drop(writer);
    let job = Job {
        program: SENDER.into(),
        arguments: ["-", &name].map(str::to_owned).to_vec(),
        descriptors: [(0, 0), (1, 1)].map(|(index, number)| Descriptor { index, number }).into(),
        host_network: true,
        ..job(launcher)
    };
    let pid = launcher.launch(job, &[script.as_fd(), to.as_fd()]).unwrap();
    drop(to);
    let mut words = String::new();
    said.read_to_string(&mut words).unwrap();
    waitid(WaitId::Pid(pid), WaitIdOptions::EXITED).unwrap();
    let got = rustix::net::recv(&server, &mut [0; 16], RecvFlags::DONTWAIT);
    (words, got.is_ok())
}

fn a_program_with_the_hosts_network_reaches_no_abstract_socket_of_it(launcher: &Launcher) {
    let required = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    match required.scope(Scope::AbstractUnixSocket).is_ok() {
        true => assert_eq!(datagram(launcher), ("Operation not permitted.".to_owned(), false)),
        // It is started all the same.
        false => assert_eq!(datagram(launcher), (".".to_owned(), true)),
    }
}

/// Called by the one test, because it has children too.
fn a_step_that_is_left_out_is_not_taken(root: &TempDir) {
    let scripts = TempDir::new().unwrap();
    let reaches = launcher_without(root, &scripts, &["abstract_sockets"]);
    assert_eq!(datagram(&reaches), (".".to_owned(), true));
    let privileges = |steps: &[&str]| {
        let launcher = launcher_without(root, &scripts, steps);
        let pid = launch(&launcher, job(&launcher)).unwrap();
        let status = read(pid, "status");
        end(pid);
        status.lines().find(|line| line.starts_with("NoNewPrivs")).unwrap().to_owned()
    };
    assert_eq!(privileges(&["abstract_sockets"]), "NoNewPrivs:\t1");
    assert_eq!(privileges(&["abstract_sockets", "no_new_privileges"]), "NoNewPrivs:\t0");
}

const LAUNCHES: usize = 200;
/// About what a daemon with some sandboxes holds.
const HELD_BYTES: usize = 64 << 20;

/// Half of them take less, and nine in ten.
fn percentiles(mut times: Vec<Duration>) -> [Duration; 2] {
    times.sort();
    [times[times.len() / 2], times[times.len() * 9 / 10]]
}

/// Prints both, from the request until the program was executed.
#[test]
#[ignore = "it compares times, which say something on a quiet machine only"]
fn a_launch_beside_a_fork_of_this_process() {
    let root = TempDir::new().unwrap();
    let launcher = launcher(&root);
    let held = std::hint::black_box(vec![1_u8; HELD_BYTES]);
    let (mut launches, mut forks) = (Vec::new(), Vec::new());
    for _ in 0..LAUNCHES {
        let job = job(&launcher);
        let begun = Instant::now();
        let pid = launch(&launcher, job).unwrap();
        launches.push(begun.elapsed());
        end(pid);
        let mut command = std::process::Command::new("sleep");
        command.arg("1000");
        // With descriptors to be passed on, the library forks.
        command.fd_mappings(Vec::new()).unwrap();
        let begun = Instant::now();
        let mut child = command.spawn().unwrap();
        forks.push(begun.elapsed());
        child.kill().unwrap();
        child.wait().unwrap();
    }
    drop(held);
    println!("p50 and p90 of {LAUNCHES}, {} MiB held:", HELD_BYTES >> 20);
    println!("launcher, confined: {:?}", percentiles(launches));
    println!("fork and exec, plain: {:?}", percentiles(forks));
}
