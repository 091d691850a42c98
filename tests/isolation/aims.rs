//! What somebody who has taken over a VMM would reach for.

use std::fs;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};

use forkd_types::OverlayId;

/// System calls that a VMM has no use for, by their numbers on x86-64.
const SYSTEM_CALLS: [(&str, u32); 16] = [
    ("socket", 41),
    ("fchmod", 91),
    ("ptrace", 101),
    ("setuid", 105),
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
/// System calls that make a process, with their flags: `SIGCHLD` for `clone`, and so no
/// `CLONE_THREAD`.
const MAKE_PROCESS: [(&str, &str); 3] = [("fork", "57 0"), ("vfork", "58 0"), ("clone", "56 17")];

/// A page in the memory of a process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Page {
    pub(crate) pid: u32,
    pub(crate) address: u64,
}

/// A daemon and a sandbox of its, as somebody in another sandbox sees them.
pub(crate) struct Others<'a> {
    /// Directories of the daemon.
    pub(crate) state: &'a Path,
    pub(crate) hot: &'a Path,
    pub(crate) run: &'a Path,
    /// A socket that it listens on.
    pub(crate) socket: PathBuf,
    /// Memory of the daemon's, and of the sandbox's VMM.
    pub(crate) daemon: Page,
    pub(crate) sibling: Vec<Page>,
    /// The run directory of the sandbox.
    pub(crate) sibling_run: PathBuf,
}

/// What attempts are aimed at. The listeners are there for as long as this is.
pub(crate) struct Aims {
    /// Names of probes, and arguments.
    pub(crate) attempts: Vec<(&'static str, String)>,
    _listeners: (UnixListener, TcpListener),
}

pub(crate) fn aims(others: &Others<'_>) -> Aims {
    let overlay = others.state.join("overlays").join(format!("{}.qcow2", OverlayId::random()));
    fs::write(&overlay, "of another sandbox").unwrap();
    let daemon = fs::metadata(others.state).unwrap();
    std::os::unix::fs::chown(&overlay, Some(daemon.uid()), Some(daemon.gid())).unwrap();
    let abstract_name = format!("forkd-test-{}", OverlayId::random());
    let address = SocketAddr::from_abstract_name(&abstract_name).unwrap();
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = tcp.local_addr().unwrap().to_string();
    let listeners = (UnixListener::bind_addr(&address).unwrap(), tcp);
    let layers = fs::read_dir(others.hot.join("layers")).unwrap().flatten();
    let layer = layers.map(|entry| entry.path()).find(|path| path.extension().is_none()).unwrap();
    let text = |path: PathBuf| path.to_string_lossy().into_owned();

    let mut attempts = vec![
        ("connect", text(others.socket.clone())),
        ("connect_abstract", abstract_name),
        ("connect_tcp", port),
        ("read", text(others.state.join("registry.sqlite"))),
        ("read", text(overlay.clone())),
        ("open_for_writing", text(overlay)),
        ("read", text(layer.clone())),
        ("open_for_writing", text(layer)),
        ("read", "/etc/shadow".to_owned()),
        ("read", "/proc/self/maps".to_owned()),
        ("create", text(others.run.join("escaped"))),
        ("execute", "/bin/true".to_owned()),
        ("layer_mode", String::new()),
    ];
    for page in others.sibling.iter().chain([&others.daemon]) {
        for name in ["read_memory", "write_memory"] {
            attempts.push((name, format!("{} {}", page.pid, page.address)));
        }
    }
    for pid in [others.sibling[0].pid, others.daemon.pid] {
        attempts.extend(["trace", "signal"].map(|name| (name, pid.to_string())));
    }
    attempts.extend(sockets(&others.sibling_run).into_iter().map(|path| ("connect", text(path))));
    attempts.extend(MAKE_PROCESS.map(|(_, call)| ("make_process", call.to_owned())));
    attempts.extend(SYSTEM_CALLS.map(|(_, number)| ("system_call", number.to_string())));
    Aims { attempts, _listeners: listeners }
}

/// The sockets of a sandbox: of its agent, its console, its monitors.
fn sockets(run: &Path) -> Vec<PathBuf> {
    // The library's own is of another type than is connected to.
    let is_stream = |path: &PathBuf| {
        path.extension().is_some_and(|end| end == "sock") && !path.ends_with("shim.sock")
    };
    let entries = fs::read_dir(run).unwrap().flatten();
    let sockets: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_stream).collect();
    assert!(sockets.len() >= 6, "agent, console, monitors: {sockets:?}");
    sockets
}

/// The pages of a VMM's memory that are `content`.
pub(crate) fn pages_with(pid: u32, content: &[u8]) -> Vec<Page> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let memory = fs::File::open(format!("/proc/{pid}/mem")).unwrap();
    let mut found = Vec::new();
    for line in maps.lines().filter(|line| line.contains(" rw-")) {
        let (range, _) = line.split_once(' ').unwrap();
        let (from, to) = range.split_once('-').unwrap();
        let [from, to] = [from, to].map(|hex| u64::from_str_radix(hex, 16).unwrap());
        let mut bytes = vec![0; usize::try_from(to - from).unwrap()];
        // What is mapped meanwhile, or cannot be read, is not looked for.
        if std::os::unix::fs::FileExt::read_exact_at(&memory, &mut bytes, from).is_err() {
            continue;
        }
        let pages = bytes.chunks_exact(content.len()).zip((from..).step_by(content.len()));
        found.extend(
            pages.filter(|(page, _)| *page == content).map(|(_, address)| Page { pid, address }),
        );
    }
    found
}
