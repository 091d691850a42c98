//! Directories of the guest: what is in them, making and removing.

use std::fs::Metadata;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use forkd_protocol::{ChangedEntry, FileOwner, Reply, code};

use crate::active::{Active, Refusal};
use crate::attributes;
use crate::files::{absolute, cancelled, refuse};
use crate::owner::{Names, Owner, make_directories};

/// Sends all entries of a directory, then the end or what went wrong. `attributes` are told whose
/// names begin so.
pub(crate) fn list(active: &Active, path: &str, attributes: Option<&str>) {
    finish(active, send_entries(active, path, attributes));
}

/// Sends what a path is, or what went wrong.
pub(crate) fn stat(active: &Active, path: &str, attributes: Option<&str>) {
    let result = absolute(path).and_then(|path| {
        let facts = std::fs::symlink_metadata(path).map_err(|error| refuse(path, &error))?;
        Ok(entry(path, &facts, &Names::read(), attributes))
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

/// Makes a directory and those above it, then says so.
pub(crate) fn make_directory(active: &Active, path: &str, owner: Option<&FileOwner>) {
    let made = absolute(path).and_then(|path| {
        let owner = Owner::find(owner)?;
        make_directories(path, owner).map_err(|error| refuse(path, &error))
    });
    finish(active, made);
}

fn finish(active: &Active, result: Result<(), Refusal>) {
    let last = match result {
        Ok(()) => Reply::Done {},
        Err(refusal) => refusal.into_reply(),
    };
    active.send(&last, || {});
}

fn send_entries(active: &Active, path: &str, attributes: Option<&str>) -> Result<(), Refusal> {
    let path = absolute(path)?;
    let fail = |error: std::io::Error| refuse(path, &error);
    let names = Names::read();
    for found in std::fs::read_dir(path).map_err(fail)? {
        let found = found.map_err(fail)?.path();
        // What has vanished meanwhile is not in the directory.
        let Ok(facts) = std::fs::symlink_metadata(&found) else { continue };
        if !active.send_when_allowed(&entry(&found, &facts, &names, attributes)) {
            return Err(cancelled(path));
        }
    }
    Ok(())
}

fn entry(path: &Path, facts: &Metadata, names: &Names, wanted: Option<&str>) -> Reply {
    let ChangedEntry { kind, bytes, mode, modified_unix_s } = changed_entry(facts);
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    let [owner, group] = names.of(facts).map(Some);
    let attributes = wanted.map(|prefix| attributes::get(path, prefix)).unwrap_or_default();
    Reply::Entry { name, kind, bytes, mode, modified_unix_s, owner, group, attributes }
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
