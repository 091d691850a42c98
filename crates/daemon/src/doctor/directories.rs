//! The directories that the daemon works in: room, and what their file systems can do.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use forkd_types::ByteCount;
use rustix::fs::FallocateFlags;

use super::Check;
use crate::{ServeConfig, socket};

/// With less room than this for hot layers, the first template of default size does not fit.
const HOT_BYTES_MIN: ByteCount = ByteCount::from_mib(768);
/// Less than this does not last long.
const HOT_BYTES_COMFORTABLE: ByteCount = ByteCount::from_mib(2048);
/// With less room than this for durable layers and disks, nothing can be made durable.
const STATE_BYTES_MIN: ByteCount = ByteCount::from_mib(64);
/// Less than this does not last long.
const STATE_BYTES_COMFORTABLE: ByteCount = ByteCount::from_mib(2048);
/// `TMPFS_MAGIC` of `linux/magic.h`.
const TMPFS_MAGIC: u64 = 0x0102_1994;
/// What is written to try a file system.
const SAMPLE: &[u8] = &[0x5a; 8192];

const HOT: &str = "hot directory";
const STATE: &str = "store directory";
const RUN: &str = "run directory";

/// Memory layers: tmpfs, room, files with holes.
pub(super) fn hot(directory: &Path) -> Check {
    let remedy = "set FORKD_HOT_DIR to a directory on a larger tmpfs, or enlarge this one: \
                  mount -o remount,size=8G /dev/shm";
    match fallible(directory, |file, path| {
        file.write_all(SAMPLE)?;
        // Pages that a layer does not hold are holes.
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&*file, hole, 0, 4096)?;
        room(path.parent().unwrap_or(path))
    }) {
        Err(error) => Check::fail(HOT, format!("`{}`: {error}", directory.display()), remedy),
        Ok(Room { is_tmpfs: false, .. }) => {
            Check::fail(HOT, format!("`{}` is not on tmpfs", directory.display()), remedy)
        }
        Ok(Room { free, .. }) => {
            let detail = format!("{free} free in `{}`", directory.display());
            graded(HOT, free, (HOT_BYTES_MIN, HOT_BYTES_COMFORTABLE), detail, remedy)
        }
    }
}

/// Snapshots: a file that was flushed and renamed is still there after a crash.
pub(super) fn state(directory: &Path) -> Check {
    let remedy = "choose a directory on a local disk with --store (FORKD_STATE_DIR)";
    match fallible(directory, |file, path| {
        file.write_all(SAMPLE)?;
        rustix::fs::fallocate(&*file, FallocateFlags::empty(), 0, 1 << 20)?;
        file.sync_all()?;
        let renamed = path.with_extension("renamed");
        fs::rename(path, &renamed)?;
        let same = fs::read(&renamed).map(|read| read.starts_with(SAMPLE));
        fs::remove_file(&renamed)?;
        let parent = path.parent().unwrap_or(path);
        File::open(parent)?.sync_all()?;
        match same? {
            true => room(parent),
            false => Err(io::Error::other("it returns other bytes than were written")),
        }
    }) {
        Err(error) => Check::fail(STATE, format!("`{}`: {error}", directory.display()), remedy),
        Ok(Room { is_tmpfs: true, .. }) => {
            let detail =
                format!("`{}` is on tmpfs: no snapshot survives a reboot", directory.display());
            Check::warn(STATE, detail, remedy)
        }
        Ok(Room { free, .. }) => {
            let detail = format!("{free} free in `{}`", directory.display());
            graded(STATE, free, (STATE_BYTES_MIN, STATE_BYTES_COMFORTABLE), detail, remedy)
        }
    }
}

/// Sockets: short paths, on a file system that supports them.
pub(super) fn run(config: &ServeConfig) -> Check {
    let directory = &config.run_dir;
    let remedy = "choose a shorter FORKD_HOME, or one on a local file system";
    let checked =
        socket::check_path(&config.socket).and_then(|()| socket::check_run_dir(directory));
    let listened = checked.and_then(|()| {
        let name = directory.join(format!("doctor-{}", std::process::id()));
        let listened = socket::create_private(directory).and_then(|()| UnixListener::bind(&name));
        fs::remove_file(&name).ok();
        listened.map_err(|error| format!("`{}`: {error}", directory.display()))
    });
    match listened {
        Ok(_) => Check::ok(RUN, directory.display().to_string()),
        Err(problem) => Check::fail(RUN, problem, remedy),
    }
}

struct Room {
    free: ByteCount,
    is_tmpfs: bool,
}

fn room(directory: &Path) -> io::Result<Room> {
    let status = rustix::fs::statfs(directory)?;
    let block = u64::try_from(status.f_bsize).unwrap_or_default();
    let free = ByteCount::new(status.f_bavail.saturating_mul(block));
    let is_tmpfs = u64::try_from(status.f_type).is_ok_and(|kind| kind == TMPFS_MAGIC);
    Ok(Room { free, is_tmpfs })
}

fn graded(
    name: &'static str,
    free: ByteCount,
    (min, comfortable): (ByteCount, ByteCount),
    detail: String,
    remedy: &str,
) -> Check {
    if free < min {
        Check::fail(name, format!("{detail}; {min} are needed"), remedy)
    } else if free < comfortable {
        Check::warn(name, format!("{detail}, which is little"), remedy)
    } else {
        Check::ok(name, detail)
    }
}

/// Does something with a file of our own in `directory`, which is created if it is missing.
fn fallible<T>(
    directory: &Path,
    work: impl FnOnce(&mut File, &PathBuf) -> io::Result<T>,
) -> io::Result<T> {
    socket::create_private(directory)?;
    let path = directory.join(format!("doctor-{}", std::process::id()));
    let mut file =
        File::options().read(true).write(true).create(true).truncate(true).open(&path)?;
    let done = work(&mut file, &path);
    // It may have another name by now.
    fs::remove_file(&path).ok();
    done
}

#[cfg(test)]
mod tests {
    use super::super::Outcome;
    use super::*;

    fn is_empty(directory: &Path) -> bool {
        fs::read_dir(directory).unwrap().count() == 0
    }

    #[test]
    fn a_hot_directory_must_be_on_tmpfs_and_a_store_should_not() {
        let shm = tempfile::tempdir_in("/dev/shm").unwrap();
        assert_ne!(hot(shm.path()).detail, hot(Path::new("/proc/self")).detail);
        assert_eq!(hot(Path::new("/proc/self")).outcome, Outcome::Fail);
        let check = state(shm.path());
        assert_eq!(check.outcome, Outcome::Warn, "{check:?}");
        assert!(check.detail.contains("survives a reboot"));
        assert!(is_empty(shm.path()), "what was tried is removed");
    }

    #[test]
    fn a_directory_that_cannot_be_written_is_named_with_a_remedy() {
        for check in [state(Path::new("/proc/1/nowhere")), hot(Path::new("/proc/1/nowhere"))] {
            assert_eq!(check.outcome, Outcome::Fail);
            assert!(
                check.detail.contains("/proc/1/nowhere") && check.remedy.is_some(),
                "{check:?}"
            );
        }
    }

    #[test]
    fn room_is_graded_by_what_the_first_template_needs() {
        let bounds = (ByteCount::from_mib(10), ByteCount::from_mib(20));
        let outcome =
            |mib| graded("n", ByteCount::from_mib(mib), bounds, String::new(), "r").outcome;
        assert_eq!(
            [9, 10, 19, 20].map(outcome),
            [Outcome::Fail, Outcome::Warn, Outcome::Warn, Outcome::Ok]
        );
    }
}
