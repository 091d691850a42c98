//! Recipes: what an image holds, read from `images/<name>/recipe.json`, and the guest kernel's,
//! read from `images/kernel.json`. `images/README.md` describes the fields for people.

use std::fs;

use anyhow::{Context, bail};
use serde::Deserialize;

use crate::workspace::Workspace;

/// `images/kernel.json`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KernelRecipe {
    /// The Debian package that depends on the newest kernel package.
    pub(super) package: String,
    /// Drivers that the initramfs loads; what they depend on is found.
    pub(super) modules: Vec<String>,
    /// The kernel's command line in every image.
    pub(super) command_line: String,
}

impl KernelRecipe {
    pub(super) fn read(workspace: &Workspace) -> anyhow::Result<Self> {
        let path = workspace.root.join("images/kernel.json");
        let text = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
        serde_json::from_slice(&text).with_context(|| format!("understand {}", path.display()))
    }
}

/// A recipe with its name and source text.
#[derive(Debug)]
pub(super) struct Recipe {
    /// The folder's name under `images/`.
    pub(super) name: String,
    /// The file as it is: an input of the image.
    pub(super) source: Vec<u8>,
    pub(super) definition: Definition,
}

/// `images/<name>/recipe.json`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Definition {
    /// One sentence for users.
    pub(super) description: String,
    /// It is built only when it is named.
    #[serde(default)]
    pub(super) on_demand: bool,
    pub(super) base: Base,
    /// Empty folders to create, absolute guest paths (git keeps no empty folders).
    #[serde(default)]
    pub(super) directories: Vec<String>,
}

/// What the image starts from.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", deny_unknown_fields)]
pub(super) enum Base {
    /// No disk: everything lives in the initramfs, with busybox as user land.
    Initramfs,
    /// A Debian root file system on a disk of its own.
    Debian(DebianBase),
}

/// The Debian part of a recipe.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DebianBase {
    /// Packages on top of Debian's smallest set.
    pub(super) packages: Vec<String>,
    /// Size of the disk; free space takes none on the host.
    pub(super) disk_mib: u64,
    /// Guest paths that are not installed (dpkg patterns).
    #[serde(default)]
    pub(super) exclude: Vec<String>,
    /// Exceptions from `exclude`.
    #[serde(default)]
    pub(super) include: Vec<String>,
    /// Commands (argv) run in the new root file system at the end.
    #[serde(default)]
    pub(super) finish: Vec<Vec<String>>,
    /// As whom its programs run, if they are not told; the superuser without it.
    #[serde(default)]
    pub(super) user: Option<String>,
    /// UUID of the file system, fixed so that equal recipes give equal disks.
    pub(super) uuid: String,
}

impl Recipe {
    pub(super) fn read(workspace: &Workspace, name: &str) -> anyhow::Result<Self> {
        let path = workspace.root.join("images").join(name).join("recipe.json");
        let source = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
        let definition =
            parse(&source).with_context(|| format!("understand {}", path.display()))?;
        Ok(Self { name: name.to_owned(), source, definition })
    }
}

fn parse(source: &[u8]) -> anyhow::Result<Definition> {
    let definition: Definition = serde_json::from_slice(source)?;
    for directory in &definition.directories {
        let is_plain = directory.split('/').skip(1).all(|part| !matches!(part, "" | "." | ".."));
        if !directory.starts_with('/') || !is_plain {
            bail!("directories: {directory} is not an absolute path without . and ..");
        }
    }
    if let Base::Debian(DebianBase { user: Some(user), .. }) = &definition.base
        && !user.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
    {
        bail!("user: {user} is no user's name");
    }
    Ok(definition)
}

/// The names of all images, sorted.
pub(super) fn names(workspace: &Workspace) -> anyhow::Result<Vec<String>> {
    let folder = workspace.root.join("images");
    let mut names = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| format!("read {}", folder.display()))? {
        let entry = entry?;
        if entry.path().join("recipe.json").is_file() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_field_is_refused() {
        let text = br#"{"description": "d", "base": {"kind": "initramfs"}, "dirs": []}"#;
        assert!(parse(text).unwrap_err().to_string().contains("dirs"));
    }

    #[test]
    fn directories_must_be_absolute_and_stay_inside_the_guest() {
        for (path, good) in [("/etc/x.d", true), ("etc", false), ("/../etc", false)] {
            let text = serde_json::json!({
                "description": "d", "base": {"kind": "initramfs"}, "directories": [path],
            });
            let text = text.to_string();
            assert_eq!(parse(text.as_bytes()).is_ok(), good, "{path}");
        }
    }

    #[test]
    fn a_user_that_is_no_name_is_refused() {
        for (user, good) in [("user", true), ("www-data", true), ("a b", false), ("a';b", false)] {
            let text = serde_json::json!({
                "description": "d",
                "base": {
                    "kind": "debian", "packages": [], "disk_mib": 1, "uuid": "u", "user": user,
                },
            });
            assert_eq!(parse(text.to_string().as_bytes()).is_ok(), good, "{user}");
        }
    }

    #[test]
    fn a_debian_base_needs_its_disk_size() {
        let text = br#"{"description": "d", "base": {"kind": "debian", "packages": []}}"#;
        assert!(parse(text).unwrap_err().to_string().contains("disk_mib"));
    }
}
