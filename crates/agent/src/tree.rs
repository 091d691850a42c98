//! Directories of the guest: what is in them, making and removing.

use std::fs::Metadata;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use forkd_protocol::{ChangedEntry, FileOwner, LinkTarget, Reply, code};

use crate::active::{Active, Refusal};
use crate::attributes;
use crate::files::{absolute, cancelled, refuse};
use crate::owner::{Names, Owner, make_directories};

/// What is told of an entry besides what everybody wants to know.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    /// Attributes whose names begin so.
    pub(crate) attributes: Option<&'a str>,
    /// Where a symbolic link leads.
    pub(crate) links: bool,
}

/// Sends all entries of a directory, then the end or what went wrong.
pub(crate) fn list(active: &Active, path: &str, wanted: Wanted<'_>) {
    finish(active, send_entries(active, path, wanted));
}

/// Sends what a path is, or what went wrong.
pub(crate) fn stat(active: &Active, path: &str, wanted: Wanted<'_>) {
    let result = absolute(path).and_then(|path| {
        let facts = std::fs::symlink_metadata(path).map_err(|error| refuse(path, &error))?;
        Ok(entry(path, &facts, &Names::read(), wanted))
    });
    match result {
        Ok(entry) => drop(active.send_when_allowed(&entry)),
        Err(refusal) => active.send(&refusal.into_reply(), || {}),
    }
}

/// Removes what is there, then says so.
pub(crate) fn remove(active: &Active, path: &str, recursive: bool) {
    let result = absolute(path).and_then(|path| {
        if path.file_name().is_none() {
            let message = format!("{}: not a path that can be removed", path.display());
            return Err(Refusal::new(code::BAD_REQUEST, message));
        }
        let facts = std::fs::symlink_metadata(path).map_err(|error| refuse(path, &error))?;
        let removed = match (facts.is_dir(), recursive) {
            (false, _) => std::fs::remove_file(path),
            (true, false) => std::fs::remove_dir(path),
            (true, true) => std::fs::remove_dir_all(path),
        };
        removed.map_err(|error| refuse(path, &error))
    });
    finish(active, result);
}

/// Makes a directory and those above it, then says so. `look` is called before that.
pub(crate) fn make_directory(
    active: &Active,
    path: &str,
    owner: Option<&FileOwner>,
    look: impl FnOnce(),
) {
    let made = absolute(path).and_then(|path| {
        let owner = Owner::find(owner)?;
        make_directories(path, owner).map_err(|error| refuse(path, &error))
    });
    look();
    finish(active, made);
}

fn finish(active: &Active, result: Result<(), Refusal>) {
    let last = match result {
        Ok(()) => Reply::Done {},
        Err(refusal) => refusal.into_reply(),
    };
    active.send(&last, || {});
}

fn send_entries(active: &Active, path: &str, wanted: Wanted<'_>) -> Result<(), Refusal> {
    let path = absolute(path)?;
    let fail = |error: std::io::Error| refuse(path, &error);
    let names = Names::read();
    for found in std::fs::read_dir(path).map_err(fail)? {
        let found = found.map_err(fail)?.path();
        // What has vanished meanwhile is not in the directory.
        let Ok(facts) = std::fs::symlink_metadata(&found) else { continue };
        if !active.send_when_allowed(&entry(&found, &facts, &names, wanted)) {
            return Err(cancelled(path));
        }
    }
    Ok(())
}

fn entry(path: &Path, facts: &Metadata, names: &Names, wanted: Wanted<'_>) -> Reply {
    let ChangedEntry { kind, bytes, mode, modified_unix_s } = changed_entry(facts);
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    let [owner, group] = names.of(facts).map(Some);
    let attributes =
        wanted.attributes.map(|prefix| attributes::get(path, prefix)).unwrap_or_default();
    let link = (wanted.links && facts.is_symlink()).then(|| link_target(path));
    Reply::Entry { name, kind, bytes, mode, modified_unix_s, owner, group, attributes, link }
}

/// Where a symbolic link leads at last.
fn link_target(path: &Path) -> LinkTarget {
    let target = path.canonicalize().and_then(|to| Ok((std::fs::metadata(&to)?, to)));
    match target {
        Ok((facts, to)) => {
            let ChangedEntry { kind, bytes, mode, .. } = changed_entry(&facts);
            LinkTarget { path: to.to_string_lossy().into_owned(), kind, bytes, mode }
        }
        Err(_) => LinkTarget { path: String::new(), kind: String::new(), bytes: 0, mode: 0 },
    }
}

/// What is at a path, without its name.
pub(crate) fn changed_entry(facts: &Metadata) -> ChangedEntry {
    let kind = facts.file_type();
    let kind = match (kind.is_file(), kind.is_dir(), kind.is_symlink()) {
        (true, _, _) => "file",
        (_, true, _) => "directory",
        (_, _, true) => "symlink",
        _ => "other",
    };
    ChangedEntry {
        kind: kind.to_owned(),
        bytes: facts.len(),
        mode: facts.permissions().mode() & 0o7777,
        modified_unix_s: facts.mtime(),
    }
}
