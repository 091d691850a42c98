//! File systems: the kernel's, the disk, and those in memory.

use std::ffi::CStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::mount::{MountFlags, mount, mount_move};

use crate::log;

const DISK: &str = "/dev/vda";
const NEW_ROOT: &str = "/newroot";

/// How long the disk may take to appear once its device was seen.
const DISK_WAIT: Duration = Duration::from_secs(5);
const DISK_POLL: Duration = Duration::from_millis(2);

/// The virtio device id of a block device, as sysfs writes it.
const VIRTIO_BLOCK: &str = "0x0002";

/// What must be there before modules and disks.
pub(super) fn mount_kernel_file_systems() {
    let safe = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    put("proc", "/proc", "proc", safe, c"");
    put("sysfs", "/sys", "sysfs", safe, c"");
    put("devtmpfs", "/dev", "devtmpfs", MountFlags::NOSUID, c"mode=0755");
}

/// What programs expect of a running system.
pub(super) fn mount_user_file_systems() {
    let safe = MountFlags::NOSUID | MountFlags::NODEV;
    let quiet = safe | MountFlags::NOEXEC;
    put(
        "devpts",
        "/dev/pts",
        "devpts",
        quiet - MountFlags::NODEV,
        c"mode=0620,gid=5,ptmxmode=0666",
    );
    put("tmpfs", "/dev/shm", "tmpfs", safe, c"mode=1777");
    put("tmpfs", "/run", "tmpfs", safe, c"mode=0755");
    put("cgroup2", "/sys/fs/cgroup", "cgroup2", quiet, c"");
    for (name, target) in [
        ("/dev/fd", "/proc/self/fd"),
        ("/dev/stdin", "/proc/self/fd/0"),
        ("/dev/stdout", "/proc/self/fd/1"),
        ("/dev/stderr", "/proc/self/fd/2"),
    ] {
        // The image or the kernel may have made them.
        symlink(target, name).ok();
    }
    // On a disk /tmp stays there: it has more room than memory, and is branched like it.
    let temporary = Path::new("/tmp");
    let made = fs::create_dir_all(temporary);
    if let Err(error) =
        made.and_then(|()| fs::set_permissions(temporary, fs::Permissions::from_mode(0o1777)))
    {
        log::failure(&format!("/tmp: {error}"));
    }
}

/// Makes the first disk the root file system. False when there is none or it cannot be used; the
/// initramfs stays.
pub(super) fn switch_to_disk() -> bool {
    if !has_block_device() {
        return false;
    }
    let start = Instant::now();
    while !Path::new(DISK).exists() {
        if start.elapsed() > DISK_WAIT {
            log::failure(&format!("{DISK} did not appear"));
            return false;
        }
        std::thread::sleep(DISK_POLL);
    }
    if !put(DISK, NEW_ROOT, "ext4", MountFlags::NOATIME, c"") {
        return false;
    }
    match switch_root() {
        Ok(()) => true,
        Err(errno) => {
            log::failure(&format!("switching to {DISK}: {errno}"));
            false
        }
    }
}

fn has_block_device() -> bool {
    let Ok(devices) = fs::read_dir("/sys/bus/virtio/devices") else { return false };
    devices.flatten().any(|device| {
        fs::read_to_string(device.path().join("device"))
            .is_ok_and(|kind| kind.trim_end() == VIRTIO_BLOCK)
    })
}

fn switch_root() -> Result<(), Errno> {
    for folder in ["/dev", "/proc", "/sys"] {
        let target = format!("{NEW_ROOT}{folder}");
        // An image without the folder gets it; one with it is left as it is.
        fs::create_dir_all(&target).ok();
        mount_move(folder, &target)?;
    }
    rustix::process::chdir(NEW_ROOT)?;
    mount_move(NEW_ROOT, "/")?;
    rustix::process::chroot(".")?;
    rustix::process::chdir("/")
}

/// Mounts; logs what fails. What is mounted already is fine.
fn put(source: &str, target: &str, kind: &str, flags: MountFlags, options: &CStr) -> bool {
    fs::create_dir_all(target).ok();
    match mount(source, target, kind, flags, options) {
        Ok(()) | Err(Errno::BUSY) => true,
        Err(errno) => {
            log::failure(&format!("mounting {target}: {errno}"));
            false
        }
    }
}
