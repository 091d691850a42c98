//! Tags of snapshots. Each owner has its own: what tags others have taken can be learnt by nobody,
//! because it makes no difference.
//!
//! A [`SnapshotTag`] names one snapshot among those of all owners. Its text is `tag` for one of the
//! daemon's own user, else `owner/tag`. A [`TagName`] is what a client says: without an owner it
//! means the client's own. The types differ so that a client's word is not looked up before it is
//! known whose it is.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::id::{OperationId, SandboxId, shown};
use crate::text::as_text;
use crate::{Owner, limit};

/// Between the owner and what it calls its snapshot. Neither can contain it.
const SEPARATOR: char = '/';

/// Why a string is not a snapshot tag.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{value}` is not a snapshot tag: use 1 to {max} letters, digits, `-` or `_`, after `OWNER/` \
     for a snapshot of another owner",
    max = limit::TAG_CHARS_MAX
)]
pub struct TagError {
    /// What was given, shortened to a printable length.
    pub value: String,
}

fn is_tag(text: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    (1..=limit::TAG_CHARS_MAX).contains(&text.len()) && text.bytes().all(allowed)
}

/// A snapshot as a client names it: `^[A-Za-z0-9_-]{1,64}$`, perhaps after its owner and a slash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TagName {
    owner: Option<Owner>,
    tag: String,
}

impl TagName {
    /// The default tag of a branch: `branch-<sandbox>-<time>-<random>`.
    #[must_use]
    pub fn for_branch(sandbox: &SandboxId, now_unix_secs: u64) -> Self {
        let random = OperationId::random();
        let suffix = &random.as_str()[3..9];
        Self { owner: None, tag: format!("branch-{sandbox}-{now_unix_secs}-{suffix}") }
    }

    /// The snapshot that `owner` means by it.
    #[must_use]
    pub fn said_by(self, owner: &Owner) -> SnapshotTag {
        let owner = self.owner.unwrap_or_else(|| owner.clone());
        SnapshotTag { owner, tag: self.tag }
    }

    /// The name of one's own snapshot; none where it names its owner.
    #[must_use]
    pub fn plain(&self) -> Option<&str> {
        self.owner.is_none().then_some(self.tag.as_str())
    }
}

impl fmt::Display for TagName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.owner {
            Some(owner) => write!(f, "{owner}{SEPARATOR}{}", self.tag),
            None => f.write_str(&self.tag),
        }
    }
}

impl FromStr for TagName {
    type Err = TagError;

    fn from_str(value: &str) -> Result<Self, TagError> {
        let wrong = || TagError { value: shown(value) };
        let (owner, tag) = match value.split_once(SEPARATOR) {
            Some((owner, tag)) => (Some(owner.parse().map_err(|_| wrong())?), tag),
            None => (None, value),
        };
        if is_tag(tag) { Ok(Self { owner, tag: tag.to_owned() }) } else { Err(wrong()) }
    }
}

/// The name of one snapshot: its owner, and what that calls it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SnapshotTag {
    owner: Owner,
    tag: String,
}

impl SnapshotTag {
    /// To whom the snapshot belongs.
    #[must_use]
    pub const fn owner(&self) -> &Owner {
        &self.owner
    }

    /// As `owner` names it: without an owner if it is its own.
    #[must_use]
    pub fn shown_to(&self, owner: &Owner) -> String {
        if self.owner == *owner {
            self.tag.clone()
        } else {
            format!("{}{SEPARATOR}{}", self.owner, self.tag)
        }
    }
}

/// The daemon's own user says it.
impl FromStr for SnapshotTag {
    type Err = TagError;

    fn from_str(value: &str) -> Result<Self, TagError> {
        Ok(value.parse::<TagName>()?.said_by(&Owner::default()))
    }
}

as_text!(SnapshotTag, TagError);

impl fmt::Display for SnapshotTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown_to(&Owner::default()))
    }
}

impl fmt::Debug for SnapshotTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_tricks_are_no_tags() {
        for bad in ["", "..", "../x", "/x", "x/", "a/b/c", "a b", "a\n", "é", &"x".repeat(65)] {
            assert!(bad.parse::<TagName>().is_err(), "{bad:?} must not be a tag");
            assert!(bad.parse::<SnapshotTag>().is_err(), "{bad:?} must not be a tag");
        }
        assert!("x".repeat(64).parse::<SnapshotTag>().is_ok());
    }

    #[test]
    fn the_same_word_of_two_owners_is_two_snapshots_and_each_finds_its_own() {
        let [ann, bob]: [Owner; 2] = ["ann", "bob"].map(|name| name.parse().unwrap());
        let said = |word: &str, by: &Owner| word.parse::<TagName>().unwrap().said_by(by);
        assert_ne!(said("t", &ann), said("t", &bob));
        assert_eq!(said("ann/t", &bob), said("t", &ann));
        assert_eq!(said("daemon/t", &ann), "t".parse().unwrap());
        for (reader, shown) in [(&ann, "t"), (&bob, "ann/t"), (&Owner::default(), "ann/t")] {
            assert_eq!(said("t", &ann).shown_to(reader), shown);
            assert_eq!(said(shown, reader), said("t", &ann), "what is shown can be said");
        }
        assert_eq!(said("daemon/t", &ann).shown_to(&ann), "daemon/t");
    }

    #[test]
    fn the_default_branch_tag_is_a_valid_tag() {
        let name = TagName::for_branch(&SandboxId::random(), 1_800_000_000);
        assert_eq!(name.plain().unwrap().parse::<TagName>(), Ok(name));
    }

    #[test]
    fn serde_refuses_what_parse_refuses_and_keeps_the_owner() {
        assert!(serde_json::from_str::<SnapshotTag>("\"../x\"").is_err());
        for text in ["\"ok-1\"", "\"ann/ok-1\""] {
            let tag: SnapshotTag = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&tag).unwrap(), text);
        }
    }
}
