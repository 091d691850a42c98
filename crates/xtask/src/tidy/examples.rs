//! Examples in the documentation of a library are compiled and run. A library without one says
//! `doctest = false`: to look for them costs as much as to compile it.

use std::fs;
use std::path::PathBuf;

use super::finding::Finding;
use super::imports::{Package, Target};
use crate::workspace::Workspace;

/// Checks every library of the packages.
pub(super) fn check(
    workspace: &Workspace,
    packages: &[Package],
    files: &[PathBuf],
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in packages {
        for target in package.targets.iter().filter(|target| is_library(target)) {
            let root = workspace.relative(&target.src_path);
            let folder = root.parent().unwrap_or(root);
            let rust =
                |path: &&PathBuf| path.extension().is_some_and(|extension| extension == "rs");
            let own = files.iter().filter(rust).filter(|path| path.starts_with(folder));
            let read = |path| fs::read_to_string(workspace.root.join(path)).ok();
            let has_examples = own.filter_map(read).any(|text| has_example(&text));
            findings.extend(finding(target, has_examples).map(|message| {
                let file = root.to_string_lossy().into_owned();
                Finding { file, line: 1, message: message.to_owned() }
            }));
        }
    }
    findings
}

fn is_library(target: &Target) -> bool {
    target.kind.iter().any(|kind| kind == "lib")
}

fn finding(target: &Target, has_examples: bool) -> Option<&'static str> {
    match (target.doctest, has_examples) {
        (true, false) => Some("no documentation has an example: `doctest = false` in Cargo.toml"),
        (false, true) => Some("an example is not run: remove `doctest = false` from Cargo.toml"),
        _ => None,
    }
}

/// Whether a block in the documentation is code. A block of `text` is not.
fn has_example(text: &str) -> bool {
    let comments = text.lines().filter_map(|line| {
        let line = line.trim_start();
        line.strip_prefix("///").or_else(|| line.strip_prefix("//!"))
    });
    let fences = comments.filter_map(|line| line.trim_start().strip_prefix("```"));
    fences.step_by(2).any(|language| language.trim() != "text")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_is_an_example() {
        assert!(!has_example("//! ```text\n//! a -> b\n//! ```\n"));
        assert!(has_example("//! ```text\n//! a\n//! ```\n  /// ```\n  /// f();\n  /// ```\n"));
        assert!(has_example("//! ```compile_fail,E0599\n//! f();\n//! ```\n"));
        assert!(!has_example("// ```\nlet text = \"```\";\n"));
    }

    #[test]
    fn a_library_says_what_it_has() {
        let target = |doctest| Target { src_path: PathBuf::new(), kind: Vec::new(), doctest };
        assert!(finding(&target(true), true).is_none() && finding(&target(false), false).is_none());
        assert!(finding(&target(true), false).is_some() && finding(&target(false), true).is_some());
    }
}
