//! Names of templates that stand for snapshots: those that the daemon was started with, and a file
//! for each that was said later. What was said later is asked for first.
//!
//! Guarantees: a name stands for another snapshot from the next request on, and outlives the
//! daemon. A file is whole or not there.
//!
//! Does not do: look whether there is such a snapshot. One may be made later.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use forkd_types::TagName;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// Of a name: as long as a name of a file may be when each of its bytes is escaped.
const NAME_BYTES_MAX: usize = 80;

/// Names of templates, and the snapshots that they stand for.
#[derive(Debug, Clone)]
pub struct Aliases {
    folder: PathBuf,
    /// What the daemon was started with.
    given: BTreeMap<String, TagName>,
}

impl Aliases {
    /// Those below the folder of E2B's interfaces, before those that are given.
    #[must_use]
    pub fn in_folder(folder: &Path, given: BTreeMap<String, TagName>) -> Self {
        Self { folder: folder.join("aliases"), given }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(utf8_percent_encode(name, NON_ALPHANUMERIC).to_string())
    }

    /// What a name stands for.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<TagName> {
        let said = (1..=NAME_BYTES_MAX).contains(&name.len()).then(|| self.path(name));
        let said = said.and_then(|path| fs::read_to_string(path).ok());
        said.and_then(|tag| tag.parse().ok()).or_else(|| self.given.get(name).cloned())
    }

    /// All names, and what they stand for.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn all(&self) -> io::Result<BTreeMap<String, TagName>> {
        let mut all = self.given.clone();
        let entries = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(all),
            entries => entries?,
        };
        for entry in entries {
            let name = entry?.file_name();
            let name = percent_decode_str(&name.to_string_lossy()).decode_utf8_lossy().into_owned();
            if let Some(tag) = self.get(&name) {
                all.insert(name, tag);
            }
        }
        Ok(all)
    }

    /// Lets a name stand for a snapshot.
    ///
    /// # Errors
    /// When the name is empty or too long, or the file cannot be written.
    pub fn set(&self, name: &str, tag: &TagName) -> io::Result<()> {
        if !(1..=NAME_BYTES_MAX).contains(&name.len()) {
            let text = format!("a template's name has 1 to {NAME_BYTES_MAX} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        let path = self.path(name);
        // Not a name of any template: those have no dot when they are escaped.
        let new = path.with_extension(format!("{}.new", std::process::id()));
        fs::write(&new, tag.to_string())?;
        fs::rename(new, path)
    }

    /// Forgets what was said of a name. Tells whether something was.
    ///
    /// # Errors
    /// When the file cannot be removed.
    pub fn remove(&self, name: &str) -> io::Result<bool> {
        match fs::remove_file(self.path(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            removed => removed.map(|()| true),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tag(text: &str) -> TagName {
        text.parse().unwrap()
    }

    #[test]
    fn what_was_said_later_counts_until_it_is_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let given = BTreeMap::from([("base".to_owned(), tag("python"))]);
        let aliases = Aliases::in_folder(folder.path(), given.clone());
        assert_eq!(aliases.get("base"), Some(tag("python")));
        for name in ["base", "team/code-interpreter:v1", "../up", "é"] {
            aliases.set(name, &tag("other")).unwrap();
            assert_eq!(aliases.get(name), Some(tag("other")), "{name}");
        }
        let again = Aliases::in_folder(folder.path(), BTreeMap::new());
        assert_eq!(again.all().unwrap().len(), 4);
        assert!(again.all().unwrap().contains_key("../up"));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is beside it");
        assert!(again.remove("base").unwrap());
        assert!(!again.remove("base").unwrap());
        assert_eq!(aliases.get("base"), Some(tag("python")));
        assert_eq!(again.get("base"), None);
    }

    #[test]
    fn a_name_that_is_none_stands_for_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let aliases = Aliases::in_folder(folder.path(), BTreeMap::new());
        assert!(aliases.all().unwrap().is_empty());
        for name in ["", &"n".repeat(NAME_BYTES_MAX + 1)] {
            assert_eq!(aliases.get(name), None);
            assert!(aliases.set(name, &tag("t")).is_err());
        }
    }
}
