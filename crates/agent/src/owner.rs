//! To whom files belong: giving new ones to a user of the guest, and telling whose one is.
//!
//! The agent writes as the superuser, wherever that is, and gives what it has made to the user that
//! was asked for. It follows no link that somebody puts in the way meanwhile.
//!
//! Does not do: ask whether that user could have written there.

use std::collections::HashMap;
use std::fs::Metadata;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::Path;

use forkd_protocol::{FileOwner, code};
use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};
use rustix::io::Errno;

use crate::active::Refusal;
use crate::image_defaults::ImageDefaults;
use crate::user;

/// A longer name is told as a number.
const NAME_BYTES_MAX: usize = 64;
const DIRECTORY_MODE: u32 = 0o755;

/// Whom something new is given to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner {
    id: u32,
    group: u32,
}

impl Owner {
    /// The one that a request names; none for the superuser that we are.
    pub(crate) fn find(wanted: Option<&FileOwner>) -> Result<Option<Self>, Refusal> {
        let user = match wanted {
            None => Ok(None),
            Some(FileOwner::Image) => ImageDefaults::get().user(),
            Some(FileOwner::User(name)) => user::find(name).map(Some),
        };
        let user = user.map_err(|problem| Refusal::new(code::USER_NOT_FOUND, problem))?;
        Ok(user.map(|user| Self { id: user.id, group: user.group }))
    }

    /// Gives an open file to the owner.
    pub(crate) fn take(self, file: impl AsFd) -> io::Result<()> {
        fchown(file, Some(self.id), Some(self.group))
    }
}

/// Makes a directory, and missing ones above it, which belong to `owner`. One that is there is
/// fine, and stays whose it was.
pub(crate) fn make_directories(path: &Path, owner: Option<Owner>) -> io::Result<()> {
    let Some(owner) = owner else { return std::fs::create_dir_all(path) };
    let is_there = |path: &&Path| path.is_dir();
    let above = path.ancestors().find(is_there).ok_or(io::ErrorKind::NotFound)?;
    let missing = path.strip_prefix(above).map_err(|_| io::ErrorKind::InvalidInput)?;
    make_below(above, missing, owner)
}

/// Makes what is missing below a directory. None of it may be a link by now.
fn make_below(above: &Path, missing: &Path, owner: Owner) -> io::Result<()> {
    let open = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::RDONLY;
    let mut folder = openat(CWD, above, open, Mode::empty())?;
    for name in missing.components().map(|part| part.as_os_str()) {
        let made = mkdirat(&folder, name, Mode::from_bits_truncate(DIRECTORY_MODE));
        folder = openat(&folder, name, open | OFlags::NOFOLLOW, Mode::empty())?;
        match made {
            Ok(()) => owner.take(&folder)?,
            // Made by somebody else meanwhile.
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// What users and groups are called.
pub(crate) struct Names {
    users: HashMap<u32, String>,
    groups: HashMap<u32, String>,
}

impl Names {
    /// As the guest's files have it now.
    pub(crate) fn read() -> Self {
        let short = |(_, name): &(u32, String)| name.len() <= NAME_BYTES_MAX;
        let of = |names: Vec<(u32, String)>| names.into_iter().rev().filter(short).collect();
        Self { users: of(user::users()), groups: of(user::groups()) }
    }

    /// The user and the group that something belongs to: names, or numbers where there are none.
    pub(crate) fn of(&self, facts: &Metadata) -> [String; 2] {
        [(&self.users, facts.uid()), (&self.groups, facts.gid())]
            .map(|(names, id)| names.get(&id).cloned().unwrap_or_else(|| id.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_link_that_came_in_the_way_meanwhile_is_not_followed() {
        let root = tempfile::tempdir().unwrap();
        let place = |name: &str| root.path().join(name);
        fs::create_dir(place("real")).unwrap();
        let facts = fs::metadata(place("real")).unwrap();
        let owner = Owner { id: facts.uid(), group: facts.gid() };
        std::os::unix::fs::symlink(place("real"), place("link")).unwrap();
        make_below(root.path(), Path::new("link/new"), owner).unwrap_err();
        assert!(!place("real/new").exists());
        // A directory that came meanwhile is as good as one of ours.
        make_below(root.path(), Path::new("real/new"), owner).unwrap();
        assert!(place("real/new").is_dir());
    }
}
