//! No circle between the files of a program: what two files share stands in a third, so that each
//! can be read, tested and changed with only what it stands on.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::finding::Finding;
use super::imports::Package;
use super::modules::{Modules, Use};
use crate::workspace::Workspace;

/// Names of one use that a finding tells.
const NAMES_SHOWN: usize = 3;

/// Checks every program and library of the packages.
pub(super) fn check(workspace: &Workspace, packages: &[Package]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for target in packages.iter().flat_map(|package| &package.targets) {
        let root = workspace.relative(&target.src_path);
        let read = |path: &Path| fs::read_to_string(workspace.root.join(path)).ok();
        findings.extend(circles_of(Modules::read(root, &read).uses()));
    }
    findings
}

/// A finding for each set of files that lead to each other.
fn circles_of(uses: Vec<Use>) -> Vec<Finding> {
    let mut graph: BTreeMap<PathBuf, BTreeMap<PathBuf, Vec<Use>>> = BTreeMap::new();
    for found in uses {
        let arrows = graph.entry(found.from.clone()).or_default();
        arrows.entry(found.to.clone()).or_default().push(found);
    }
    let mut seen = BTreeSet::new();
    let mut findings = Vec::new();
    for start in graph.keys() {
        if seen.contains(start) {
            continue;
        }
        let Some(circle) = shortest(&graph, start) else { continue };
        let ahead = reached(&graph, start);
        let together: Vec<_> =
            ahead.into_iter().filter(|file| reached(&graph, file).contains(start)).collect();
        findings.push(finding(&circle, together.len()));
        seen.extend(together);
    }
    findings
}

type Graph = BTreeMap<PathBuf, BTreeMap<PathBuf, Vec<Use>>>;

/// All files that one leads to.
fn reached(graph: &Graph, start: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut unseen = vec![start];
    while let Some(file) = unseen.pop() {
        for next in graph.get(file).into_iter().flat_map(BTreeMap::keys) {
            if found.insert(next.clone()) {
                unseen.push(next);
            }
        }
    }
    found
}

/// The shortest way from a file back to itself.
fn shortest<'a>(graph: &'a Graph, start: &Path) -> Option<Vec<&'a [Use]>> {
    let mut ways: Vec<(&Path, Vec<&[Use]>)> = vec![(start, Vec::new())];
    let mut seen = BTreeSet::new();
    let mut index = 0;
    while let Some((file, way)) = ways.get(index).cloned() {
        index += 1;
        for (next, uses) in graph.get(file).into_iter().flatten() {
            let mut longer = way.clone();
            longer.push(uses);
            if next == start {
                return Some(longer);
            }
            if seen.insert(next) {
                ways.push((next, longer));
            }
        }
    }
    None
}

fn finding(circle: &[&[Use]], files: usize) -> Finding {
    let first = &circle[0][0];
    let mut message = format!("{files} files use each other: {}", first.from.display());
    for uses in circle {
        let names: Vec<&str> =
            uses.iter().take(NAMES_SHOWN).map(|found| found.name.as_str()).collect();
        let more = if uses.len() > NAMES_SHOWN { ", .." } else { "" };
        message.push_str(&format!(" -> {} ({}{more})", uses[0].to.display(), names.join(", ")));
    }
    Finding { file: first.from.display().to_string(), line: first.line, message }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(arrows: &[(&str, &str, &str)]) -> Vec<String> {
        let uses = arrows.iter().map(|(from, to, name)| Use {
            from: from.into(),
            to: to.into(),
            line: 7,
            name: (*name).to_owned(),
        });
        circles_of(uses.collect()).into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn files_in_layers_form_no_circle() {
        assert!(messages(&[("a", "b", "X"), ("a", "c", "Y"), ("b", "c", "Z")]).is_empty());
    }

    #[test]
    fn a_circle_is_told_once_by_its_shortest_way_with_the_names_that_tie_it() {
        let found = messages(&[
            ("a", "b", "X"),
            ("b", "c", "Y"),
            ("c", "b", "Back"),
            ("c", "a", "Round"),
            ("d", "a", "Above"),
        ]);
        assert_eq!(found, ["3 files use each other: a -> b (X) -> c (Y) -> a (Round)"]);
    }

    #[test]
    fn two_circles_are_two_findings() {
        let found = messages(&[("a", "b", "X"), ("b", "a", "Y"), ("c", "d", "P"), ("d", "c", "Q")]);
        assert_eq!(found.len(), 2);
    }
}
