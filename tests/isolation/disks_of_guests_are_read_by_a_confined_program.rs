//! Goal: who takes over `qemu-img` by a disk that a guest has written reaches no more than the
//! disks that it works on.
//! Method: an overlay whose header names a file of the host as its backing file, and a copy that is
//! larger than it may be. The same copy by a plain process reads that file.
//! Broken by: a launcher that mounts more, a program that is started without it.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::Command;

use forkd_types::ByteCount;
use forkd_vmm::qemu::{ConfinedImg, ImgDisks};

const USER: u32 = 0x7000_0000;
const SECRET: &[u8] = b"a secret of the host";
const DISK: ByteCount = ByteCount::from_mib(4);
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
    let variable = |name: &str| std::env::var_os(name).expect("run the tests with `make test`");
    let shim = variable("FORKD_SHIM");
    let launcher = Path::new(&variable("FORKD_BIN")).with_file_name("forkd-launcher");
    let tool = ConfinedImg::start(launcher, Path::new(&shim), root).unwrap();
    let seen = ImgDisks::as_seen();
    let run = |from: &Path, arguments: [&str; 7], most: ByteCount| -> std::io::Result<()> {
        fs::write(&target, vec![0; DISK.as_usize()]).unwrap();
        let disks = ImgDisks { base: &base, from, to: &target };
        tool.run(&disks, arguments.map(str::to_owned).into(), USER, None, most)
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
