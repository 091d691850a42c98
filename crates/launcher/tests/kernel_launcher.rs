//! The launcher on this host's kernel, with a program that only waits.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{self, File};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use forkd_launcher::{
    Access, Bind, Descriptor, Ids, Job, LaunchError, Launcher, LauncherConfig, Mounted, Setup,
    needed_by,
};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tempfile::TempDir;

const PROGRAM: &str = "/bin/sleep";
/// Nobody's.
const USER: u32 = 0x7000_0001;

fn launcher(root: &TempDir) -> Launcher {
    let binds = needed_by(Path::new(PROGRAM), &[]).unwrap();
    let setup = Setup { root: root.path().to_owned(), binds, places: Vec::new() };
    let program = PathBuf::from(env!("CARGO_BIN_EXE_forkd-launcher"));
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
        ids: launcher.has_own_ids().then(|| Ids { id: USER, groups: Vec::new() }),
        file_bytes_max: Some(1 << 20),
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
    if launcher.has_own_ids() {
        assert_eq!(field("Uid"), [USER.to_string().as_str(); 4].join("\t"));
    }
    assert_eq!(read(pid, "environ"), "ONLY=this\0");
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
