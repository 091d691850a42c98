//! The root directory that programs see: a small read-only tmpfs with what all of them need, and
//! places where each gets what is its own.
//!
//! It is made once, in the launcher's own mount namespace, of which every program gets a copy.
//! Mounts that the host makes later appear there too; nothing that is mounted there appears on the
//! host.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, StatVfsMountFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};

use crate::job::{Access, Bind, Mounted, Place, Setup};

/// The tmpfs has directories and empty files only.
const TMPFS_OPTIONS: &std::ffi::CStr = c"mode=0755,size=256k,nr_inodes=512";

/// An error, and what was being done.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) what: String,
    pub(crate) source: io::Error,
}

pub(crate) fn failed<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Failed {
    let what = what.into();
    move |source| Failed { what, source: source.into() }
}

/// Makes the root. The calling process has a mount namespace of its own.
pub(crate) fn build(setup: &Setup) -> Result<(), Failed> {
    let root = &setup.root;
    keep_mounts_here()?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    rustix::mount::mount("tmpfs", root, "tmpfs", flags, TMPFS_OPTIONS)
        .map_err(failed(format!("mount a tmpfs on `{}`", root.display())))?;
    for bind in &setup.binds {
        if bind.mounted == Mounted::Device && make_device(root, bind).is_ok() {
            continue;
        }
        make_place(&below(root, &bind.to), bind.from.is_dir())?;
        mount(root, bind)?;
    }
    for place in &setup.places {
        match place {
            Place::File(path) => make_place(&below(root, path), false)?,
            Place::Directory(path) => make_place(&below(root, path), true)?,
        }
    }
    rustix::mount::mount_remount(root, flags | MountFlags::BIND | MountFlags::RDONLY, c"")
        .map_err(failed("make the root read-only"))
}

/// Mounts one thing in `root`.
pub(crate) fn mount(root: &Path, bind: &Bind) -> Result<(), Failed> {
    let to = below(root, &bind.to);
    let what = || format!("mount `{}`", bind.from.display());
    rustix::mount::mount_bind(&bind.from, &to).map_err(failed(what()))?;
    let mut flags = MountFlags::BIND | MountFlags::NOSUID | kept(&to).map_err(failed(what()))?;
    if bind.access == Access::ReadOnly {
        flags |= MountFlags::RDONLY;
    }
    flags |= match bind.mounted {
        Mounted::Data => MountFlags::NOEXEC | MountFlags::NODEV,
        Mounted::Programs => MountFlags::NODEV,
        Mounted::Device => MountFlags::NOEXEC,
    };
    rustix::mount::mount_remount(&to, flags, c"").map_err(failed(what()))
}

/// Makes a node for the device that every program may open, whoever may on the host: needs
/// `CAP_MKNOD`. It is on a file system of its own, because the root's has no devices.
fn make_device(root: &Path, bind: &Bind) -> Result<(), Failed> {
    let to = below(root, &bind.to);
    let what = || format!("make `{}`", to.display());
    let device = fs::metadata(&bind.from).map_err(failed(what()))?.rdev();
    let Some(directory) = to.parent() else { return Err(failed(what())(Errno::INVAL)) };
    make_place(directory, true)?;
    let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
    rustix::mount::mount("tmpfs", directory, "tmpfs", flags, TMPFS_OPTIONS)
        .map_err(failed(what()))?;
    let mode = Mode::from_raw_mode(0o666);
    let made = rustix::fs::mknodat(CWD, &to, FileType::CharacterDevice, mode, device)
        // The umask has taken something away.
        .and_then(|()| rustix::fs::chmod(&to, mode));
    if let Err(errno) = made {
        rustix::mount::unmount(directory, UnmountFlags::DETACH).map_err(failed(what()))?;
        return Err(failed(what())(errno));
    }
    rustix::mount::mount_remount(directory, flags | MountFlags::BIND | MountFlags::RDONLY, c"")
        .map_err(failed(what()))
}

/// Makes `root` the root of the calling process, and takes away the former one.
pub(crate) fn enter(root: &Path, leave: bool) -> Result<(), Failed> {
    let chdir = |path: &Path| {
        rustix::process::chdir(path).map_err(failed(format!("enter `{}`", path.display())))
    };
    chdir(root)?;
    // The former root is then mounted over the new one, where this process still stands.
    rustix::process::pivot_root(".", ".").map_err(failed("change the root directory"))?;
    if leave {
        rustix::mount::unmount(".", UnmountFlags::DETACH)
            .map_err(failed("take away the host's file system"))?;
        chdir(Path::new("/"))?;
    }
    Ok(())
}

/// Flags of the mounted file system that a mount of it must keep: the kernel refuses to take them
/// away in a user namespace.
fn kept(path: &Path) -> rustix::io::Result<MountFlags> {
    let has = rustix::fs::statvfs(path)?.f_flag;
    let pairs = [
        (StatVfsMountFlags::RDONLY, MountFlags::RDONLY),
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
        (StatVfsMountFlags::NODIRATIME, MountFlags::NODIRATIME),
        (StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
    ];
    Ok(pairs.into_iter().filter(|(flag, _)| has.contains(*flag)).map(|(_, flag)| flag).collect())
}

/// From here on nothing that is mounted here appears on the host.
fn keep_mounts_here() -> Result<(), Failed> {
    let flags = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    match rustix::mount::mount_change("/", flags) {
        // `/` is no mount point, as in a chroot: then each mount is told by itself.
        Err(Errno::INVAL) => {
            let what = "read `/proc/self/mountinfo`";
            let mounts = fs::read_to_string("/proc/self/mountinfo").map_err(failed(what))?;
            for point in mounts.lines().filter_map(mount_point) {
                let changed = rustix::mount::mount_change(&point, flags);
                // One that another is mounted over cannot be named.
                if changed.is_err_and(|errno| errno != Errno::INVAL && errno != Errno::NOENT) {
                    return changed
                        .map_err(failed(format!("keep mounts of `{}`", point.display())));
                }
            }
            Ok(())
        }
        other => other.map_err(failed("keep mounts from the host")),
    }
}

/// The fifth word of a line of `mountinfo` (`proc(5)`).
fn mount_point(line: &str) -> Option<PathBuf> {
    Some(line.split(' ').nth(4)?.replace("\\040", " ").into())
}

fn make_place(path: &Path, is_directory: bool) -> Result<(), Failed> {
    let what = || format!("make `{}`", path.display());
    let directory = if is_directory { Some(path) } else { path.parent() };
    if let Some(directory) = directory {
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o755).create(directory).map_err(failed(what()))?;
    }
    if !is_directory && !path.exists() {
        File::create(path).map_err(failed(what()))?;
    }
    Ok(())
}

/// An absolute path, in `root`.
pub(crate) fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absolute_paths_stay_in_the_root() {
        assert_eq!(below(Path::new("/r"), Path::new("/a/b")), Path::new("/r/a/b"));
        assert_eq!(below(Path::new("/r"), Path::new("a")), Path::new("/r/a"));
    }

    #[test]
    fn mount_points_are_read_with_their_blanks() {
        let line = "36 35 98:0 /m /a\\040b rw master:1 - ext3 /dev/root rw";
        assert_eq!(mount_point(line), Some("/a b".into()));
        assert_eq!(mount_point("1 2"), None);
    }
}
