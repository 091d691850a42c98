//! What the process that dies tells: appended line by line to a file, so that nothing is lost when
//! it is killed.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::model::{Change, Content};

/// One line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Line {
    /// A snapshot is going to have this content.
    Planned(String, Content),
    /// Rows are going to be changed so.
    Changing(Change),
    /// They have been.
    Changed,
    /// All changes so far are being flushed.
    Flushing,
    /// They are on the disk.
    Flushed,
    /// The store has said that all changes so far are on the disk.
    Promised,
    /// A file is going to be made.
    Making(PathBuf),
    /// A file's content is written and not flushed.
    Written(PathBuf),
    /// It is flushed.
    Synced(PathBuf),
    /// A name is going to be given. What had it before is kept aside.
    Renaming(PathBuf, PathBuf, Option<PathBuf>),
    /// A name is going to be removed. What had it is kept aside.
    Removing(PathBuf, Option<PathBuf>),
    /// The names in this directory are on the disk.
    Named(PathBuf),
    /// This is the failpoint at which the process dies.
    Dying(String),
    /// An operation has been refused for lack of space, as told.
    Refused(String),
}

/// The file.
#[derive(Debug)]
pub(crate) struct Log {
    file: File,
}

impl Log {
    pub(crate) fn open(path: &Path) -> Self {
        let file = OpenOptions::new().create(true).append(true).open(path).unwrap();
        Self { file }
    }

    /// One write for one line. The kernel does it page by page, so a kill may cut it short.
    pub(crate) fn line(&self, line: &Line) {
        let mut bytes = serde_json::to_vec(line).unwrap();
        bytes.push(b'\n');
        (&self.file).write_all(&bytes).unwrap();
    }
}

/// All lines so far. The end of a line that was cut short is missing: it counts as not told, as if
/// the process had been killed before it.
pub(crate) fn read(path: &Path) -> Vec<Line> {
    let text = fs::read(path).unwrap_or_default();
    let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    let lines = text[..whole].split_inclusive(|byte| *byte == b'\n');
    lines.map(|line| serde_json::from_slice(line).unwrap()).collect()
}

#[test]
fn a_line_that_was_cut_short_is_not_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    assert_eq!(read(&path), []);
    let log = Log::open(&path);
    log.line(&Line::Flushing);
    log.line(&Line::Refused("é".to_owned()));
    let told = [Line::Flushing, Line::Refused("é".to_owned())];
    assert_eq!(read(&path), told);
    let whole = fs::read(&path).unwrap();
    for cut in 1..whole.len() {
        fs::write(&path, &whole[..whole.len() - cut]).unwrap();
        let lines = read(&path);
        assert!(lines.len() < 2 && lines == told[..lines.len()], "{cut}: {lines:?}");
    }
}
