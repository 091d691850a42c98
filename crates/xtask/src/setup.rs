//! `setup`: installs the Debian packages that building, testing and the demonstration need.
//!
//! Silent when nothing is missing. Without root it changes nothing and prints the command to run.

use std::env;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use crate::command::{output, run_logged};
use crate::progress::Step;
use crate::workspace::Workspace;

/// Packages, each with what it is for.
const PACKAGES: &[(&str, &str)] = &[
    ("apt", "fetches the guest kernel"),
    ("binutils", "strip makes test programs smaller"),
    ("busybox-static", "user land of the tiny image"),
    ("ca-certificates", "package mirrors over TLS"),
    ("e2fsprogs", "mke2fs, builds root disks"),
    ("gcc", "links Rust programs, compiles SQLite"),
    ("iproute2", "tests make networks of their own"),
    ("kmod", "depmod, orders guest kernel modules"),
    ("libc6-dev", "links Rust programs, the static guest agent"),
    ("mmdebstrap", "builds root file systems"),
    ("python3", "demonstration, SDK and published client"),
    ("python3-venv", "tools of the Python SDK"),
    ("qemu-system-x86", "runs sandboxes"),
    ("qemu-utils", "qemu-img makes disk overlays"),
    ("strace", "a test compares system calls with the systemd unit"),
    ("systemd", "systemd-analyze verifies the systemd unit in a test"),
    (
        "uidmap",
        "users of their own for VMMs of a user other than root, and mmdebstrap without root",
    ),
    ("xz-utils", "guest kernel modules may be compressed"),
    ("zstd", "guest kernel modules may be compressed"),
];

/// Those of them that only a build of the programs needs.
const COMPILERS: [&str; 2] = ["gcc", "libc6-dev"];

/// A program with its package, and what it is for. It may be there without its package.
type Program = (&'static str, &'static str, &'static str);

/// Programs that the tests of the SDKs need.
const PROGRAMS_FOR_SDKS: &[Program] = &[
    ("curl", "curl", "requests in the guides"),
    ("git", "git", "a recipe's git server"),
    ("node", "nodejs", "TypeScript SDK"),
    ("npm", "npm", "tools of the TypeScript SDK"),
];

/// Programs that tests of images and registries need.
const PROGRAMS_FOR_IMAGES: &[Program] = &[
    ("buildah", "buildah", "makes images as Podman does"),
    ("docker-registry", "docker-registry", "keeps images and snapshots"),
    ("skopeo", "skopeo", "copies images, compressed in each way"),
    ("umoci", "umoci", "makes layers that remove and replace files"),
];

/// The one of them whose package starts a server for the whole network, which nobody has asked
/// for. What is masked is not started, now or later; a test starts its own.
const SERVER: (&str, &str) = ("docker-registry", "docker-registry.service");

/// The packages that running the programs and their tests needs, but not building them.
pub(crate) fn to_run() -> Vec<&'static str> {
    let packages = PACKAGES.iter().map(|(name, _)| *name);
    let more = [PROGRAMS_FOR_SDKS, PROGRAMS_FOR_IMAGES].into_iter().flatten();
    let more = more.map(|(_, package, _)| *package);
    packages.filter(|name| !COMPILERS.contains(name)).chain(more).collect()
}

/// Installs what the tests of the SDKs need besides.
pub(crate) fn for_sdks(workspace: &Workspace) -> anyhow::Result<()> {
    get_programs(workspace, PROGRAMS_FOR_SDKS)
}

/// Installs what tests of images and registries need besides.
pub(crate) fn for_images(workspace: &Workspace) -> anyhow::Result<()> {
    get_programs(workspace, PROGRAMS_FOR_IMAGES)
}

fn get_programs(workspace: &Workspace, programs: &[Program]) -> anyhow::Result<()> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = env::split_paths(&path).collect();
    let missing = programs_not_in(&folders, programs);
    if missing.is_empty() { Ok(()) } else { get(workspace, &missing) }
}

/// The packages of programs that are in none of the folders.
fn programs_not_in(folders: &[PathBuf], programs: &[Program]) -> Vec<&'static str> {
    let is_there = |program: &str| folders.iter().any(|folder| folder.join(program).is_file());
    let missing = programs.iter().filter(|(program, ..)| !is_there(program));
    missing.map(|(_, package, _)| *package).collect()
}

/// Installs what is missing.
pub(crate) fn run(workspace: &Workspace) -> anyhow::Result<()> {
    let wanted: Vec<&str> = PACKAGES.iter().map(|(name, _)| *name).collect();
    if std::env::consts::ARCH != "x86_64" {
        bail!("forkd runs on x86_64 hosts only, this is {}", std::env::consts::ARCH);
    }
    let os_release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    if os_release_field(&os_release, "ID") != Some("debian") {
        bail!(
            "this is not Debian, so packages cannot be installed for you; use Debian 12 or 13, \
             for instance in a container or VM (needed there: {})",
            wanted.join(" ")
        );
    }
    let missing = missing(&wanted)?;
    if missing.is_empty() { Ok(()) } else { get(workspace, &missing) }
}

/// Installs packages, or says how.
fn get(workspace: &Workspace, missing: &[&str]) -> anyhow::Result<()> {
    let (package, unit) = SERVER;
    let has_server = missing.contains(&package);
    if !rustix::process::geteuid().is_root() {
        let mask =
            if has_server { format!("sudo systemctl mask {unit} && ") } else { String::new() };
        bail!(
            "missing packages; run: {mask}sudo apt-get update && sudo apt-get install -y \
             --no-install-recommends {}",
            missing.join(" ")
        );
    }
    if has_server {
        mask(&Path::new("/etc/systemd/system").join(unit))?;
    }
    install(workspace, missing)
}

/// As `systemctl mask` does it, which may not be there.
fn mask(unit: &Path) -> anyhow::Result<()> {
    let folder = unit.parent().context("a unit has a folder")?;
    fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    match symlink("/dev/null", unit) {
        // Somebody has decided what it is.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        done => done.with_context(|| format!("mask {}", unit.display())),
    }
}

/// One field of an `os-release` file, without quotes.
pub(crate) fn os_release_field<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
        .map(|value| value.trim_matches('"'))
}

fn missing<'a>(wanted: &[&'a str]) -> anyhow::Result<Vec<&'a str>> {
    let result = Command::new("dpkg-query")
        .args(["-W", "-f=${Package} ${db:Status-Status}\n"])
        .args(wanted)
        .output()
        .context("start dpkg-query")?;
    // It exits with 1 when a package is unknown; what it printed is complete all the same.
    Ok(not_installed(wanted, &String::from_utf8_lossy(&result.stdout)))
}

fn not_installed<'a>(wanted: &[&'a str], listing: &str) -> Vec<&'a str> {
    let is_installed =
        |name: &str| listing.lines().any(|line| line.split_once(' ') == Some((name, "installed")));
    wanted.iter().copied().filter(|name| !is_installed(name)).collect()
}

fn install(workspace: &Workspace, missing: &[&str]) -> anyhow::Result<()> {
    let step = Step::start(&format!("install {}", missing.join(" ")));
    update_package_lists(workspace, &step)?;
    let mut command = apt_get();
    command.args(["install", "-y", "--no-install-recommends"]).args(missing);
    run_logged(&step, command, &workspace.log("apt-install"))?;
    step.done("installed");
    Ok(())
}

/// Refreshes apt's lists; needs root.
pub(crate) fn update_package_lists(workspace: &Workspace, step: &Step) -> anyhow::Result<()> {
    let mut command = apt_get();
    command.arg("update");
    run_logged(step, command, &workspace.log("apt-update"))
}

fn apt_get() -> Command {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C.UTF-8");
    // A machine that has just booted may hold the package lock for its own updates.
    command.args(["-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=3"]);
    command
}

/// The versions of the given installed packages, one `name version` per line.
pub(crate) fn installed_versions(packages: &[&str]) -> anyhow::Result<String> {
    output(Command::new("dpkg-query").args(["-W", "-f=${Package} ${Version}\n"]).args(packages))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_and_unknown_packages_are_missing() {
        let listing = "gcc installed\nkmod config-files\nzstd installed\n";
        assert_eq!(not_installed(&["gcc", "kmod", "uidmap", "zstd"], listing), ["kmod", "uidmap"]);
    }

    #[test]
    fn a_package_whose_name_starts_alike_does_not_count() {
        assert_eq!(not_installed(&["gcc"], "gcc-12 installed\n"), ["gcc"]);
    }

    #[test]
    fn os_release_fields_are_found_by_their_whole_name() {
        let text = "VERSION_ID=\"12\"\nVERSION_CODENAME=bookworm\nID=debian\n";
        assert_eq!(os_release_field(text, "ID"), Some("debian"));
        assert_eq!(os_release_field(text, "VERSION_ID"), Some("12"));
        assert_eq!(os_release_field(text, "HOME"), None);
    }

    #[test]
    fn packages_of_programs_that_are_nowhere_are_missing() {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        fs::write(folders[1].path().join("node"), "").unwrap();
        let folders = folders.each_ref().map(|folder| folder.path().to_owned());
        let missing = |folders: &[PathBuf]| programs_not_in(folders, PROGRAMS_FOR_SDKS);
        assert_eq!(missing(&folders), ["curl", "git", "npm"]);
        assert_eq!(missing(&folders[..1]), ["curl", "git", "nodejs", "npm"]);
    }

    #[test]
    fn masked_server_stays_what_somebody_made_it() {
        let folder = tempfile::tempdir().unwrap();
        let [masked, made] = ["system/a.service", "system/b.service"];
        let [masked, made] = [masked, made].map(|name| folder.path().join(name));
        mask(&masked).unwrap();
        assert_eq!(fs::read_link(&masked).unwrap(), Path::new("/dev/null"));
        fs::write(&made, "[Unit]\n").unwrap();
        mask(&made).unwrap();
        assert_eq!(fs::read_to_string(&made).unwrap(), "[Unit]\n");
        assert!(PROGRAMS_FOR_IMAGES.iter().any(|(_, package, _)| *package == SERVER.0));
    }

    #[test]
    fn what_runs_the_programs_has_no_compiler() {
        let packages = to_run();
        assert!(["qemu-system-x86", "nodejs", "skopeo"].iter().all(|name| packages.contains(name)));
        let all: Vec<_> = PACKAGES.iter().map(|(name, _)| *name).collect();
        assert!(COMPILERS.iter().all(|name| all.contains(name) && !packages.contains(name)));
    }

    #[test]
    fn every_package_says_what_it_is_for() {
        let packages = PACKAGES.iter().copied();
        let programs = [PROGRAMS_FOR_SDKS, PROGRAMS_FOR_IMAGES].into_iter().flatten();
        let programs = programs.map(|(_, package, purpose)| (*package, *purpose));
        for (name, purpose) in packages.chain(programs) {
            assert!(!purpose.is_empty(), "{name}");
        }
    }
}
