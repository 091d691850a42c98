//! A word of a closed set, from somebody whose set may be larger than ours.

use std::fmt;

use forkd_types::Named;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A value with a name, or a name that this program does not know: a newer daemon may say one, and
/// what it says besides can be read all the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Word<T> {
    /// One of ours.
    Known(T),
    /// Another, as it was said.
    Unknown(String),
}

impl<T: Named> Word<T> {
    /// The word as it is said.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Known(value) => value.name(),
            Self::Unknown(word) => word,
        }
    }
}

impl<T: Named> From<T> for Word<T> {
    fn from(value: T) -> Self {
        Self::Known(value)
    }
}

impl<T: Named> PartialEq<T> for Word<T> {
    fn eq(&self, value: &T) -> bool {
        matches!(self, Self::Known(known) if known == value)
    }
}

/// Nothing was said.
impl<T> Default for Word<T> {
    fn default() -> Self {
        Self::Unknown(String::new())
    }
}

impl<T: Named> fmt::Display for Word<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl<T: Named> Serialize for Word<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de, T: Named> Deserialize<'de> for Word<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let word = String::deserialize(deserializer)?;
        Ok(T::from_name(&word).map_or(Self::Unknown(word), Self::Known))
    }
}

#[cfg(test)]
mod tests {
    use forkd_types::SnapshotStatus;

    use super::*;

    #[test]
    fn a_word_is_read_and_written_as_it_is_said_whether_we_know_it_or_not() {
        for (json, known) in [("\"ready\"", true), ("\"archived\"", false), ("\"\"", false)] {
            let word: Word<SnapshotStatus> = serde_json::from_str(json).unwrap();
            assert_eq!(matches!(word, Word::Known(_)), known, "{json}");
            assert_eq!(word == SnapshotStatus::Ready, known, "{json}");
            assert_eq!(serde_json::to_string(&word).unwrap(), json);
            assert_eq!(format!("\"{word}\""), json);
        }
        assert!(serde_json::from_str::<Word<SnapshotStatus>>("1").is_err());
    }
}
