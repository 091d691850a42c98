//! Files and directories of a guest: what is there, making, removing, and following changes.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forkd_protocol::{
    Attributes, ChangeDetail, ChangedEntry, FileOwner, LinkTarget, Reply, Request, credit_cost,
};
use tokio::sync::mpsc;

use super::call::{Call, Deadline, InputPiece};
use super::{FileWrite, GuestAgent, GuestError, OUTPUT_BYTES_MAX};

/// For a tree to be watched from one end to the other.
pub(super) const WATCH_DEADLINE: Duration = Duration::from_secs(30);

/// What a thing of the file system is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A device, a pipe, a socket.
    Other,
}

/// A thing of the file system. All of it comes from the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileEntry {
    /// Last part of its path; not empty, without a slash.
    pub name: String,
    /// Absolute path.
    pub path: String,
    /// What it is.
    pub kind: FileKind,
    /// Size of a file's content, in bytes.
    pub bytes: u64,
    /// Permission bits.
    pub mode: u32,
    /// When its content was changed last; the epoch when that was before.
    pub modified_at: SystemTime,
    /// The user that it belongs to, a name or a number. None of a change, and from older agents.
    pub owner: Option<String>,
    /// The group, likewise.
    pub group: Option<String>,
    /// Extended attributes that were asked for.
    pub attributes: Attributes,
    /// Of a symbolic link: where it leads, if that was asked for.
    pub link: Option<FileLink>,
}

/// Where a symbolic link leads at last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileLink {
    /// There.
    To {
        /// Absolute path, without links in it.
        path: String,
        /// What is there.
        kind: FileKind,
        /// Size of a file's content, in bytes.
        bytes: u64,
        /// Permission bits.
        mode: u32,
    },
    /// Nothing is there, or it leads in a circle.
    Nowhere,
}

impl FileLink {
    fn of(target: LinkTarget) -> Self {
        let LinkTarget { path, kind, bytes, mode } = target;
        if path.is_empty() {
            return Self::Nowhere;
        }
        Self::To { path, kind: kind_of(&kind), bytes, mode: mode & 0o7777 }
    }
}

/// What is looked at. A path alone is enough.
#[derive(Debug, Clone, Copy)]
pub struct FileLook<'a> {
    /// Absolute path.
    pub path: &'a str,
    /// Extended attributes whose names begin so are told. Older agents tell none.
    pub attributes: Option<&'a str>,
    /// Symbolic links are told with where they lead. Older agents do not tell it.
    pub links: bool,
}

impl<'a> From<&'a str> for FileLook<'a> {
    fn from(path: &'a str) -> Self {
        Self { path, attributes: None, links: false }
    }
}

impl<'a> From<&'a String> for FileLook<'a> {
    fn from(path: &'a String) -> Self {
        path.as_str().into()
    }
}

/// What is written to a file.
#[derive(Debug)]
pub enum FileContent {
    /// All of it.
    Whole(Vec<u8>),
    /// As it comes, a piece at a time; the last one says that it is. If it never comes, the file
    /// stays as it was.
    Pieces(mpsc::Receiver<InputPiece>),
}

impl From<Vec<u8>> for FileContent {
    fn from(content: Vec<u8>) -> Self {
        Self::Whole(content)
    }
}

/// How far a request about a directory goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// The directory itself; to be removed it must be empty.
    Itself,
    /// All that is below it too.
    Recursive,
}

/// A change in the file system. The paths come from the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileChange {
    /// It is new here.
    Created(String),
    /// Its content or its attributes are others.
    Modified(String),
    /// It is no longer here.
    Removed(String),
    /// It has another path.
    Renamed {
        /// The old one.
        from: String,
        /// The new one.
        path: String,
    },
    /// Changes were missed: there were too many at once.
    Lost,
}

/// What may be watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mounts {
    /// Whatever there is.
    All,
    /// File systems of the guest alone, and none of the network. Older agents watch all.
    Local,
}

/// How a path is watched. A depth alone is enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WatchExtent {
    /// How far.
    pub depth: Depth,
    /// Where.
    pub mounts: Mounts,
}

impl From<Depth> for WatchExtent {
    fn from(depth: Depth) -> Self {
        Self { depth, mounts: Mounts::All }
    }
}

/// Whether changes are told with what is at their path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WithEntries {
    /// They are, by agents that can.
    Yes,
    /// Nobody needs it.
    No,
}

/// A change as the guest tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToldChange {
    /// What has changed.
    pub change: FileChange,
    /// More of it, if the agent says it.
    pub detail: ChangeDetail,
    /// What was at its path then, if the agent looked and something was.
    pub entry: Option<FileEntry>,
}

impl ToldChange {
    pub(super) fn of(
        (kind, detail): (&str, ChangeDetail),
        path: String,
        from: Option<String>,
        entry: Option<ChangedEntry>,
    ) -> Self {
        let entry = entry.map(|entry| {
            let ChangedEntry { kind, bytes, mode, modified_unix_s } = entry;
            let entry = known(name_of(&path), &kind, bytes, mode, modified_unix_s);
            FileEntry { path: path.clone(), ..entry }
        });
        let change = match (kind, from) {
            ("created", _) => FileChange::Created(path),
            ("modified", _) => FileChange::Modified(path),
            ("removed", _) => FileChange::Removed(path),
            ("renamed", Some(from)) => FileChange::Renamed { from, path },
            _ => FileChange::Lost,
        };
        Self { change, detail, entry }
    }

    /// Memory that it takes.
    pub(super) fn bytes(&self) -> u64 {
        let paths = match &self.change {
            FileChange::Created(path) | FileChange::Modified(path) | FileChange::Removed(path) => {
                path.len()
            }
            FileChange::Renamed { from, path } => from.len() + path.len(),
            FileChange::Lost => 0,
        };
        let of_entry = self.entry.as_ref().map_or(0, |it| it.name.len() + it.path.len());
        (size_of::<Self>() + paths + of_entry) as u64
    }
}

/// Changes to a file or a directory, as they happen. Dropping it ends the watch.
///
/// A slow reader holds up the telling, not the guest; when the guest's kernel can hold no more, a
/// [`FileChange::Lost`] stands for what was missed.
pub struct FileWatch {
    call: Call,
}

impl FileWatch {
    /// The next change; `None` when the watched path itself is gone. Safe to cancel.
    ///
    /// # Errors
    /// Any [`GuestError`]; after one, the watch is over.
    pub async fn next(&mut self) -> Result<Option<ToldChange>, GuestError> {
        match self.call.next().await? {
            Reply::Change { kind, path, from, entry, detail } => {
                Ok(Some(ToldChange::of((&kind, detail), path, from, entry)))
            }
            Reply::Done {} => {
                self.call.finish();
                Ok(None)
            }
            other => Err(self.call.unexpected(&other)),
        }
    }
}

impl GuestAgent {
    /// Writes a file. A regular file is replaced in one step or not at all: dropping this leaves it
    /// as it was. `within` is how long the guest may take no more of the content.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn write_file(
        &self,
        file: FileWrite,
        content: impl Into<FileContent>,
        within: Duration,
    ) -> Result<(), GuestError> {
        let mut call = self.call("write file", Deadline::since_progress(within))?;
        let FileWrite { path, mode, append, create_parents, owner, attributes } = file;
        let request = Request::WriteFile { path, mode, append, create_parents, owner, attributes };
        call.begin(&request)?;
        match content.into() {
            FileContent::Whole(content) => call.set_input(content),
            FileContent::Pieces(source) => call.open_input(source),
        }
        match call.next().await? {
            Reply::Written { bytes } => {
                call.finish();
                let expected = call.input_sent();
                if bytes == expected {
                    return Ok(());
                }
                let reason = format!("{bytes} bytes of {expected} were written");
                Err(GuestError::Protocol { what: "write file", reason })
            }
            other => Err(call.unexpected(&other)),
        }
    }

    /// What is in a directory, by name. Names that are not UTF-8 have replacement characters.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn list_files(
        &self,
        look: impl Into<FileLook<'_>>,
        within: Duration,
    ) -> Result<Vec<FileEntry>, GuestError> {
        let FileLook { path, attributes, links } = look.into();
        let (path, attributes) = (path.to_owned(), attributes.map(str::to_owned));
        let mut call = self.call("list files", Deadline::after(within))?;
        let output_credit = call.window();
        call.begin(&Request::ListFiles { path: path.clone(), attributes, links, output_credit })?;
        let mut entries = Vec::new();
        let mut bytes = 0;
        loop {
            let reply = call.next().await?;
            // Each entry has the whole path.
            let cost = |bytes: usize| credit_cost(bytes).saturating_add(path.len() as u64);
            bytes += reply.payload_bytes().map_or(0, cost);
            if bytes > OUTPUT_BYTES_MAX {
                return Err(GuestError::OutputTooLarge { limit: OUTPUT_BYTES_MAX });
            }
            match reply {
                Reply::Done {} => {
                    call.finish();
                    entries.sort_by(|a: &FileEntry, b| a.name.cmp(&b.name));
                    return Ok(entries);
                }
                reply => {
                    let mut entry = entry(&call, reply)?;
                    entry.path = format!("{}/{}", path.trim_end_matches('/'), entry.name);
                    entries.push(entry);
                }
            }
        }
    }

    /// What a path is; of a symbolic link, what the link is.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn stat_file(
        &self,
        look: impl Into<FileLook<'_>>,
        within: Duration,
    ) -> Result<FileEntry, GuestError> {
        let FileLook { path, attributes, links } = look.into();
        let (path, attributes) = (path.to_owned(), attributes.map(str::to_owned));
        let mut call = self.call("stat file", Deadline::after(within))?;
        let output_credit = call.window();
        let request = Request::StatFile { path: path.clone(), attributes, links, output_credit };
        call.begin(&request)?;
        let reply = call.next().await?;
        let entry = told(&call, reply)?;
        call.finish();
        // We know the name; the guest's is not needed.
        Ok(FileEntry { name: name_of(&path), path, ..entry })
    }

    /// Removes a file, a symbolic link or a directory.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn remove_file(
        &self,
        path: &str,
        depth: Depth,
        within: Duration,
    ) -> Result<(), GuestError> {
        let recursive = depth == Depth::Recursive;
        let request = Request::RemoveFile { path: path.to_owned(), recursive };
        self.ask_done("remove file", request, within).await
    }

    /// Creates a directory, and missing ones above it, which belong to `owner` or to the superuser.
    /// One that is there is fine.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn make_directory(
        &self,
        path: &str,
        owner: Option<FileOwner>,
        within: Duration,
    ) -> Result<(), GuestError> {
        let request = Request::MakeDirectory { path: path.to_owned(), owner };
        self.ask_done("make directory", request, within).await
    }

    /// Follows changes to a file, or in a directory. Every change after this returns is told, or
    /// that some were missed.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn watch_files(
        &self,
        path: &str,
        extent: impl Into<WatchExtent>,
        entries: WithEntries,
    ) -> Result<FileWatch, GuestError> {
        let WatchExtent { depth, mounts } = extent.into();
        let mut call = self.call("watch files", Deadline::after(WATCH_DEADLINE))?;
        call.begin(&Request::WatchFiles {
            path: path.to_owned(),
            recursive: depth == Depth::Recursive,
            entries: entries == WithEntries::Yes,
            local_only: mounts == Mounts::Local,
            output_credit: call.window(),
        })?;
        match call.next().await? {
            Reply::Watching {} => {
                call.set_deadline(Deadline::never());
                Ok(FileWatch { call })
            }
            other => Err(call.unexpected(&other)),
        }
    }

    pub(super) async fn ask_done(
        &self,
        what: &'static str,
        request: Request,
        within: Duration,
    ) -> Result<(), GuestError> {
        match self.ask(what, request, within).await? {
            Reply::Done {} => Ok(()),
            _ => Err(GuestError::unexpected(what, "reply")),
        }
    }
}

/// An entry whose name can be the last part of a path; its path is still to be set.
fn entry(call: &Call, reply: Reply) -> Result<FileEntry, GuestError> {
    let entry = told(call, reply)?;
    let name = &entry.name;
    if name.is_empty() || name.contains(['/', '\0']) || name == "." || name == ".." {
        return Err(GuestError::unexpected("list files", "name"));
    }
    Ok(entry)
}

/// An entry as the guest tells it, under any name; its path is still to be set.
fn told(call: &Call, reply: Reply) -> Result<FileEntry, GuestError> {
    match reply {
        Reply::Entry {
            name,
            kind,
            bytes,
            mode,
            modified_unix_s,
            owner,
            group,
            attributes,
            link,
        } => {
            let entry = known(name, &kind, bytes, mode, modified_unix_s);
            let link = link.filter(|_| entry.kind == FileKind::Symlink).map(FileLink::of);
            Ok(FileEntry { owner, group, attributes, link, ..entry })
        }
        other => Err(call.unexpected(&other)),
    }
}

/// The last part of a path.
fn name_of(path: &str) -> String {
    let name = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    if name.is_empty() { "/" } else { name }.to_owned()
}

fn kind_of(word: &str) -> FileKind {
    match word {
        "file" => FileKind::File,
        "directory" => FileKind::Directory,
        "symlink" => FileKind::Symlink,
        _ => FileKind::Other,
    }
}

fn known(name: String, kind: &str, bytes: u64, mode: u32, modified_unix_s: i64) -> FileEntry {
    let kind = kind_of(kind);
    let since = Duration::from_secs(u64::try_from(modified_unix_s).unwrap_or(0));
    let modified_at = UNIX_EPOCH.checked_add(since).unwrap_or(UNIX_EPOCH);
    let (path, mode, owner, group) = (String::new(), mode & 0o7777, None, None);
    let (attributes, link) = (Attributes::new(), None);
    FileEntry { name, path, kind, bytes, mode, modified_at, owner, group, attributes, link }
}
