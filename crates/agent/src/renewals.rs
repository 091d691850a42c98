//! The count of this machine's renewals, and what makes Python programs look at it.
//!
//! A program that ran at the branch point has its generators of random numbers in its memory, which
//! nobody outside can seed anew. So the machine counts its renewals in a file in memory, and Python
//! programs map it: a folder with a `sitecustomize` is named to each program in `PYTHONPATH`.
//! See [`python/_forkd_renewal.py`](python/_forkd_renewal.py) for what they do then.
//!
//! Does not do: reach a Python that is started without this variable, or told to ignore it.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::identity::{FOLDER, create};
use crate::log;

const COUNT: &str = "renewals";
const PYTHON: &str = "python";

/// What Python runs when it starts, and what that loads when a program needs it.
const SOURCES: [(&str, &str); 2] = [
    ("sitecustomize.py", include_str!("python/sitecustomize.py")),
    ("_forkd_renewal.py", include_str!("python/_forkd_renewal.py")),
];

/// Where it is for the programs of this machine, if it is there.
static PYTHON_FOLDER: OnceLock<String> = OnceLock::new();

/// The count, open to be written.
pub(crate) struct Renewals {
    file: File,
    count: AtomicU64,
}

impl Renewals {
    /// For the machine that this process is the first one of.
    pub(crate) fn prepare() -> io::Result<Self> {
        let renewals = Self::begin(Path::new(FOLDER))?;
        let python = Path::new(FOLDER).join(PYTHON);
        match install(&python) {
            Ok(()) => {
                PYTHON_FOLDER.get_or_init(|| python.to_string_lossy().into_owned());
            }
            // A machine without it is renewed all the same.
            Err(error) => log::failure(&format!("{}: {error}", python.display())),
        }
        Ok(renewals)
    }

    /// With none so far.
    fn begin(folder: &Path) -> io::Result<Self> {
        let file = create(&folder.join(COUNT))?;
        let renewals = Self { file, count: AtomicU64::new(0) };
        renewals.write(0)?;
        Ok(renewals)
    }

    /// Counts one more. When this is done, programs that draw find it.
    pub(crate) fn advance(&self) -> io::Result<()> {
        // Kept in this process's memory too: a program that can write the file cannot turn it back.
        self.write(self.count.fetch_add(1, Ordering::Relaxed).wrapping_add(1))
    }

    fn write(&self, count: u64) -> io::Result<()> {
        self.file.write_all_at(&count.to_ne_bytes(), 0)
    }
}

fn install(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o755).create(folder)?;
    SOURCES.iter().try_for_each(|(name, source)| fs::write(folder.join(name), source))
}

/// The `PYTHONPATH` of a program that would have this one.
pub(crate) fn python_path(path: Option<&str>) -> Option<String> {
    with_folder(PYTHON_FOLDER.get()?, path)
}

/// None when nothing has to change.
fn with_folder(folder: &str, path: Option<&str>) -> Option<String> {
    match path.unwrap_or_default() {
        // An empty name in a list would mean the working directory.
        "" => Some(folder.to_owned()),
        path if path.split(':').any(|entry| entry == folder) => None,
        // First: what it hides, it runs. Others may not.
        path => Some(format!("{folder}:{path}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_has_mapped_the_count_finds_each_renewal() {
        let root = tempfile::tempdir().unwrap();
        let renewals = Renewals::begin(root.path()).unwrap();
        let read = || {
            let bytes = fs::read(root.path().join(COUNT)).unwrap();
            u64::from_ne_bytes(bytes.try_into().unwrap())
        };
        assert_eq!(read(), 0);
        for count in 1..300 {
            renewals.advance().unwrap();
            assert_eq!(read(), count);
        }
        fs::write(root.path().join(COUNT), [0; 8]).unwrap();
        renewals.advance().unwrap();
        assert_eq!(read(), 300, "not what somebody wrote");
    }

    #[test]
    fn the_folder_goes_before_what_a_program_would_have() {
        let folder = "/run/forkd/python";
        let with = |path| with_folder(folder, path);
        assert_eq!(with(None).as_deref(), Some(folder));
        assert_eq!(with(Some("")).as_deref(), Some(folder));
        assert_eq!(with(Some("/a:/b")).as_deref(), Some("/run/forkd/python:/a:/b"));
        assert_eq!(with(Some("/a:/run/forkd/python")), None);
    }
}
