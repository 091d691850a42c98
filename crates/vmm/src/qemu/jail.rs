//! What a confined VMM sees of its files: which of them are mounted in its root, under which
//! names, and whose they are.
//!
//! ```text
//! /usr/lib/..  programs, libraries, firmware, where they are on the host   read-only, for all
//! /forkd/shim.so                                                           read-only, for all
//! /boot/kernel  /boot/initramfs            of one that boots               read-only
//! /disk/base                                                               read-only
//! /ram                     RAM of a template, or the placeholder           the VMM's
//! /disk/overlays/ID.qcow2  the top one is the VMM's, frozen ones the daemon's, read-only
//! /state/device-state      made by the daemon for each pause               the VMM's
//! ```
//!
//! What is the VMM's belongs to its user. Where the daemon is not root and VMMs have users all the
//! same, it belongs to the daemon, and the VMM's group may write it: it lies below directories of
//! the daemon's that nobody else enters, and no other VMM has a name for it.
//!
//! Guarantees: directories are the daemon's, so a VMM makes, renames and removes nothing; what it
//! names in an answer is looked for among its own files.
//!
//! An overlay that the VMM has open for writing when it is frozen is closed for writing by
//! [`super::freeze`]: taking back the file alone does not take back a descriptor.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use forkd_launcher::{Access, Bind, Ids, Job, Launcher, Mounted, Place, Setup, needed_by};
use forkd_sys::file::{open_regular, take_back};
use forkd_sys::shim_wire;
use forkd_sys::user::has_process;
use forkd_types::{Accelerator, ByteCount, limit};

use crate::shim_client::ShimNumbers;
use crate::spec::{CONFINED_BASE, CONFINED_OVERLAYS};
use crate::{Disk, DiskOverlay, Jail, OwnUser, Start, VmSpec, VmmError, VmmTools};

const KERNEL: &str = "/boot/kernel";
const INITRAMFS: &str = "/boot/initramfs";
const RAM: &str = "/ram";
const DEVICE_STATE: &str = "/state";
/// Where the preload library is.
pub(super) const SHIM: &str = "/forkd/shim.so";
const KVM: &str = "/dev/kvm";

/// When the host is out of memory, the kernel looks for a VMM before it looks for anything else of
/// forkd (`proc(5)`).
pub(super) const OOM_SCORE_ADJ: i32 = 500;

/// Only the owner.
const OWNERS: u32 = 0o600;
/// The owner and a group that the file is lent to.
const LENT: u32 = 0o660;
/// Everybody who is given a name for it, and nobody may write.
const FROZEN: u32 = 0o444;
const DIRECTORY: u32 = 0o755;

/// The names that the VMM of a VM knows its files by.
#[derive(Debug, Clone, Copy)]
pub(super) struct Names<'a> {
    spec: &'a VmSpec,
}

impl<'a> Names<'a> {
    pub(super) fn of(spec: &'a VmSpec) -> Self {
        Self { spec }
    }

    fn named(self, inside: &str, outside: &Path) -> PathBuf {
        if self.spec.confinement.jail.is_some() { inside.into() } else { outside.to_owned() }
    }

    pub(super) fn kernel(self) -> PathBuf {
        self.named(KERNEL, &self.spec.boot.kernel)
    }

    pub(super) fn initramfs(self) -> PathBuf {
        self.named(INITRAMFS, &self.spec.boot.initramfs)
    }

    pub(super) fn ram(self) -> PathBuf {
        self.named(RAM, self.spec.ram.path())
    }

    pub(super) fn base(self, disk: &Disk) -> PathBuf {
        self.named(CONFINED_BASE, &disk.base)
    }

    /// The overlay under the name of its file there.
    pub(super) fn overlay(self, overlay: &DiskOverlay) -> DiskOverlay {
        let (path, node) = (self.file_in(CONFINED_OVERLAYS, &overlay.path), overlay.node.clone());
        DiskOverlay { path, node }
    }

    pub(super) fn device_state(self, path: &Path) -> PathBuf {
        self.file_in(DEVICE_STATE, path)
    }

    fn file_in(self, directory: &str, path: &Path) -> PathBuf {
        let name = path.file_name().map(|name| Path::new(directory).join(name));
        self.named(&name.unwrap_or_default().to_string_lossy(), path)
    }
}

/// What all VMMs of `program` have in their roots, which are built on the directory `root`.
pub(super) fn setup(
    program: &Path,
    shim: &Path,
    accelerator: Accelerator,
    root: PathBuf,
) -> Result<Setup, VmmError> {
    let mut binds =
        needed_by(program, Some(shim)).map_err(|error| VmmError::Confine(error.into()))?;
    for directory in data_directories(program)? {
        if !binds.iter().any(|bind| directory.starts_with(&bind.to)) {
            binds.push(read_only(directory.clone(), directory));
        }
    }
    binds.push(shim_bind(shim));
    if accelerator == Accelerator::Kvm {
        let (access, mounted) = (Access::ReadWrite, Mounted::Device);
        binds.push(Bind { from: KVM.into(), to: KVM.into(), access, mounted });
    }
    let files = [KERNEL, INITRAMFS, RAM, CONFINED_BASE].map(|path| Place::File(path.into()));
    let directories = [CONFINED_OVERLAYS, DEVICE_STATE].map(|path| Place::Directory(path.into()));
    Ok(Setup { root, binds, places: files.into_iter().chain(directories).collect() })
}

/// Where QEMU looks for firmware.
fn data_directories(program: &Path) -> Result<Vec<PathBuf>, VmmError> {
    let name = || program.display().to_string();
    let output = Command::new(program).args(["-L", "help"]).stdin(Stdio::null()).output();
    let output = output.map_err(|source| VmmError::Spawn { program: name(), source })?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().filter_map(|line| fs::canonicalize(line.trim()).ok()).collect())
}

/// The preload library.
pub(super) fn shim_bind(shim: &Path) -> Bind {
    Bind { mounted: Mounted::Programs, ..read_only(shim.to_owned(), SHIM.into()) }
}

pub(super) fn read_only(from: PathBuf, to: PathBuf) -> Bind {
    Bind { from, to, access: Access::ReadOnly, mounted: Mounted::Data }
}

pub(super) fn writable(from: &Path, to: &str) -> Bind {
    Bind { access: Access::ReadWrite, ..read_only(from.to_owned(), to.into()) }
}

/// What one VMM has in its root besides.
pub(super) fn binds(spec: &VmSpec, jail: &Jail) -> Vec<Bind> {
    let mut binds =
        vec![writable(spec.ram.path(), RAM), writable(&jail.device_state, DEVICE_STATE)];
    if spec.start == Start::Boot {
        binds.push(read_only(spec.boot.kernel.clone(), KERNEL.into()));
        binds.push(read_only(spec.boot.initramfs.clone(), INITRAMFS.into()));
    }
    if let Some(disk) = &spec.disk {
        binds.push(read_only(disk.base.clone(), CONFINED_BASE.into()));
        binds.push(writable(&jail.overlays, CONFINED_OVERLAYS));
    }
    binds
}

/// The VMM as a job of the launcher, without descriptors.
pub(super) fn job(
    spec: &VmSpec,
    jail: &Jail,
    tools: &VmmTools,
    arguments: Vec<OsString>,
    shim: ShimNumbers,
) -> Result<Job, VmmError> {
    let program = &tools.program;
    let arguments = arguments.into_iter().map(|argument| {
        argument.into_string().map_err(|argument| VmmError::Spawn {
            program: program.display().to_string(),
            source: io::Error::other(format!("{} is not UTF-8", argument.display())),
        })
    });
    let environment = [
        ("LD_PRELOAD".to_owned(), SHIM.to_owned()),
        (shim_wire::FILTER_VARIABLE.to_owned(), "1".to_owned()),
    ];
    let numbers = shim.variables().map(|(name, number)| (name.to_owned(), number));
    Ok(Job {
        program: program.clone(),
        arguments: arguments.collect::<Result<_, _>>()?,
        environment: environment.into_iter().chain(numbers).collect(),
        descriptors: Vec::new(),
        cgroups: Vec::new(),
        binds: binds(spec, jail),
        host_network: false,
        descriptors_max: Some(limit::VMM_DESCRIPTORS_MAX),
        ids: jail.own_user().map(|own| ids(own, spec.accelerator)),
        threads_max: limit::VMM_THREADS_MAX,
        file_bytes_max: spec.confinement.file_max.map(ByteCount::get),
        oom_score_adj: OOM_SCORE_ADJ,
    })
}

/// Who a program is, with the groups that it needs for its accelerator.
pub(super) fn ids(own: OwnUser, accelerator: Accelerator) -> Ids {
    let device = match accelerator {
        Accelerator::Kvm => fs::metadata(KVM).ok(),
        Accelerator::Tcg => None,
    };
    let is_everybodys = |device: &fs::Metadata| device.mode() & 0o006 == 0o006;
    let groups = match (device, own.lent_to) {
        // The daemon cannot give it the device's group alone.
        (Some(device), Some(_)) if !is_everybodys(&device) => None,
        (Some(device), None) => Some(vec![device.gid()]),
        _ => Some(Vec::new()),
    };
    Ids { user: own.user, group: own.lent_to.unwrap_or(own.user), groups }
}

/// Refuses a user that a process has already. Root's are too many for two daemons to meet; those of
/// an ordinary user are few, and what the user runs besides may have them too.
pub(super) fn require_free(jail: &Jail) -> Result<(), VmmError> {
    match jail.own_user() {
        Some(OwnUser { user, lent_to: Some(_) }) if has_process(user) => {
            Err(VmmError::UserInUse { user })
        }
        _ => Ok(()),
    }
}

/// Gives the VMM what is its own before it starts: RAM, the top overlay; and a name for each
/// overlay below.
pub(super) fn hand_over(spec: &VmSpec, jail: &Jail, by: &Launcher) -> Result<(), VmmError> {
    give(spec.ram.path(), jail, Some(by))?;
    make_directory(&jail.device_state)?;
    let Some(disk) = &spec.disk else { return Ok(()) };
    make_directory(&jail.overlays)?;
    let Some((top, frozen)) = disk.overlays.split_last() else { return Ok(()) };
    for overlay in frozen {
        give_frozen_overlay(&overlay.path, jail)?;
    }
    give_overlay(&top.path, jail, Some(by))
}

/// Gives a running VMM one more overlay to write to.
pub(super) fn give_overlay(
    path: &Path,
    jail: &Jail,
    by: Option<&Launcher>,
) -> Result<(), VmmError> {
    give(path, jail, by)?;
    link(path, jail)
}

/// Gives a VMM an overlay that it may only read.
pub(super) fn give_frozen_overlay(path: &Path, jail: &Jail) -> Result<(), VmmError> {
    freeze(path)?;
    link(path, jail)
}

/// Takes back the name of an overlay that the VMM has closed.
pub(super) fn take_overlay(path: &Path, jail: &Jail) {
    let Some(name) = path.file_name() else { return };
    let link = jail.overlays.join(name);
    if let Err(error) = fs::remove_file(&link)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(path = %link.display(), %error, "a VMM keeps a name for a disk overlay");
    }
}

/// Makes an overlay that takes no more writes the daemon's again.
pub(super) fn freeze(path: &Path) -> Result<(), VmmError> {
    let failed = |source| VmmError::file("freeze disk overlay", path, source);
    let file = open_regular(path).map_err(failed)?;
    take_back(&file).map_err(failed)?;
    file.set_permissions(fs::Permissions::from_mode(FROZEN)).map_err(failed)
}

/// An empty file for the VMM to save device state in.
pub(super) fn make_device_state(
    path: &Path,
    jail: &Jail,
    by: Option<&Launcher>,
) -> Result<(), VmmError> {
    let failed = |source| VmmError::file("create", path, source);
    if let Err(error) = fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(failed(error));
    }
    let file = OpenOptions::new().write(true).create_new(true).mode(OWNERS).open(path);
    let file = file.map_err(failed)?;
    give_open(&file, path, jail.own_user(), by)
}

/// The file that a VMM means by a name, which is a file of its own or none.
pub(super) fn host_overlay(name: &Path, jail: &Jail) -> Option<PathBuf> {
    let file = name.strip_prefix(CONFINED_OVERLAYS).ok()?;
    let is_plain = Some(file.as_os_str()) == name.file_name();
    // A link is made before the VMM is told of it, and removed when it has closed it.
    let is_given = is_plain
        && fs::symlink_metadata(jail.overlays.join(file)).is_ok_and(|metadata| metadata.is_file());
    is_given.then(|| jail.overlay_store.join(file))
}

fn give(path: &Path, jail: &Jail, by: Option<&Launcher>) -> Result<(), VmmError> {
    let file = open_regular(path).map_err(|source| VmmError::file("give the VMM", path, source))?;
    give_open(&file, path, jail.own_user(), by)
}

/// Lets a program write a file, and nobody else but the daemon: by its user, if programs have such
/// users here. `by` is a launcher of programs with such users.
pub(super) fn give_open(
    file: &File,
    path: &Path,
    own: Option<OwnUser>,
    by: Option<&Launcher>,
) -> Result<(), VmmError> {
    let failed = |source| VmmError::file("give the VMM", path, source);
    let owner = match own {
        Some(OwnUser { lent_to: Some(group), .. }) => {
            let no_launcher = || failed(io::Error::other("VMMs are not isolated by this daemon"));
            return Ok(by.ok_or_else(no_launcher)?.lend(file.as_fd(), group, LENT)?);
        }
        Some(OwnUser { user, lent_to: None }) => Some(user),
        None => None,
    };
    if let Some(user) = owner {
        let (uid, gid) = (rustix::fs::Uid::from_raw(user), rustix::fs::Gid::from_raw(user));
        rustix::fs::fchown(file, Some(uid), Some(gid)).map_err(|error| failed(error.into()))?;
    }
    file.set_permissions(fs::Permissions::from_mode(OWNERS)).map_err(failed)
}

/// Makes a file that a program was given the daemon's again, and its alone.
pub(super) fn give_back(file: &File) -> io::Result<()> {
    take_back(file)?;
    file.set_permissions(fs::Permissions::from_mode(OWNERS))
}

fn link(path: &Path, jail: &Jail) -> Result<(), VmmError> {
    let Some(name) = path.file_name() else { return Ok(()) };
    let link = jail.overlays.join(name);
    match fs::hard_link(path, &link) {
        // Of an attempt that failed.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other.map_err(|source| VmmError::file("link", link, source)),
    }
}

fn make_directory(path: &Path) -> Result<(), VmmError> {
    let made = fs::create_dir_all(path)
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(DIRECTORY)));
    made.map_err(|source| VmmError::file("create", path, source))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jail(directory: &Path) -> Jail {
        Jail {
            user: None,
            lent_to: None,
            overlays: directory.join("overlays"),
            overlay_store: "/store".into(),
            device_state: directory.join("state"),
        }
    }

    #[test]
    fn a_vmm_means_its_own_files_or_none() {
        let directory = tempfile::tempdir().unwrap();
        let jail = jail(directory.path());
        fs::create_dir(&jail.overlays).unwrap();
        fs::write(jail.overlays.join("a.qcow2"), "").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", jail.overlays.join("l.qcow2")).unwrap();
        let found = |name: &str| host_overlay(Path::new(name), &jail);
        assert_eq!(found("/disk/overlays/a.qcow2"), Some("/store/a.qcow2".into()));
        for foreign in [
            "/disk/overlays/b.qcow2",
            "/disk/overlays/l.qcow2",
            "/disk/overlays/../base",
            "/disk/overlays/x/../a.qcow2",
            "/disk/overlays/",
            "/store/a.qcow2",
            "a.qcow2",
        ] {
            assert_eq!(found(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn no_vmm_is_started_with_a_user_that_a_process_has() {
        let with = |user, lent_to| Jail { user, lent_to, ..jail(Path::new("/")) };
        let me = rustix::process::geteuid().as_raw();
        let error = require_free(&with(Some(me), Some(7))).unwrap_err();
        assert!(matches!(error, VmmError::UserInUse { user } if user == me), "{error}");
        assert!(require_free(&with(Some(1_234_321_001), Some(7))).is_ok());
        assert!(require_free(&with(None, None)).is_ok(), "it is whoever the daemon is");
    }

    #[test]
    fn a_link_in_the_place_of_an_overlay_is_not_given_away() {
        let directory = tempfile::tempdir().unwrap();
        let jail = jail(directory.path());
        fs::create_dir(&jail.overlays).unwrap();
        let planted = directory.path().join("o.qcow2");
        std::os::unix::fs::symlink("/etc/passwd", &planted).unwrap();
        assert!(give_overlay(&planted, &jail, None).is_err());
        assert!(freeze(&planted).is_err());
    }

    #[test]
    fn device_state_is_saved_in_a_new_file_and_not_through_a_planted_link() {
        let directory = tempfile::tempdir().unwrap();
        let victim = directory.path().join("victim");
        fs::write(&victim, "kept").unwrap();
        let path = directory.path().join("device-state");
        std::os::unix::fs::symlink(&victim, &path).unwrap();
        make_device_state(&path, &jail(directory.path()), None).unwrap();
        assert!(fs::symlink_metadata(&path).unwrap().is_file());
        assert_eq!(fs::read_to_string(victim).unwrap(), "kept");
    }
}
