//! Which files of the context a copy step takes, and where they go.

use std::collections::BTreeMap;

use crate::{Copy, Settings, ignore};

/// Something in the context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContextEntry {
    /// Its path from the root of the context, with slashes.
    pub path: String,
    /// What it is.
    pub kind: EntryKind,
}

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// A file.
    File,
    /// A directory.
    Directory,
    /// A link, a socket or a device: it cannot be copied.
    Other,
}

/// An entry and where it goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    /// The path in the context; none for a directory that only has to be there.
    pub source: String,
    /// The absolute path in the sandbox.
    pub target: String,
    /// Whether it is a directory.
    pub is_directory: bool,
}

/// Finds what a step copies, by target, directories before what is in them.
///
/// # Errors
/// Says which source is not in the context or cannot be copied.
pub fn place(
    copy: &Copy,
    settings: &Settings,
    context: &[ContextEntry],
) -> Result<Vec<Placed>, String> {
    let to = settings.absolute(&copy.to);
    let mut found = Vec::new();
    for source in &copy.sources {
        found.extend(matches(source, context)?);
    }
    let into_directory = to.ends_with('/') || found.len() > 1;
    let root = to.trim_end_matches('/');
    let mut placed = BTreeMap::new();
    for entry in found {
        match entry {
            Some(entry) if entry.kind == EntryKind::File => {
                let name = entry.path.rsplit('/').next().unwrap_or(&entry.path);
                let target = if into_directory { format!("{root}/{name}") } else { to.clone() };
                insert(&mut placed, entry, target)?;
            }
            // What is in a directory goes, not the directory itself.
            directory => {
                let above = directory.map(|entry| format!("{}/", entry.path));
                let above = above.unwrap_or_default();
                for entry in context {
                    if let Some(rest) = entry.path.strip_prefix(&above) {
                        insert(&mut placed, entry, format!("{root}/{rest}"))?;
                    }
                }
            }
        }
    }
    Ok(placed.into_values().collect())
}

/// The entries that a source names; none for the whole context.
fn matches<'a>(
    source: &str,
    context: &'a [ContextEntry],
) -> Result<Vec<Option<&'a ContextEntry>>, String> {
    let path = source.trim_start_matches("./").trim_matches('/');
    if path.split('/').any(|part| part == "..") {
        return Err(format!("`{source}` is outside of the context"));
    }
    if matches!(path, "" | ".") {
        return Ok(vec![None]);
    }
    if let Some(entry) = context.iter().find(|entry| entry.path == path) {
        check(entry)?;
        return Ok(vec![Some(entry)]);
    }
    let matcher = ignore::matcher(path)?;
    let found: Vec<_> =
        context.iter().filter(|entry| matcher.is_match(&entry.path)).map(Some).collect();
    found.iter().flatten().try_for_each(|entry| check(entry))?;
    match found.is_empty() {
        true => Err(format!("`{source}` is not in the context, or .dockerignore leaves it out")),
        false => Ok(found),
    }
}

fn check(entry: &ContextEntry) -> Result<(), String> {
    match entry.kind {
        EntryKind::Other => Err(format!("`{}` is neither a file nor a directory", entry.path)),
        EntryKind::File | EntryKind::Directory => Ok(()),
    }
}

fn insert(
    placed: &mut BTreeMap<String, Placed>,
    entry: &ContextEntry,
    target: String,
) -> Result<(), String> {
    check(entry)?;
    let is_directory = entry.kind == EntryKind::Directory;
    let source = entry.path.clone();
    placed.insert(target.clone(), Placed { source, target, is_directory });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context() -> Vec<ContextEntry> {
        let entry = |(path, kind): (&str, EntryKind)| ContextEntry { path: path.into(), kind };
        [
            ("a.txt", EntryKind::File),
            ("app", EntryKind::Directory),
            ("app/main.py", EntryKind::File),
            ("app/lib", EntryKind::Directory),
            ("app/lib/x.py", EntryKind::File),
            ("link", EntryKind::Other),
        ]
        .map(entry)
        .into()
    }

    fn placed(sources: &[&str], to: &str) -> Result<Vec<(String, String)>, String> {
        let sources = sources.iter().map(|&text| text.to_owned()).collect();
        let copy = Copy { sources, to: to.into(), owner: None, mode: None };
        let settings = Settings { workdir: Some("/w".into()), ..Settings::default() };
        let placed = place(&copy, &settings, &context())?;
        Ok(placed.into_iter().map(|found| (found.source, found.target)).collect())
    }

    fn pairs(all: &[(&str, &str)]) -> Vec<(String, String)> {
        all.iter().map(|(one, two)| ((*one).into(), (*two).into())).collect()
    }

    #[test]
    fn a_file_goes_to_a_name_or_into_a_directory_as_docker_says() {
        assert_eq!(placed(&["a.txt"], "/b").unwrap(), pairs(&[("a.txt", "/b")]));
        assert_eq!(placed(&["./a.txt"], "b/").unwrap(), pairs(&[("a.txt", "/w/b/a.txt")]));
        assert_eq!(placed(&["*.txt"], ".").unwrap(), pairs(&[("a.txt", "/w/a.txt")]));
    }

    #[test]
    fn a_directory_gives_what_is_in_it_and_directories_come_first() {
        let all =
            [("app/lib", "/x/lib"), ("app/lib/x.py", "/x/lib/x.py"), ("app/main.py", "/x/main.py")];
        assert_eq!(placed(&["app/"], "/x").unwrap(), pairs(&all));
    }

    #[test]
    fn what_is_not_there_or_outside_or_a_link_is_refused_by_name() {
        for source in ["b.txt", "../x", "app/../../x", "link", "."] {
            let problem = placed(&[source], "/x").unwrap_err();
            assert!(problem.contains(if source == "." { "link" } else { source }), "{problem}");
        }
    }
}
