//! Goal: who takes over a VMM reaches neither sockets, files, processes nor memory of the daemon,
//! of other sandboxes or of the host, and has no system call that would help.
//! Method: the preload library, in the real VMM of a sandbox, tries each. The same attempts are
//! made by a VMM that is not confined: there each of them works, so none is refused by accident.
//! What is aimed at in memory is a file of a sibling, whose checksum the sibling's guest takes, and
//! a number of the daemon's.
//! Broken by: a step of the launcher that is not taken, a system call that is allowed.

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use forkd_engine::IsolationPolicy;
use forkd_testkit::{Guest, Lab, block_on};

use crate::aims::{Others, Page, aims, pages_with};
use crate::prisoner::{Attempt, attempt, cgroup, lab, pid};

/// All that is in the root of a VMM.
const ROOT: &str = "boot disk etc forkd lib lib64 ram state usr";
/// Threads of a process that wants as many as it can get.
const THREADS_MAX: usize = 512;
const PAGE_BYTES: usize = 4096;
/// A file of the sibling, in its memory.
const FILE: &str = "/tmp/of-the-sibling";
const NUMBER: u64 = 0x5eed_0f0f_5eed_0f0f;

/// In the memory of the daemon, which is this process; one for each lab.
static OF_DAEMON: [AtomicU64; 2] = [AtomicU64::new(NUMBER), AtomicU64::new(NUMBER)];

/// A sandbox beside the one whose VMM was taken over.
struct Sibling<'a> {
    guest: Guest<'a>,
    pages: Vec<Page>,
}

impl<'a> Sibling<'a> {
    async fn of(lab: &'a Lab, guest: Guest<'a>) -> Self {
        let content = format!("{}\n", guest.id).repeat(PAGE_BYTES).into_bytes();
        guest.write(FILE, &content[..PAGE_BYTES]).await;
        let pages = pages_with(pid(lab, &guest), &content[..PAGE_BYTES]);
        assert!(!pages.is_empty(), "the file is in no page of its memory");
        Self { guest, pages }
    }

    async fn checksum(&self) -> String {
        self.guest.sh(&format!("md5sum < {FILE}")).await
    }
}

/// The daemon of a lab and that sandbox.
fn others<'a>(
    lab: &'a Lab,
    sibling: &Sibling<'_>,
    number: &AtomicU64,
) -> (Others<'a>, UnixListener) {
    let config = lab.config();
    let socket = config.run_dir.join("daemon.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let others = Others {
        state: &config.state_dir,
        hot: &config.hot_dir,
        run: &config.run_dir,
        socket,
        daemon: Page { pid: std::process::id(), address: number.as_ptr().addr() as u64 },
        sibling: sibling.pages.clone(),
        sibling_run: config.run_dir.join(sibling.guest.id.as_str()),
    };
    (others, listener)
}

fn layer_contents(lab: &Lab) -> Vec<(PathBuf, Vec<u8>)> {
    let entries = fs::read_dir(lab.config().hot_dir.join("layers")).unwrap().flatten();
    entries.map(|entry| (entry.path(), fs::read(entry.path()).unwrap())).collect()
}

#[test]
fn a_vmm_that_was_taken_over_reaches_nothing() {
    block_on(async {
        let lab = lab(IsolationPolicy::Required, None).await;
        let tag = lab.template("tiny", 128).await;
        let mut guest = lab.one(&tag).await;
        let sibling = Sibling::of(&lab, lab.one(&tag).await).await;
        let (layers, checksum) = (layer_contents(&lab), sibling.checksum().await);
        let (others, _listener) = others(&lab, &sibling, &OF_DAEMON[0]);
        let aims = aims(&others);
        for (name, argument) in &aims.attempts {
            let attempt = attempt(&lab, &guest, name, argument);
            assert!(!matches!(attempt, Attempt::Worked(_)), "{name} {argument}: {attempt:?}");
            // QEMU's own filter ends who tries, where ours refuses.
            if attempt == Attempt::Ended {
                guest = lab.one(&tag).await;
            }
        }
        for place in ["/new", "/state/new", "/disk/overlays/new", "/disk/base", "/boot/kernel"] {
            let attempt = attempt(&lab, &guest, "create", place);
            assert!(matches!(attempt, Attempt::Refused(_)), "{place}: {attempt:?}");
        }
        for name in ["layer_write", "layer_reopen", "layer_write"] {
            let attempt = attempt(&lab, &guest, name, "");
            assert!(matches!(attempt, Attempt::Refused(_)), "{name}: {attempt:?}");
        }
        let root = attempt(&lab, &guest, "list", "/");
        assert_eq!(root, Attempt::Worked(ROOT.to_owned()));
        assert!(layer_contents(&lab) == layers, "a layer has changed");
        assert_eq!(sibling.checksum().await, checksum, "the sibling's memory has changed");
        assert_eq!(OF_DAEMON[0].load(Ordering::SeqCst), NUMBER, "the daemon's memory has changed");
        assert!(threads(&lab, &guest) < THREADS_MAX);
        assert_eq!(guest.sh("echo unharmed").await, "unharmed");
    });
}

#[test]
fn a_vmm_that_is_not_confined_reaches_all_of_it() {
    block_on(async {
        let lab = lab(IsolationPolicy::None, None).await;
        let tag = lab.template("tiny", 128).await;
        let guest = lab.one(&tag).await;
        let sibling = Sibling::of(&lab, lab.one(&tag).await).await;
        let (layers, checksum) = (layer_contents(&lab), sibling.checksum().await);
        let (others, _listener) = others(&lab, &sibling, &OF_DAEMON[1]);
        let aims = aims(&others);
        for (name, argument) in &aims.attempts {
            let attempt = attempt(&lab, &guest, name, argument);
            assert!(matches!(attempt, Attempt::Worked(_)), "{name} {argument}: {attempt:?}");
        }
        assert_ne!(sibling.checksum().await, checksum, "the sibling's memory is as before");
        assert_ne!(OF_DAEMON[1].load(Ordering::SeqCst), NUMBER, "the daemon's memory is as before");
        // Descriptors of layers are read-only at every level; this VMM can get another one.
        let written = attempt(&lab, &guest, "layer_write", "");
        assert!(matches!(written, Attempt::Refused(_)), "{written:?}");
        for name in ["layer_reopen", "layer_write"] {
            let attempt = attempt(&lab, &guest, name, "");
            assert!(matches!(attempt, Attempt::Worked(_)), "{name}: {attempt:?}");
        }
        assert!(layer_contents(&lab) != layers, "no layer has changed");
        lift_threads(pid(&lab, &guest));
        assert!(threads(&lab, &guest) > THREADS_MAX);
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
