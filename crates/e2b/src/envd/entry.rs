//! A thing of the file system as clients see it.
//!
//! A symbolic link has the type and the mode of what it leads to, and says what that is. One that
//! leads nowhere has no type, and names itself. All else of it is the link's own.

use std::collections::BTreeMap;

use forkd_engine::guest::{FileEntry, FileKind, FileLink};
use serde::Serialize;
use utoipa::ToSchema;

use super::metadata;

/// What kind of thing it is.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[schema(as = FileType)]
enum Type {
    #[serde(rename = "FILE_TYPE_FILE")]
    File,
    #[serde(rename = "FILE_TYPE_DIRECTORY")]
    Directory,
    #[serde(rename = "FILE_TYPE_SYMLINK")]
    Symlink,
    #[serde(rename = "FILE_TYPE_UNSPECIFIED")]
    Unspecified,
}

/// A thing of the file system.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = EntryInfo)]
pub(super) struct Entry {
    name: String,
    #[serde(rename = "type")]
    kind: Type,
    /// Absolute.
    path: String,
    /// In bytes. It is text, because JSON's numbers are not that long.
    #[schema(pattern = r"^\d+$")]
    size: String,
    /// The nine bits of its permissions.
    #[schema(maximum = 0o777)]
    mode: u32,
    /// As `ls -l` shows them; `L` is a link.
    #[schema(pattern = "^[-dL]([-r][-w][-x]){3}$")]
    permissions: String,
    #[schema(format = DateTime)]
    modified_time: String,
    /// A name, or a number where it has none. Of a change it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    owner: Option<String>,
    /// A name, or a number where it has none. Of a change it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    group: Option<String>,
    /// Where a link leads: to itself, if nothing is there.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    symlink_target: Option<String>,
    /// What was said of it when it was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    metadata: Option<BTreeMap<String, String>>,
}

const fn type_of(kind: FileKind) -> Type {
    match kind {
        FileKind::File => Type::File,
        FileKind::Directory => Type::Directory,
        FileKind::Symlink => Type::Symlink,
        FileKind::Other => Type::Unspecified,
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

/// What an entry is, seen through a symbolic link. Agents of before do not look through one.
pub(super) const fn seen_kind(entry: &FileEntry) -> FileKind {
    match &entry.link {
        Some(FileLink::To { kind, .. }) => *kind,
        Some(FileLink::Nowhere) => FileKind::Other,
        None => entry.kind,
    }
}

/// The entry in an answer. Owner, group and metadata are said where they are known: of a change
/// they are not.
pub(super) fn shown(entry: &FileEntry) -> Entry {
    let (mode, target) = match &entry.link {
        Some(FileLink::To { path, mode, .. }) => (*mode, Some(path)),
        Some(FileLink::Nowhere) => (0, Some(&entry.path)),
        None => (entry.mode, None),
    };
    Entry {
        name: entry.name.clone(),
        kind: type_of(seen_kind(entry)),
        path: entry.path.clone(),
        size: entry.bytes.to_string(),
        mode: mode & 0o777,
        permissions: permissions(entry.kind, entry.mode),
        modified_time: humantime::format_rfc3339_seconds(entry.modified_at).to_string(),
        owner: entry.owner.clone(),
        group: entry.group.clone(),
        symlink_target: target.cloned(),
        metadata: metadata::shown(&entry.attributes),
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use serde_json::json;

    use super::*;

    #[test]
    fn permissions_read_as_people_know_them() {
        assert_eq!(permissions(FileKind::File, 0o644), "-rw-r--r--");
        assert_eq!(permissions(FileKind::Directory, 0o755), "drwxr-xr-x");
        assert_eq!(permissions(FileKind::Symlink, 0o777), "Lrwxrwxrwx");
    }

    fn entry(kind: FileKind, link: Option<FileLink>) -> FileEntry {
        FileEntry {
            name: "a".to_owned(),
            path: "/a".to_owned(),
            kind,
            bytes: 7,
            mode: 0o777,
            modified_at: UNIX_EPOCH,
            owner: None,
            group: None,
            attributes: [].into(),
            link,
        }
    }

    #[test]
    fn a_link_is_what_it_leads_to_and_says_where() {
        let to = FileLink::To {
            path: "/b".to_owned(),
            kind: FileKind::Directory,
            bytes: 4096,
            mode: 0o2750,
        };
        let of = |link| json!(shown(&entry(FileKind::Symlink, link)));
        let good = of(Some(to));
        assert_eq!(good["type"], "FILE_TYPE_DIRECTORY");
        assert_eq!((&good["mode"], &good["symlinkTarget"]), (&json!(0o750), &json!("/b")));
        assert_eq!((&good["path"], &good["size"]), (&json!("/a"), &json!("7")));
        assert_eq!(good["permissions"], "Lrwxrwxrwx");
        let broken = of(Some(FileLink::Nowhere));
        assert_eq!(broken["type"], "FILE_TYPE_UNSPECIFIED");
        assert_eq!((&broken["mode"], &broken["symlinkTarget"]), (&json!(0), &json!("/a")));
        let unsaid = of(None);
        assert_eq!(
            (&unsaid["type"], &unsaid["mode"]),
            (&json!("FILE_TYPE_SYMLINK"), &json!(0o777))
        );
        assert!(unsaid.get("symlinkTarget").is_none(), "an agent of before does not say it");
        assert!(json!(shown(&entry(FileKind::File, None))).get("symlinkTarget").is_none());
    }

    #[test]
    fn a_size_is_text_because_a_number_of_64_bits_is_so_in_json() {
        let entry = FileEntry {
            bytes: 1 << 60,
            mode: 0o100_600,
            owner: Some("me".to_owned()),
            attributes: [("user.e2b.a".to_owned(), "b".to_owned())].into(),
            ..entry(FileKind::File, None)
        };
        let shown = json!(shown(&entry));
        assert_eq!(shown["size"], "1152921504606846976");
        assert_eq!(shown["mode"], 0o600);
        assert_eq!(shown["owner"], "me");
        assert!(shown.get("group").is_none());
        assert_eq!(shown["metadata"], json!({"a": "b"}));
        assert_eq!(shown["modifiedTime"], "1970-01-01T00:00:00Z");
    }
}
