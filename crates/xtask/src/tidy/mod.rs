//! `tidy`: the house rules that no compiler checks. Reports all findings at once, each as
//! `file:line: message`.
//!
//! | rule | where |
//! |---|---|
//! | file and line length | `rust.rs` |
//! | which crate may import which | `imports.rs` |
//! | what may come into the build | `licences.rs` |
//! | no circle between the files of a crate | `circles.rs`, `modules.rs` |
//! | tables of the documents that list code | `tables.rs` |
//! | whether a library's documentation has examples to run | `examples.rs` |
//! | words that tell history or unfinished work, names that are not the field's | `words.rs` |
//! | one title per page, a README that is read | `markdown.rs` |

mod circles;
mod examples;
mod finding;
mod imports;
mod licences;
mod markdown;
mod modules;
mod rust;
mod source;
mod tables;
mod words;

pub(crate) use self::imports::{Metadata, metadata};

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;

use self::finding::Finding;
use crate::progress::say;
use crate::workspace::Workspace;

/// Folders in the root that hold nothing written by hand.
const GENERATED_FOLDERS: [&str; 2] = ["build", "target"];

/// Folders anywhere that hold nothing written by hand.
const TOOL_FOLDERS: [&str; 4] = ["__pycache__", "dist", "node_modules", "venv"];

/// Hidden folders that are ours.
const HIDDEN_FOLDERS: [&str; 2] = [".ci", ".github"];

/// Prints all findings; the exit code tells whether there were any.
pub(crate) fn run(workspace: &Workspace) -> anyhow::Result<ExitCode> {
    let findings = findings(workspace)?;
    for finding in &findings {
        say(&finding.to_string());
    }
    if findings.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    say(&format!("tidy: {} findings", findings.len()));
    Ok(ExitCode::FAILURE)
}

/// All findings, by file and line.
fn findings(workspace: &Workspace) -> anyhow::Result<Vec<Finding>> {
    let packages = metadata(workspace)?.packages;
    let mut findings = imports::check(workspace, &packages)?;
    findings.extend(circles::check(workspace, &packages));
    findings.extend(licences::check(workspace)?);
    let mut files = Vec::new();
    collect(&workspace.root, Path::new(""), &mut files)?;
    findings.extend(tables::check(workspace, &files));
    findings.extend(examples::check(workspace, &packages, &files));
    for path in &files {
        // What is not text has no style.
        if let Ok(text) = fs::read_to_string(workspace.root.join(path)) {
            findings.extend(check_file(&path.to_string_lossy(), &text));
        }
    }
    findings.sort_by(|a, b| (&a.file, a.line).cmp(&(&b.file, b.line)));
    Ok(findings)
}

fn check_file(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    match path.rsplit_once('.').map(|(_, extension)| extension) {
        Some("rs") => {
            let lines = source::parse(text);
            findings.extend(rust::check(path, text, &lines));
            findings.extend(words::check_rust(path, &lines));
        }
        Some("md") => {
            findings.extend(markdown::check(path, text));
            findings.extend(words::check_text(path, text));
        }
        Some("json" | "py" | "sh" | "toml" | "ts" | "yaml" | "yml") | None => {
            findings.extend(words::check_text(path, text));
        }
        Some(_) => {}
    }
    findings
}

fn collect(root: &Path, folder: &Path, files: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    let absolute = root.join(folder);
    let entries =
        fs::read_dir(&absolute).with_context(|| format!("read {}", absolute.display()))?;
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = folder.join(&name);
        let kind = entry.file_type()?;
        if kind.is_dir() {
            let is_top = folder.as_os_str().is_empty();
            let skip = TOOL_FOLDERS.contains(&name.as_str())
                || is_top && GENERATED_FOLDERS.contains(&name.as_str())
                || name.starts_with('.') && !HIDDEN_FOLDERS.contains(&name.as_str());
            if !skip {
                collect(root, &path, files)?;
            }
        } else if kind.is_file() {
            files.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_project_keeps_to_its_rules() {
        let findings = findings(&Workspace::find().unwrap()).unwrap();
        let lines: Vec<_> = findings.iter().map(ToString::to_string).collect();
        assert!(lines.is_empty(), "{}", lines.join("\n"));
    }

    #[test]
    fn generated_and_hidden_folders_are_not_searched() {
        let root = tempfile::tempdir().unwrap();
        for path in ["target/a.rs", ".git/b", "x/node_modules/c.ts", ".ci/run", "x/build/d.rs"] {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let mut files = Vec::new();
        collect(root.path(), Path::new(""), &mut files).unwrap();
        files.sort();
        assert_eq!(files, [Path::new(".ci/run"), Path::new("x/build/d.rs")]);
    }
}
