//! Goal: who takes over a VMM reaches neither sockets, files, processes nor memory of the daemon,
//! of other sandboxes or of the host, and has no system call that would help.
//! Method: the preload library, in the real VMM of a sandbox, tries each. The same attempts are
//! made by a VMM that is not confined: there each of them works, so none is refused by accident.
//! Broken by: a step of the launcher that is not taken, a system call that is allowed.

use std::fs;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::PathBuf;

use forkd_engine::IsolationPolicy;
use forkd_testkit::{Guest, Lab, block_on};
use forkd_types::OverlayId;

use crate::prisoner::{Attempt, attempt, cgroup, lab, pid};

/// All that is in the root of a VMM.
const ROOT: &str = "boot disk etc forkd lib lib64 ram state usr";
/// Threads of a process that wants as many as it can get.
const THREADS_MAX: usize = 512;

/// System calls that a VMM has no use for, by their numbers on x86-64.
const SYSTEM_CALLS: [(&str, u32); 14] = [
    ("socket", 41),
    ("ptrace", 101),
    ("setresuid", 117),
    ("pivot_root", 155),
    ("chroot", 161),
    ("mount", 165),
    ("keyctl", 250),
    ("unshare", 272),
    ("perf_event_open", 298),
    ("setns", 308),
    ("process_vm_writev", 311),
    ("bpf", 321),
    ("io_uring_setup", 425),
    ("open_tree", 428),
];

/// What attempts are aimed at. The listeners are there for as long as this is.
struct Aims {
    attempts: Vec<(&'static str, String)>,
    _listeners: (UnixListener, UnixListener, TcpListener),
}

fn aims(lab: &Lab, sibling: &Guest<'_>) -> Aims {
    let config = lab.config();
    let daemon = config.run_dir.join("daemon.sock");
    let abstract_name = format!("forkd-test-{}", sibling.id);
    let address = SocketAddr::from_abstract_name(&abstract_name).unwrap();
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = tcp.local_addr().unwrap().to_string();
    let listeners =
        (UnixListener::bind(&daemon).unwrap(), UnixListener::bind_addr(&address).unwrap(), tcp);
    let overlay = config.state_dir.join("overlays").join(format!("{}.qcow2", OverlayId::random()));
    fs::write(&overlay, "of another sandbox").unwrap();
    let sockets = fs::read_dir(config.run_dir.join(sibling.id.as_str())).unwrap().flatten();
    let sockets = sockets.map(|entry| entry.path());
    // The library's own is of another type than is connected to.
    let is_stream = |path: &PathBuf| {
        path.extension().is_some_and(|end| end == "sock") && !path.ends_with("shim.sock")
    };
    let sockets = sockets.filter(is_stream);
    let sockets: Vec<PathBuf> = sockets.collect();
    assert!(sockets.len() >= 6, "agent, console, monitors: {sockets:?}");
    let text = |path: PathBuf| path.to_string_lossy().into_owned();
    let layers = fs::read_dir(config.hot_dir.join("layers")).unwrap().flatten();
    let layer = layers.map(|entry| entry.path()).find(|path| path.extension().is_none()).unwrap();
    let theirs = pid(lab, sibling);
    let maps = fs::read_to_string(format!("/proc/{theirs}/maps")).unwrap();
    let mapped = u64::from_str_radix(maps.split('-').next().unwrap(), 16).unwrap();

    let mut attempts = vec![
        ("connect", text(daemon)),
        ("connect_abstract", abstract_name),
        ("connect_tcp", port),
        ("read", text(config.state_dir.join("registry.sqlite"))),
        ("read", text(overlay.clone())),
        ("open_for_writing", text(overlay)),
        ("read", text(layer.clone())),
        ("open_for_writing", text(layer)),
        ("read", "/etc/shadow".to_owned()),
        ("read", "/proc/self/maps".to_owned()),
        ("create", text(config.run_dir.join("escaped"))),
        ("read_memory", format!("{theirs} {mapped}")),
        ("signal", theirs.to_string()),
        ("signal", std::process::id().to_string()),
        ("execute", "/bin/true".to_owned()),
        ("layer_mode", String::new()),
    ];
    attempts.extend(sockets.into_iter().map(|socket| ("connect", text(socket))));
    attempts.extend(SYSTEM_CALLS.map(|(_, number)| ("system_call", number.to_string())));
    Aims { attempts, _listeners: listeners }
}

fn layer_contents(lab: &Lab) -> Vec<(PathBuf, Vec<u8>)> {
    let entries = fs::read_dir(lab.config().hot_dir.join("layers")).unwrap().flatten();
    entries.map(|entry| (entry.path(), fs::read(entry.path()).unwrap())).collect()
}

#[test]
fn a_vmm_that_was_taken_over_reaches_nothing_and_an_unconfined_one_all_of_it() {
    block_on(async {
        let lab_confined = lab(IsolationPolicy::Required, None).await;
        let tag = lab_confined.template("tiny", 128).await;
        let (mut guest, sibling) = (lab_confined.one(&tag).await, lab_confined.one(&tag).await);
        let layers = layer_contents(&lab_confined);
        let aims_confined = aims(&lab_confined, &sibling);
        for (name, argument) in &aims_confined.attempts {
            let attempt = attempt(&lab_confined, &guest, name, argument);
            assert!(!matches!(attempt, Attempt::Worked(_)), "{name} {argument}: {attempt:?}");
            // QEMU's own filter ends who tries, where ours refuses.
            if attempt == Attempt::Ended {
                guest = lab_confined.one(&tag).await;
            }
        }
        for place in ["/new", "/state/new", "/disk/overlays/new", "/disk/base", "/boot/kernel"] {
            let attempt = attempt(&lab_confined, &guest, "create", place);
            assert!(matches!(attempt, Attempt::Refused(_)), "{place}: {attempt:?}");
        }
        let root = attempt(&lab_confined, &guest, "list", "/");
        assert_eq!(root, Attempt::Worked(ROOT.to_owned()));
        let reopened = attempt(&lab_confined, &guest, "layer_reopen", "");
        assert!(matches!(reopened, Attempt::Refused(_)), "{reopened:?}");
        assert!(layer_contents(&lab_confined) == layers, "a layer has changed");
        assert!(threads(&lab_confined, &guest) < THREADS_MAX);
        assert_eq!(sibling.sh("echo unharmed").await, "unharmed");
        assert_eq!(guest.sh("echo unharmed").await, "unharmed");

        let lab_open = lab(IsolationPolicy::None, None).await;
        let tag = lab_open.template("tiny", 128).await;
        let (guest, sibling) = (lab_open.one(&tag).await, lab_open.one(&tag).await);
        let aims_open = aims(&lab_open, &sibling);
        for (name, argument) in &aims_open.attempts {
            let attempt = attempt(&lab_open, &guest, name, argument);
            assert!(matches!(attempt, Attempt::Worked(_)), "{name} {argument}: {attempt:?}");
        }
        lift_threads(pid(&lab_open, &guest));
        assert!(threads(&lab_open, &guest) > THREADS_MAX);
        let reopened = attempt(&lab_open, &guest, "layer_reopen", "");
        assert!(matches!(reopened, Attempt::Worked(_)), "{reopened:?}");
    });
}

/// Takes away the limit of the group of a VMM that is not confined.
fn lift_threads(pid: u32) {
    fs::write(cgroup(pid, "pids").join("pids.max"), "max").unwrap();
}

fn threads(lab: &Lab, guest: &Guest<'_>) -> usize {
    match attempt(lab, guest, "threads", "") {
        Attempt::Worked(count) => count.parse().unwrap(),
        other => panic!("{other:?}"),
    }
}
