//! Goal: who takes over `qemu-img` by a disk that a guest has written reaches no more than the
//! disks that it works on, and has neither privileges nor descriptors that would help.
//! Method: an overlay whose header names a file of the host as its backing file, and a copy that is
//! larger than it may be. The same copy by a plain process reads that file. From outside, `/proc`
//! is looked at while it works; a plain process shows what is looked for.
//! Broken by: a launcher that mounts more, a program that is started without it.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use forkd_testkit::SOON;
use forkd_testkit::audit::{descriptors, field, violations_of_img};
use forkd_types::ByteCount;
use forkd_vmm::OwnUser;
use forkd_vmm::qemu::{ConfinedImg, ImgDisks};

/// The tests run as root.
const USER: OwnUser = OwnUser { user: 0x7000_0000, lent_to: None };
const SECRET: &[u8] = b"a secret of the host";
const DISK: ByteCount = ByteCount::from_mib(4);
/// All descriptors of one that reads, but does not write.
const GOLDEN: [(&str, usize); 6] = [
    ("/dev/null", 1),
    ("/disk/from", 1),
    ("/memfd:qemu-img (deleted)", 2),
    ("anon_inode:[eventfd]", 3),
    ("anon_inode:[eventpoll]", 2),
    ("anon_inode:[signalfd]", 1),
];
const ENOUGH: ByteCount = ByteCount::from_mib(64);

fn qemu_img(arguments: &[&str]) {
    let status = Command::new("qemu-img").args(arguments).status().unwrap();
    assert!(status.success(), "{arguments:?}");
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A copy of what all the files below `from` show, zeros left out.
fn flat_copy<'a>(from: &'a str, to: &'a str) -> [&'a str; 7] {
    ["convert", "-n", "-fqcow2", "-Oraw", "--", from, to]
}

#[test]
fn a_program_that_reads_disks_of_guests_reaches_its_disks_alone() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let [base, secret, planted, plain, target, root] =
        ["base", "secret", "planted", "plain", "target", "root"].map(at);
    fs::create_dir(&root).unwrap();
    fs::write(&base, vec![7; DISK.as_usize()]).unwrap();
    fs::write(&secret, [SECRET, &[0; 512]].concat()).unwrap();
    qemu_img(&[
        "create",
        "-q",
        "-f",
        "qcow2",
        "-b",
        text(&secret),
        "-F",
        "raw",
        text(&planted),
        "4M",
    ]);
    for file in [&base, &planted] {
        fs::set_permissions(file, fs::Permissions::from_mode(0o444)).unwrap();
    }
    let tool = tool(root);
    let seen = ImgDisks::as_seen();
    let run = |from: &Path, arguments: [&str; 7], most: ByteCount| -> std::io::Result<()> {
        fs::write(&target, vec![0; DISK.as_usize()]).unwrap();
        let disks = ImgDisks { base: &base, from, to: &target };
        tool.run(&disks, arguments.map(str::to_owned).into(), |_| Some(USER), None, most)
    };

    fs::write(&plain, vec![0; DISK.as_usize()]).unwrap();
    qemu_img(&flat_copy(text(&planted), text(&plain)));
    assert!(fs::read(&plain).unwrap().starts_with(SECRET), "a plain process follows the header");
    let error = run(&planted, flat_copy(text(seen.from), text(seen.to)), ENOUGH).unwrap_err();
    let words = error.to_string();
    assert!(words.contains("secret") && words.contains("No such file"), "{words}");
    assert!(!fs::read(&target).unwrap().starts_with(SECRET));

    // What it may read it reads, and the file is the daemon's again.
    let raw = ["convert", "-n", "-fraw", "-Oraw", "--", text(seen.base), text(seen.to)];
    run(&planted, raw, ENOUGH).unwrap();
    assert_eq!(fs::read(&target).unwrap()[..4], [7; 4]);
    assert_eq!(fs::metadata(&target).unwrap().uid(), rustix::process::geteuid().as_raw());
    let error = run(&planted, raw, ByteCount::from_mib(1)).unwrap_err();
    assert!(error.to_string().contains("too large"), "{error:?}");
    // What it may not write it cannot.
    let raw = ["convert", "-n", "-fraw", "-Oraw", "--", text(seen.to), text(seen.base)];
    let words = run(&planted, raw, ENOUGH).unwrap_err().to_string();
    assert!(words.contains("Read-only") || words.contains("Permission"), "{words}");
}

fn tool(root: PathBuf) -> ConfinedImg {
    let variable = |name: &str| std::env::var_os(name).expect("run the tests with `make test`");
    let shim = variable("FORKD_SHIM");
    let launcher = Path::new(&variable("FORKD_BIN")).with_file_name("forkd-launcher");
    ConfinedImg::start(launcher, Path::new(&shim), root).unwrap()
}

/// A run that ends only when it is killed.
fn endless(disk: &str) -> Vec<String> {
    ["bench", "-f", "raw", "-c", "2000000000", disk].map(str::to_owned).into()
}

/// The child of this process that makes such a run on that disk.
fn child_with(disk: &str) -> Option<u32> {
    let own = std::process::id().to_string();
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let mut pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.find(|pid| {
        let process = PathBuf::from(format!("/proc/{pid}"));
        let command = fs::read_to_string(process.join("cmdline")).unwrap_or_default();
        command.contains("/qemu-img\0") && command.contains(disk) && field(&process, "PPid") == own
    })
}

/// Looks at the run on that disk until nothing is to be found, and says what is if that never
/// happens: it is there before it is confined, and its libraries are.
fn look_until_confined(disk: &str, has_ended: impl Fn() -> bool) -> Result<(), String> {
    let begun = Instant::now();
    let golden = GOLDEN.map(|(kind, count)| (kind.to_owned(), count)).into();
    let mut last = "there is none".to_owned();
    while begun.elapsed() < SOON && !has_ended() {
        if let Some(pid) = child_with(disk) {
            let (found, open) = (violations_of_img(pid, &[std::process::id()]), descriptors(pid));
            if found.is_empty() && open == golden {
                return Ok(());
            }
            last = format!("{found:#?}, {open:#?}");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Err(last)
}

/// Killed however the test ends.
struct Plain(Child);

impl Drop for Plain {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

#[test]
fn a_program_that_reads_disks_of_guests_looks_confined_from_outside() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let [base, from, to, root] = ["base", "from", "to", "root"].map(at);
    fs::create_dir(&root).unwrap();
    for file in [&base, &from, &to] {
        fs::write(file, vec![7; DISK.as_usize()]).unwrap();
    }
    let tool = tool(root);
    let seen = text(ImgDisks::as_seen().from);
    let looked = std::thread::scope(|scope| {
        let disks = ImgDisks { base: &base, from: &from, to: &to };
        let tool = &tool;
        let run =
            scope.spawn(move || tool.run(&disks, endless(seen), |_| Some(USER), None, ENOUGH));
        let looked = look_until_confined(seen, || run.is_finished());
        if let Some(pid) = child_with(seen) {
            let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        }
        run.join().unwrap().unwrap_err();
        looked
    });
    looked.unwrap();
    assert_eq!(fs::metadata(&to).unwrap().uid(), rustix::process::geteuid().as_raw());

    let mut plain = Command::new("qemu-img");
    let plain = plain.args(endless(text(&base))).stdout(Stdio::null()).spawn().unwrap();
    let plain = Plain(plain);
    let found = violations_of_img(plain.0.id(), &[std::process::id()]);
    for what in ["CapEff", "NoNewPrivs", "Seccomp is", "Uid", "mnt namespace", "host's files"] {
        assert!(found.iter().any(|one| one.contains(what)), "{what}: {found:#?}");
    }
}
