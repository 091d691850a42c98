//! Files and directories of a sandbox.

use forkd_types::FileKind;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Word;

/// A thing of a sandbox's file system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileEntry {
    /// Last part of its path. Bytes that are not UTF-8 are replaced.
    pub name: String,
    /// Absolute path.
    pub path: String,
    /// What it is.
    #[schema(value_type = FileKind)]
    pub kind: Word<FileKind>,
    /// Size of a file's content.
    pub size_bytes: u64,
    /// Permission bits in octal, such as `0644`.
    pub mode: String,
    /// When its content was changed last, in seconds since the Unix epoch.
    pub modified_at_unix: u64,
    /// The user that it belongs to: a name of the guest, or a number where there is none. Absent
    /// from guests of an older forkd.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The group that it belongs to, told as the owner is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
}

/// A change in a sandbox's file system. On the wire the kind is the event's name and the rest its
/// data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case", tag = "event", content = "data")]
pub enum FileChange {
    /// It is new here.
    Created {
        /// Absolute path.
        path: String,
    },
    /// Its content or its attributes are others.
    Modified {
        /// Absolute path.
        path: String,
    },
    /// It is no longer here.
    Removed {
        /// Absolute path.
        path: String,
    },
    /// It has another path.
    Renamed {
        /// The new path.
        path: String,
        /// The old path.
        from: String,
    },
    /// Changes were missed, because there were too many at once: look anew at what is there.
    Lost {},
    /// The path itself is gone, or the sandbox has ended; nothing follows.
    Gone {
        /// For people.
        reason: String,
    },
}
