//! The context: the directory that copy steps take files from, without what is left out.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use forkd_recipe::{ContextEntry, CopiedFile, EntryKind, Ignore, Placed};
use forkd_types::Digest;
use sha2::{Digest as _, Sha256};

use super::file::refused;
use crate::console::report::Hinted;

const IGNORE_FILE: &str = ".dockerignore";

/// Most entries of a context.
const ENTRIES_MAX: usize = 100_000;

/// A directory and what is in it.
#[derive(Debug)]
pub(super) struct Context {
    root: PathBuf,
    pub(super) entries: Vec<ContextEntry>,
}

impl Context {
    /// Lists what is in a directory.
    pub(super) fn list(root: &Path) -> anyhow::Result<Self> {
        let ignore_path = root.join(IGNORE_FILE);
        let ignore = match fs::read_to_string(&ignore_path) {
            Ok(text) => Ignore::parse(&text).map_err(|problem| refused(&ignore_path, &problem))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ignore::default(),
            Err(error) => {
                let what = format!("read `{}`", ignore_path.display());
                return Err(anyhow::Error::new(error).context(what));
            }
        };
        let mut context = Self { root: root.to_owned(), entries: Vec::new() };
        let mut directories = vec![String::new()];
        while let Some(directory) = directories.pop() {
            context.list_one(&directory, &ignore, &mut directories)?;
        }
        context.entries.sort_unstable_by(|one, two| one.path.cmp(&two.path));
        Ok(context)
    }

    fn list_one(
        &mut self,
        directory: &str,
        ignore: &Ignore,
        below: &mut Vec<String>,
    ) -> anyhow::Result<()> {
        let shown = self.root.join(directory);
        let failed = || format!("list `{}`", shown.display());
        for entry in fs::read_dir(&shown).with_context(failed)? {
            let entry = entry.with_context(failed)?;
            let name = entry.file_name().into_string().map_err(|name| {
                let message = format!("{name:?} in `{}` is not UTF-8", shown.display());
                Hinted::new(message, "give it another name")
            })?;
            let path = match directory {
                "" => name,
                directory => format!("{directory}/{name}"),
            };
            let kind = entry.file_type().with_context(failed)?;
            if kind.is_dir() && !ignore.leaves_out_all_below(&path) {
                below.push(path.clone());
            }
            if ignore.leaves_out(&path) {
                continue;
            }
            let kind = match (kind.is_file(), kind.is_dir()) {
                (true, _) => EntryKind::File,
                (_, true) => EntryKind::Directory,
                _ => EntryKind::Other,
            };
            self.entries.push(ContextEntry { path, kind });
            if self.entries.len() > ENTRIES_MAX {
                let message = format!("`{}` has too many files", self.root.display());
                let hint = "leave some out in .dockerignore, or name a smaller directory";
                return Err(Hinted::new(message, hint).into());
            }
        }
        Ok(())
    }

    /// What a copied file is for the key of its step. A directory has no mode: it is only made
    /// where it is missing.
    pub(super) fn describe(
        &self,
        placed: &Placed,
        mode: Option<u32>,
    ) -> anyhow::Result<CopiedFile> {
        let target = placed.target.clone();
        if placed.is_directory {
            return Ok(CopiedFile { target, mode: 0, content: None });
        }
        let (mut file, own_mode, _) = self.open(&placed.source)?;
        let mut hash = Sha256::new();
        io::copy(&mut file, &mut hash).with_context(|| format!("read `{}`", placed.source))?;
        let content = Some(Digest::from_sha256(hash.finalize().into()));
        Ok(CopiedFile { target, mode: mode.unwrap_or(own_mode), content })
    }

    /// A file with its permission bits and its length.
    pub(super) fn open(&self, path: &str) -> anyhow::Result<(File, u32, u64)> {
        let file = File::open(self.root.join(path)).with_context(|| format!("open `{path}`"))?;
        let metadata = file.metadata().with_context(|| format!("look at `{path}`"))?;
        Ok((file, metadata.permissions().mode() & 0o7777, metadata.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_dockerignore_leaves_out_is_not_there_and_the_rest_has_its_kind() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::create_dir_all(root.join("out/deep")).unwrap();
        for name in ["a/b/x", "out/deep/y", "a/z.log"] {
            fs::write(root.join(name), name).unwrap();
        }
        std::os::unix::fs::symlink("x", root.join("a/link")).unwrap();
        fs::write(root.join(IGNORE_FILE), "out\n*/*.log\n.dockerignore\n").unwrap();
        let found = Context::list(root).unwrap().entries;
        let found: Vec<_> = found.iter().map(|e| (e.path.as_str(), e.kind)).collect();
        let expected = [
            ("a", EntryKind::Directory),
            ("a/b", EntryKind::Directory),
            ("a/b/x", EntryKind::File),
            ("a/link", EntryKind::Other),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn content_and_mode_of_a_file_are_in_what_describes_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        let placed = Placed { source: "x".into(), target: "/x".into(), is_directory: false };
        let described = |text: &str, mode: u32| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            Context::list(folder.path()).unwrap().describe(&placed, None).unwrap()
        };
        let first = described("a", 0o644);
        assert_eq!(first, described("a", 0o644));
        assert_ne!(first, described("b", 0o644));
        assert_ne!(first, described("a", 0o755));
    }
}
