//! Files that a program which is not trusted may have had its hands on.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::OFlags;

/// Opens a file for reading.
///
/// # Errors
/// What the kernel says; and when it is a link, a device or anything else in the place of a file.
pub fn open_regular(path: &Path) -> io::Result<File> {
    // A pipe without a writer must not hold us up.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is not a file")) }
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
}
