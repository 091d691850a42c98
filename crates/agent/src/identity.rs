//! Who a machine is, and the files that tell its programs.
//!
//! The files are in memory, and those that programs look for on the disk are mounted there. So a
//! renewal writes to no disk, and needs no more than files that are open.
//!
//! Like those of any container, mounted files can be written, but not removed or replaced. A
//! program that unmounts one has its own file there from then on, which no renewal changes.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::Duration;

use rustix::fs::fstat;
use rustix::mount::mount_bind;

/// In the memory file system that every guest has.
pub(crate) const FOLDER: &str = "/run/forkd";

/// Where programs in the guest find the id of their sandbox.
const INSTANCE_ID: &str = "/run/forkd/instance-id";
const HOST_NAME: &str = "/etc/hostname";
const MACHINE_ID: &str = "/etc/machine-id";

/// Everybody reads, the machine's owner writes.
const MODE: u32 = 0o644;

/// The new identity of a machine.
#[derive(Clone)]
pub(crate) struct Identity {
    pub(crate) instance_id: String,
    pub(crate) hostname: String,
    pub(crate) machine_id: String,
    pub(crate) wall_clock_unix_ns: i64,
    pub(crate) entropy: Vec<u8>,
    pub(crate) hook_timeout: Option<Duration>,
    /// The host wants to know before hooks are run.
    pub(crate) announce: bool,
}

/// A file in memory under the name that programs know it by.
struct NamedFile {
    path: &'static str,
    file: File,
}

pub(crate) struct IdentityFiles {
    instance_id: NamedFile,
    host_name: NamedFile,
    machine_id: NamedFile,
}

impl IdentityFiles {
    /// Makes them. Until the first renewal they hold what the image has.
    pub(crate) fn mount() -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o755).create(FOLDER)?;
        Ok(Self {
            instance_id: NamedFile { path: INSTANCE_ID, file: create(Path::new(INSTANCE_ID))? },
            host_name: mounted_over(HOST_NAME)?,
            machine_id: mounted_over(MACHINE_ID)?,
        })
    }

    /// Writes all of them. An error comes with the file that it is about.
    pub(crate) fn write(&self, identity: &Identity) -> Result<(), (&'static str, io::Error)> {
        self.host_name.write(&identity.hostname)?;
        self.machine_id.write(&identity.machine_id)?;
        self.instance_id.write(&identity.instance_id)
    }
}

impl NamedFile {
    /// Replaces what it holds by one line.
    fn write(&self, line: &str) -> Result<(), (&'static str, io::Error)> {
        self.try_write(format!("{line}\n").as_bytes()).map_err(|error| (self.path, error))
    }

    fn try_write(&self, content: &[u8]) -> io::Result<()> {
        self.file.write_all_at(content, 0)?;
        let facts = fstat(&self.file)?;
        if u64::try_from(facts.st_size) != Ok(content.len() as u64) {
            self.file.set_len(content.len() as u64)?;
        }
        // Somebody has removed it.
        if facts.st_nlink == 0 { fs::write(self.path, content) } else { Ok(()) }
    }
}

/// A file in memory with the content of the image's file at `path`, mounted there.
fn mounted_over(path: &'static str) -> io::Result<NamedFile> {
    let target = Path::new(path);
    let content = fs::read(target).unwrap_or_default();
    let held = Path::new(FOLDER).join(target.file_name().unwrap_or_default());
    let file = create(&held)?;
    file.write_all_at(&content, 0)?;
    // What an image without the file, or with a link to nowhere, needs in order to have it.
    if !target.is_file() {
        fs::remove_file(target).ok();
        create(target)?;
    }
    mount_bind(&held, target)?;
    Ok(NamedFile { path, file })
}

pub(crate) fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(MODE).open(path)
}
