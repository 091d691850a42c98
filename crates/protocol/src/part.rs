//! What messages are made of. As in messages, a field is never renamed or reused.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Extended attributes of a file (`xattr(7)`): values by their whole names, as in `user.comment`.
pub type Attributes = BTreeMap<String, String>;

/// What a program or a watch is kept under.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keep {
    /// The host's name for it, which no other one of its kind in this guest has.
    pub name: String,
    /// What the host wants to find with it again; at most [`crate::KEPT_RECORD_BYTES_MAX`].
    pub record: String,
}

/// What is at the path of a change, when it is told; of a symbolic link, the link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangedEntry {
    /// As in [`Entry`](crate::Reply::Entry).
    pub kind: String,
    /// Size of a file's content.
    pub bytes: u64,
    /// Permission bits.
    pub mode: u32,
    /// Seconds since the Unix epoch.
    pub modified_unix_s: i64,
}

/// More of a change than its kind. On the wire it is a number: it costs no credit, and those who do
/// not know one take it for nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(from = "u32", into = "u32")]
pub enum ChangeDetail {
    /// Older agents say no more, and there may be no more to say.
    #[default]
    None,
    /// Created: a program has made it here, or moved it here.
    Made,
    /// Created: it was found in a directory that was not watched before.
    Found,
    /// Created: the agent has put a whole file of its host here, where none was.
    Put,
    /// Created: the agent has put a whole file of its host here, in the place of another.
    Replaced,
    /// Modified: its content.
    Content,
    /// Modified: its permissions, its owner, its times or what else is attached to it.
    Attributes,
}

const DETAILS: [ChangeDetail; 7] = [
    ChangeDetail::None,
    ChangeDetail::Made,
    ChangeDetail::Found,
    ChangeDetail::Put,
    ChangeDetail::Replaced,
    ChangeDetail::Content,
    ChangeDetail::Attributes,
];

impl From<u32> for ChangeDetail {
    fn from(number: u32) -> Self {
        let known = usize::try_from(number).ok().and_then(|number| DETAILS.get(number));
        known.copied().unwrap_or_default()
    }
}

impl From<ChangeDetail> for u32 {
    fn from(detail: ChangeDetail) -> Self {
        (0..).zip(DETAILS).find(|(_, known)| *known == detail).map_or(0, |(number, _)| number)
    }
}

/// Where a symbolic link leads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkTarget {
    /// Absolute path, without links in it; empty if the link leads nowhere.
    pub path: String,
    /// As in [`Entry`](crate::Reply::Entry); empty if the link leads nowhere.
    pub kind: String,
    /// Size of a file's content.
    pub bytes: u64,
    /// Permission bits.
    pub mode: u32,
}

/// To whom something new belongs. On the wire it is a text, empty for the image's user: as a kind
/// of its own in a message that is one, it took the compiler of the agent ten minutes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum FileOwner {
    /// The user as whom programs of the image run.
    Image,
    /// A user of the guest: `USER[:GROUP]`, names or numbers, as of a program.
    User(String),
}

impl From<String> for FileOwner {
    fn from(text: String) -> Self {
        if text.is_empty() { Self::Image } else { Self::User(text) }
    }
}

impl From<FileOwner> for String {
    fn from(owner: FileOwner) -> Self {
        match owner {
            FileOwner::Image => Self::new(),
            FileOwner::User(text) => text,
        }
    }
}

/// How a hook of the on-fork directory ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookReport {
    /// File name.
    pub name: String,
    /// Exit code, or 128 + signal; 124 when its time was over; 126 when it could not be run.
    pub exit_code: i32,
}

/// An interpreter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvalContext {
    /// Its name in this guest.
    pub id: String,
    /// Where its code begins; empty where that is the agent's default.
    pub cwd: String,
}

/// An exception that has ended Python code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvalException {
    /// Its type.
    pub name: String,
    /// What it says.
    pub value: String,
}
