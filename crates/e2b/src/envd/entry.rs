//! A thing of the file system as clients see it.

use forkd_engine::guest::{FileEntry, FileKind};
use serde_json::{Value, json};

use super::metadata;

const fn kind_of(kind: FileKind) -> &'static str {
    match kind {
        FileKind::File => "FILE_TYPE_FILE",
        FileKind::Directory => "FILE_TYPE_DIRECTORY",
        FileKind::Symlink => "FILE_TYPE_SYMLINK",
        FileKind::Other => "FILE_TYPE_UNSPECIFIED",
    }
}

/// As `ls -l` shows them.
fn permissions(kind: FileKind, mode: u32) -> String {
    let first = match kind {
        FileKind::Directory => 'd',
        FileKind::Symlink => 'L',
        FileKind::File | FileKind::Other => '-',
    };
    let bits =
        (0..9).rev().map(|bit| if mode & (1 << bit) == 0 { '-' } else { ['x', 'w', 'r'][bit % 3] });
    std::iter::once(first).chain(bits).collect()
}

/// The entry in an answer. Owner, group and metadata are said where they are known: of a change
/// they are not.
pub(super) fn shown(entry: &FileEntry) -> Value {
    let mut shown = json!({
        "name": entry.name,
        "type": kind_of(entry.kind),
        "path": entry.path,
        "size": entry.bytes.to_string(),
        "mode": entry.mode & 0o777,
        "permissions": permissions(entry.kind, entry.mode),
        "modifiedTime": humantime::format_rfc3339_seconds(entry.modified_at).to_string(),
    });
    for (name, value) in [("owner", &entry.owner), ("group", &entry.group)] {
        if let Some(value) = value {
            shown[name] = json!(value);
        }
    }
    if let Some(metadata) = metadata::shown(&entry.attributes) {
        shown["metadata"] = metadata;
    }
    shown
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    #[test]
    fn permissions_read_as_people_know_them() {
        assert_eq!(permissions(FileKind::File, 0o644), "-rw-r--r--");
        assert_eq!(permissions(FileKind::Directory, 0o755), "drwxr-xr-x");
        assert_eq!(permissions(FileKind::Symlink, 0o777), "Lrwxrwxrwx");
    }

    #[test]
    fn a_size_is_text_because_a_number_of_64_bits_is_so_in_json() {
        let entry = FileEntry {
            name: "a".to_owned(),
            path: "/a".to_owned(),
            kind: FileKind::File,
            bytes: 1 << 60,
            mode: 0o100_600,
            modified_at: UNIX_EPOCH,
            owner: Some("me".to_owned()),
            group: None,
            attributes: [("user.e2b.a".to_owned(), "b".to_owned())].into(),
        };
        let shown = shown(&entry);
        assert_eq!(shown["size"], "1152921504606846976");
        assert_eq!(shown["mode"], 0o600);
        assert_eq!(shown["owner"], "me");
        assert!(shown.get("group").is_none());
        assert_eq!(shown["metadata"], json!({"a": "b"}));
        assert_eq!(shown["modifiedTime"], "1970-01-01T00:00:00Z");
    }
}
