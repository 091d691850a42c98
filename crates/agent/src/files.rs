//! Reading and writing files of the guest.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use forkd_protocol::{Attributes, DATA_BYTES_MAX, FileOwner, Reply, code};
use rustix::fs::OFlags;

use crate::active::{Active, Input, Refusal};
use crate::attributes;
use crate::owner::{Owner, make_directories};

/// Permission bits of a new file when the host names none.
const MODE_DEFAULT: u32 = 0o644;

const TEMPORARY_PREFIX: &str = ".forkd-";
const TEMPORARY_SUFFIX: &str = ".tmp";
/// Before the suffix, where there is a file to be replaced.
const REPLACES: &str = ".over";

static TEMPORARY_FILES: AtomicU64 = AtomicU64::new(0);

/// A file that is on its way to its place. Its name says what it does there, so that whoever
/// watches knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Temporary {
    /// Nothing was there when it came.
    IsNew,
    /// It takes the place of another.
    Replaces,
}

impl Temporary {
    /// What a file of this name is, if it is one.
    pub(crate) fn of(name: &str) -> Option<Self> {
        let inner = name.strip_prefix(TEMPORARY_PREFIX)?.strip_suffix(TEMPORARY_SUFFIX)?;
        Some(if inner.ends_with(REPLACES) { Self::Replaces } else { Self::IsNew })
    }

    /// A name that no other one has.
    fn name(self) -> String {
        let number = TEMPORARY_FILES.fetch_add(1, Ordering::Relaxed);
        let replaces = if self == Self::Replaces { REPLACES } else { "" };
        format!("{TEMPORARY_PREFIX}{}-{number}{replaces}{TEMPORARY_SUFFIX}", std::process::id())
    }
}

/// A part of a file to send.
pub(crate) struct ReadSpec {
    pub(crate) path: String,
    pub(crate) offset: u64,
    pub(crate) length: Option<u64>,
}

/// A file to write.
pub(crate) struct WriteSpec {
    pub(crate) path: String,
    pub(crate) mode: Option<u32>,
    pub(crate) append: bool,
    pub(crate) create_parents: bool,
    pub(crate) owner: Option<FileOwner>,
    pub(crate) attributes: Attributes,
}

/// Sends a file, then reports the end or what went wrong.
pub(crate) fn read(active: &Active, spec: &ReadSpec) {
    let last = match send_content(active, spec) {
        Ok(bytes) => Reply::FileEnd { bytes },
        Err(refusal) => refusal.into_reply(),
    };
    active.send(&last, || {});
}

/// Takes a file, then reports success or what went wrong. `look` is called when directories had to
/// be made, before there is anything in them.
pub(crate) fn write(active: &Active, spec: &WriteSpec, look: impl FnOnce()) {
    let last = match take_content(active, spec, look) {
        Ok(bytes) => Reply::Written { bytes },
        Err(refusal) => refusal.into_reply(),
    };
    active.send(&last, || {});
}

pub(crate) fn refuse(path: &Path, error: &io::Error) -> Refusal {
    let word = match error.kind() {
        io::ErrorKind::NotFound => code::FILE_NOT_FOUND,
        _ => code::FILE_FAILED,
    };
    Refusal::new(word, format!("{}: {error}", path.display()))
}

pub(crate) fn cancelled(path: &Path) -> Refusal {
    let message = format!("{}: the request was ended by the host", path.display());
    Refusal::new(code::CANCELLED, message)
}

pub(crate) fn absolute(path: &str) -> Result<&Path, Refusal> {
    if !path.starts_with('/') || path.contains('\0') {
        return Err(Refusal::new(code::BAD_REQUEST, format!("not an absolute path: {path:?}")));
    }
    Ok(Path::new(path))
}

fn send_content(active: &Active, spec: &ReadSpec) -> Result<u64, Refusal> {
    let path = absolute(&spec.path)?;
    let fail = |error: io::Error| refuse(path, &error);
    // A pipe without a writer must not hold us.
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or(0);
    let mut file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(fail)?;
    if spec.offset > 0 {
        file.seek(SeekFrom::Start(spec.offset)).map_err(fail)?;
    }
    let mut rest = spec.length.unwrap_or(u64::MAX);
    let mut sent = 0u64;
    while rest > 0 {
        while active.payload_room() == 0 && !active.is_cancelled() {
            active.wait();
        }
        if active.is_cancelled() {
            return Err(cancelled(path));
        }
        let room = active.payload_room().min(usize::try_from(rest).unwrap_or(usize::MAX));
        let mut data = vec![0; room.min(DATA_BYTES_MAX)];
        let count = match file.read(&mut data) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(fail(error)),
        };
        data.truncate(count);
        active.send(&Reply::FileData { data }, || {});
        sent += count as u64;
        rest -= count as u64;
    }
    Ok(sent)
}

fn take_content(active: &Active, spec: &WriteSpec, look: impl FnOnce()) -> Result<u64, Refusal> {
    let path = absolute(&spec.path)?;
    let owner = Owner::find(spec.owner.as_ref())?;
    if spec.create_parents
        && let Some(parent) = path.parent()
        && !parent.is_dir()
    {
        make_directories(parent, owner).map_err(|error| refuse(path, &error))?;
        look();
    }
    let mut target = Target::open(path, spec, owner).map_err(|error| refuse(path, &error))?;
    active.open_input();
    let mut taken = 0u64;
    loop {
        match active.wait_input() {
            Input::Data(data) => {
                target.file.write_all(&data).map_err(|error| refuse(path, &error))?;
                taken += data.len() as u64;
            }
            Input::End => break,
            Input::Nothing | Input::Lost | Input::Abandoned => return Err(cancelled(path)),
        }
    }
    target.commit().map_err(|error| refuse(path, &error))?;
    Ok(taken)
}

/// An open file that is put in place at the end, or removed.
struct Target {
    file: File,
    /// Temporary name and final name, while they differ.
    rename: Option<(PathBuf, PathBuf)>,
}

impl Target {
    fn open(path: &Path, spec: &WriteSpec, owner: Option<Owner>) -> io::Result<Self> {
        // What a symbolic link points to is replaced, not the link.
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let existing = std::fs::metadata(&path).ok();
        let is_special = existing.as_ref().is_some_and(|facts| !facts.is_file());
        if spec.append || is_special {
            let mut options = OpenOptions::new();
            options.append(spec.append).write(true).create(!is_special);
            options.mode(spec.mode.unwrap_or(MODE_DEFAULT));
            let file = options.open(&path)?;
            // What was there stays whose it was.
            if let (None, Some(owner)) = (&existing, owner) {
                owner.take(&file)?;
            }
            attributes::set(&file, &spec.attributes)?;
            return Ok(Self { file, rename: None });
        }
        let kind = if existing.is_some() { Temporary::Replaces } else { Temporary::IsNew };
        let temporary = path.with_file_name(kind.name());
        // A leftover of an agent that was ended in the middle.
        std::fs::remove_file(&temporary).ok();
        let file = OpenOptions::new().write(true).create_new(true).open(&temporary)?;
        let target = Self { file, rename: Some((temporary, path)) };
        let old_mode = existing.as_ref().map(|facts| facts.permissions().mode() & 0o7777);
        if let Some(owner) = owner {
            owner.take(&target.file)?;
        } else if let Some(facts) = &existing {
            // Best effort: only root may give files away.
            fchown(&target.file, Some(facts.uid()), Some(facts.gid())).ok();
        }
        let mode = spec.mode.or(old_mode).unwrap_or(MODE_DEFAULT) & 0o7777;
        target.file.set_permissions(Permissions::from_mode(mode))?;
        attributes::set(&target.file, &spec.attributes)?;
        Ok(target)
    }

    fn commit(mut self) -> io::Result<()> {
        self.file.flush()?;
        if let Some((temporary, path)) = self.rename.take() {
            std::fs::rename(&temporary, path).inspect_err(|_| {
                std::fs::remove_file(&temporary).ok();
            })?;
        }
        Ok(())
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Some((temporary, _)) = &self.rename {
            // Nothing better can be done with a leftover that cannot be removed.
            std::fs::remove_file(temporary).ok();
        }
    }
}
