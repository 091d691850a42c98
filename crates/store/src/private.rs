//! Directories that belong to this user alone.
//!
//! What lies in the store is the memory and the disks of guests. Its directories have names that
//! others can guess, in places where others may create something, such as `/dev/shm`.
//!
//! Guarantees: a directory that passes is one, not a link to one; it belongs to this user, nobody
//! else may enter it, and nobody else may put another in its place. So what lies below it was put
//! there by this user, and no link below it leads elsewhere unless this user made it.
//!
//! Does not do: protect from the user's own programs, or from root.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use crate::StoreError;

/// What others may do in a directory.
const OTHERS: u32 = 0o077;
/// What lets others put something into a directory.
const OTHERS_WRITE: u32 = 0o022;
/// In a directory with this bit only the owner of an entry may move it.
const STICKY: u32 = 0o1000;

/// Creates the directory `path`, with what is missing above it, or checks the one that is there.
/// If others may only look into it, that is ended.
///
/// # Errors
/// [`StoreError::NotPrivate`] with the remedy; [`StoreError::File`] when it cannot be created.
pub fn private_directory(path: &Path) -> Result<(), StoreError> {
    let refused = |problem: String| StoreError::NotPrivate { path: path.to_owned(), problem };
    let is_link = || fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink());
    let link = "is a symbolic link; name the directory that it leads to".to_owned();
    if is_link() {
        return Err(refused(link));
    }
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|source| StoreError::file("create directory", path, source))?;
    // Held open from here on, so that what is looked at is what is changed.
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let found = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(found) => found,
        Err(_) if is_link() => return Err(refused(link)),
        Err(errno) => return Err(StoreError::file("open directory", path, errno.into())),
    };
    let stat = rustix::fs::fstat(&found)
        .map_err(|errno| StoreError::file("look at", path, errno.into()))?;
    let us = rustix::process::geteuid().as_raw();
    judge(stat.st_uid, us, stat.st_mode).map_err(&refused)?;
    replaceable(path).map_or(Ok(()), |problem| Err(refused(problem)))?;
    if stat.st_mode & OTHERS != 0 {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::openat(&found, ".", flags, Mode::empty())
            .and_then(|directory| rustix::fs::fchmod(directory, Mode::RWXU))
            .map_err(|errno| StoreError::file("close to others", path, errno.into()))?;
        tracing::info!(path = %path.display(), "others may not look into it any more");
    }
    Ok(())
}

/// What is wrong with a directory of `owner` and `mode` for user `us`. Pure.
fn judge(owner: u32, us: u32, mode: u32) -> Result<(), String> {
    let shown = mode & 0o7777;
    if owner != us {
        return Err(format!(
            "belongs to user {owner} (mode {shown:04o}), and forkd runs as user {us}; remove it, \
             or choose another directory"
        ));
    }
    if mode & OTHERS_WRITE != 0 {
        return Err(format!(
            "can be written by others than its owner (mode {shown:04o}), so what lies there may \
             be theirs; empty it and run `chmod 700` on it, or choose another directory"
        ));
    }
    Ok(())
}

/// Why somebody else could put another directory in the place of `path`, if so.
fn replaceable(path: &Path) -> Option<String> {
    let absolute = std::path::absolute(path).ok()?;
    let open = absolute.ancestors().skip(1).find(|above| {
        let mode = fs::metadata(above).map_or(0, |found| found.mode());
        mode & 0o002 != 0 && mode & STICKY == 0
    })?;
    Some(format!(
        "lies below `{}`, where everybody may rename it; run `chmod +t` on that, or choose \
         another directory",
        open.display()
    ))
}

/// Opens a file anew, for this user alone. A link in its place is an error.
pub(crate) fn private_file(options: &mut fs::OpenOptions, path: &Path) -> io::Result<fs::File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    options.mode(0o600).custom_flags(OFlags::NOFOLLOW.bits().cast_signed()).open(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

    use super::*;

    fn mode_of(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn problem(path: &Path) -> String {
        let error = private_directory(path).unwrap_err();
        assert!(matches!(error, StoreError::NotPrivate { .. }), "{error}");
        error.to_string()
    }

    #[test]
    fn a_new_directory_is_for_its_owner_and_one_that_others_can_read_is_closed() {
        let folder = tempfile::tempdir().unwrap();
        let new = folder.path().join("above/new");
        private_directory(&new).unwrap();
        assert_eq!((mode_of(&new), mode_of(new.parent().unwrap())), (0o700, 0o700));
        set_mode(&new, 0o755);
        private_directory(&new).unwrap();
        assert_eq!(mode_of(&new), 0o700);
    }

    #[test]
    fn a_directory_that_others_can_write_is_refused_with_mode_and_remedy() {
        let folder = tempfile::tempdir().unwrap();
        for mode in [0o770, 0o702, 0o1777] {
            set_mode(folder.path(), mode);
            let problem = problem(folder.path());
            assert!(problem.contains(&format!("mode {mode:04o}")), "{problem}");
            assert!(problem.contains("chmod 700"), "{problem}");
            assert!(problem.contains(folder.path().to_str().unwrap()), "{problem}");
        }
    }

    #[test]
    fn a_directory_of_another_user_is_refused_with_owner_and_remedy() {
        let said = judge(65534, 0, 0o40700).unwrap_err();
        assert!(said.contains("user 65534 (mode 0700)") && said.contains("as user 0"), "{said}");
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        chown(folder.path(), Some(65534), Some(65534)).unwrap();
        assert!(problem(folder.path()).contains("belongs to user 65534"));
    }

    #[test]
    fn a_link_is_refused_whether_it_leads_somewhere_or_not() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link");
        symlink(folder.path(), &link).unwrap();
        assert!(problem(&link).contains("symbolic link"));
        fs::remove_file(&link).unwrap();
        symlink("/nowhere/at/all", &link).unwrap();
        assert!(problem(&link).contains("symbolic link"));
    }

    #[test]
    fn a_directory_that_everybody_can_rename_is_refused_and_a_sticky_place_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("own");
        private_directory(&own).unwrap();
        set_mode(folder.path(), 0o777);
        assert!(problem(&own).contains("chmod +t"));
        set_mode(folder.path(), 0o1777);
        private_directory(&own).unwrap();
    }

    #[test]
    fn a_file_is_for_its_owner_and_a_link_in_its_place_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let mut options = fs::OpenOptions::new();
        options.write(true).create(true);
        drop(private_file(&mut options, &path).unwrap());
        assert_eq!(mode_of(&path), 0o600);
        let link = folder.path().join("link");
        symlink(&path, &link).unwrap();
        assert!(private_file(&mut options, &link).is_err());
    }
}
