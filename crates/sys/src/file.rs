//! Files that a program which is not trusted may have had its hands on.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// A file for reading. A pipe without a writer must not hold us up.
const READ: OFlags =
    OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);
/// A place to look for files in.
const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Opens a file for reading, by its name in its directory. The directory is trusted.
///
/// # Errors
/// What the kernel says; and when it is a link, a device or anything else in the place of a file.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    open_beneath(directory.unwrap_or(Path::new(".")), Path::new(name))
}

/// Opens a file for reading that is somewhere below `directory`. That one is trusted, and how it is
/// reached; from there on no link is followed and no way leads out.
///
/// # Errors
/// As [`open_regular`], and when a directory on the way is a link.
pub fn open_beneath(directory: &Path, path: &Path) -> io::Result<File> {
    let directory = rustix::fs::open(directory, DIRECTORY, Mode::empty())?;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let opened = rustix::fs::openat2(&directory, path, READ, Mode::empty(), resolve);
    let file = match opened {
        // Before Linux 5.6, or behind a filter that does not know the call.
        Err(Errno::NOSYS | Errno::PERM) => open_by_steps(directory.as_fd(), path)?,
        opened => File::from(opened?),
    };
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is not a file")) }
}

/// The same, one name after the other.
fn open_by_steps(directory: BorrowedFd<'_>, path: &Path) -> io::Result<File> {
    let mut reached: Option<OwnedFd> = None;
    let mut names = path.components().peekable();
    while let Some(Component::Normal(name)) = names.next() {
        let here = reached.as_ref().map_or(directory, OwnedFd::as_fd);
        if names.peek().is_none() {
            return Ok(rustix::fs::openat(here, name, READ, Mode::empty())?.into());
        }
        let flags = DIRECTORY | OFlags::NOFOLLOW;
        reached = Some(rustix::fs::openat(here, name, flags, Mode::empty())?);
    }
    // Out of the directory, or nowhere.
    Err(Errno::XDEV.into())
}

/// Makes a file that was given to another user this process's own.
///
/// # Errors
/// What the kernel says.
pub fn take_back(file: &File) -> io::Result<()> {
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    if file.metadata()?.uid() != user.as_raw() {
        rustix::fs::fchown(file, Some(user), Some(group))?;
    }
    Ok(())
}

/// `F_SETSIG` of `fcntl.h`.
const SET_SIGNAL: libc::c_int = 10;

/// Whether somebody has a file open for writing, or mapped so, whoever that is. Nothing where the
/// file system cannot tell. `file` is open for reading, and this process's own.
///
/// The kernel gives a lease for reading only on a file that nobody can write through what is open.
///
/// # Errors
/// What the kernel says.
pub fn has_writers(file: &File) -> io::Result<Option<bool>> {
    let lease = |kind: libc::c_int| {
        // SAFETY: fcntl with these commands takes an integer and touches no memory.
        let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, kind) };
        if result == -1 { Err(Errno::from_io_error(&io::Error::last_os_error())) } else { Ok(()) }
    };
    // Who opened the file for writing during the lease would have this process told, by a signal
    // that ends it unless another is asked for.
    // SAFETY: as above.
    unsafe { libc::fcntl(file.as_raw_fd(), SET_SIGNAL, libc::SIGURG) };
    match lease(libc::F_RDLCK) {
        Ok(()) => lease(libc::F_UNLCK).map(|()| Some(false)).map_err(to_io),
        Err(Some(Errno::AGAIN)) => Ok(Some(true)),
        Err(Some(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS)) => Ok(None),
        Err(errno) => Err(to_io(errno)),
    }
}

fn to_io(errno: Option<Errno>) -> io::Error {
    errno.map_or_else(|| io::ErrorKind::Other.into(), io::Error::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_file_is_not_opened() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, "x").unwrap();
        assert!(open_regular(&path).is_ok());
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        for wrong in [link.as_path(), directory.path(), Path::new("/dev/null")] {
            assert!(open_regular(wrong).is_err(), "{}", wrong.display());
        }
    }

    #[test]
    fn who_can_write_a_file_is_found_by_descriptor_copy_and_mapping() {
        use std::os::fd::AsRawFd as _;

        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, [0; 4096]).unwrap();
        let read = open_regular(&path).unwrap();
        let _other = open_regular(&path).unwrap();
        assert_eq!(has_writers(&read).unwrap(), Some(false));
        let written = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let copy = written.try_clone().unwrap();
        // SAFETY: a new mapping of a file that only this test has; it is not read or written.
        let mapped = unsafe {
            let (protection, fd) = (libc::PROT_READ | libc::PROT_WRITE, written.as_raw_fd());
            libc::mmap(std::ptr::null_mut(), 4096, protection, libc::MAP_SHARED, fd, 0)
        };
        assert_ne!(mapped, libc::MAP_FAILED);
        assert_eq!(has_writers(&read).unwrap(), Some(true));
        drop(written);
        assert_eq!(has_writers(&read).unwrap(), Some(true), "a copy is open");
        drop(copy);
        assert_eq!(has_writers(&read).unwrap(), Some(true), "it is mapped");
        // SAFETY: the mapping is this test's, and nothing uses it.
        assert_eq!(unsafe { libc::munmap(mapped, 4096) }, 0);
        assert_eq!(has_writers(&read).unwrap(), Some(false));
        // No lease is left: it would hold up who opens the file for writing.
        std::fs::write(&path, "x").unwrap();
    }

    #[test]
    fn no_link_is_followed_below_a_directory_and_no_way_leads_out() {
        let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (root, outside) = (root.path(), outside.path());
        let link = |to: &Path, name: &str| {
            std::os::unix::fs::symlink(to, root.join(name)).unwrap();
        };
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        std::fs::write(root.join("a/b/file"), "mine").unwrap();
        std::fs::write(outside.join("file"), "foreign").unwrap();
        link(outside, "middle");
        link(&root.join("a"), "inside");
        link(&outside.join("file"), "a/last");
        let directory = rustix::fs::open(root, DIRECTORY, Mode::empty()).unwrap();
        // What the kernel does at once, and what is done where it cannot.
        let open = |at_once: bool, path: &Path| match at_once {
            true => open_beneath(root, path),
            false => open_by_steps(directory.as_fd(), path),
        };
        let up = Path::new("../").join(outside.file_name().unwrap()).join("file");
        for at_once in [true, false] {
            let open = |path: &Path| open(at_once, path);
            let mine = open(Path::new("a/b/file")).unwrap();
            assert_eq!(io::read_to_string(mine).unwrap(), "mine");
            let planted = ["middle/file", "inside/b/file", "a/last", "a/b/../b/../../a/last"];
            let planted = planted.map(Path::new).into_iter();
            for path in planted.chain([up.as_path(), &outside.join("file")]) {
                assert!(open(path).is_err(), "{}", path.display());
            }
        }
        // The directory itself may be reached by a link, as that of all states is on some hosts.
        assert!(open_beneath(&root.join("inside"), Path::new("b/file")).is_ok());
        assert!(open_beneath(root, Path::new("a/b")).is_err(), "a directory is no file");
    }
}
