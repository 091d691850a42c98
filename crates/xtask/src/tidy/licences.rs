//! Which packages of others may come into the build: from the registry only, of a stated version,
//! under a licence that `deny.toml` allows. And what is linked into the shim may also be used under
//! a licence that fits QEMU's, in whose process it is loaded.
//!
//! Needs no network: `cargo metadata` knows what the lock file names. `cargo deny check` reads the
//! same list, and looks for advisories too, for which it needs their database.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::Context;
use serde::Deserialize;

use super::finding::Finding;
use crate::command::output;
use crate::workspace::Workspace;

/// The list of allowed licences.
const LIST: &str = "deny.toml";
/// Where packages come in.
const LOCK: &str = "Cargo.lock";
const SHIM: &str = "forkd-shim";
/// QEMU as a whole is under version 2 of the GPL. These may be combined with it; Apache-2.0 may
/// not.
const FITS_QEMU: [&str; 6] =
    ["BSD-3-Clause", "GPL-2.0-or-later", "ISC", "MIT", "Unicode-3.0", "Zlib"];

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    source: Option<String>,
    dependencies: Vec<Dependency>,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    req: String,
    path: Option<String>,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Edge>,
}

#[derive(Deserialize)]
struct Edge {
    pkg: String,
    dep_kinds: Vec<EdgeKind>,
}

#[derive(Deserialize)]
struct EdgeKind {
    /// None for one that the program itself needs.
    kind: Option<String>,
}

/// Looks at every package that the build of this platform uses.
pub(super) fn check(workspace: &Workspace) -> anyhow::Result<Vec<Finding>> {
    let list = fs::read_to_string(workspace.root.join(LIST)).context("read deny.toml")?;
    let allowed = allowed(&list).context("deny.toml has no line `allow = [..]`")?;
    let mut cargo = workspace.cargo();
    cargo.args(["metadata", "--locked", "--format-version", "1"]);
    let text = output(cargo.args(["--filter-platform", "x86_64-unknown-linux-gnu"]))?;
    let metadata: Metadata =
        serde_json::from_str(&text).context("understand what cargo metadata printed")?;
    Ok(judge(&metadata, &allowed))
}

/// The licences in the line `allow = [..]`.
fn allowed(list: &str) -> Option<BTreeSet<&str>> {
    let line = list.lines().find_map(|line| line.strip_prefix("allow = ["))?;
    Some(line.split('"').skip(1).step_by(2).collect())
}

fn judge(metadata: &Metadata, allowed: &BTreeSet<&str>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut find = |message: String| {
        findings.push(Finding { file: LOCK.to_owned(), line: 1, message });
    };
    let in_shim = linked_into(metadata, SHIM);
    for package in &metadata.packages {
        let Package { name, version, .. } = package;
        let licence = package.license.as_deref().unwrap_or_default();
        if !permits(licence, &|name| allowed.contains(name)) {
            find(format!("{name} {version}: licence `{licence}` is not in {LIST}"));
        }
        let fits = permits(licence, &|name| FITS_QEMU.contains(&name));
        if in_shim.contains(package.id.as_str()) && !fits {
            find(format!("{name} {version}: licence `{licence}` does not fit QEMU's"));
        }
        match &package.source {
            Some(source) if !source.starts_with("registry+") => {
                find(format!("{name} {version} comes from `{source}`"));
            }
            Some(_) => {}
            None => {
                let any = |found: &&Dependency| found.req == "*" && found.path.is_none();
                for dependency in package.dependencies.iter().filter(any) {
                    find(format!("{name} takes any version of {}", dependency.name));
                }
            }
        }
    }
    findings
}

/// The packages whose code is in the library or program of `name`: what only its build runs is
/// not.
fn linked_into<'a>(metadata: &'a Metadata, name: &str) -> BTreeSet<&'a str> {
    let by_id: BTreeMap<&str, &Package> =
        metadata.packages.iter().map(|package| (package.id.as_str(), package)).collect();
    let edges: BTreeMap<&str, &[Edge]> =
        metadata.resolve.nodes.iter().map(|node| (node.id.as_str(), &node.deps[..])).collect();
    let root = metadata.packages.iter().filter(|package| package.name == name);
    let mut todo: Vec<&str> = root.map(|package| package.id.as_str()).collect();
    let mut linked = BTreeSet::new();
    while let Some(id) = todo.pop() {
        let is_macro = by_id.get(id).is_some_and(|package| {
            package.targets.iter().any(|target| target.kind.iter().any(|kind| kind == "proc-macro"))
        });
        if is_macro || !linked.insert(id) {
            continue;
        }
        let needed = edges.get(id).copied().unwrap_or_default().iter();
        let needed = needed.filter(|edge| edge.dep_kinds.iter().any(|kind| kind.kind.is_none()));
        todo.extend(needed.map(|edge| edge.pkg.as_str()));
    }
    linked
}

/// Whether what an SPDX expression offers can be taken with the licences that `accepts` knows. An
/// exception (`WITH`) permits more than its licence, and `/` is an old `OR`.
fn permits(expression: &str, accepts: &dyn Fn(&str) -> bool) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let mut words = spaced.split_whitespace().peekable();
    any_of(&mut words, accepts) == Some(true) && words.next().is_none()
}

type Words<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

/// None where the expression is none.
fn any_of(words: &mut Words<'_>, accepts: &dyn Fn(&str) -> bool) -> Option<bool> {
    let mut permitted = all_of(words, accepts)?;
    while words.next_if_eq(&"OR").is_some() {
        permitted |= all_of(words, accepts)?;
    }
    Some(permitted)
}

fn all_of(words: &mut Words<'_>, accepts: &dyn Fn(&str) -> bool) -> Option<bool> {
    let mut permitted = one(words, accepts)?;
    while words.next_if_eq(&"AND").is_some() {
        permitted &= one(words, accepts)?;
    }
    Some(permitted)
}

fn one(words: &mut Words<'_>, accepts: &dyn Fn(&str) -> bool) -> Option<bool> {
    match words.next()? {
        "(" => any_of(words, accepts).filter(|_| words.next() == Some(")")),
        licence => {
            if words.next_if_eq(&"WITH").is_some() {
                words.next()?;
            }
            Some(accepts(licence))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn expressions_are_read_as_spdx_means_them() {
        let accepts = |name: &str| ["MIT", "Zlib", "Apache-2.0"].contains(&name);
        for good in [
            "MIT",
            "GPL-3.0 OR MIT",
            "MIT/Unlicense",
            "MIT AND Zlib",
            "(MIT OR X) AND Zlib",
            "Apache-2.0 WITH LLVM-exception OR X",
            "X AND Y OR MIT",
        ] {
            assert!(permits(good, &accepts), "{good}");
        }
        for bad in ["", "X", "MIT AND X", "(MIT OR X) AND Y", "MIT OR", "(MIT", "MIT X", "MIT)"] {
            assert!(!permits(bad, &accepts), "{bad}");
        }
    }

    fn package(name: &str, license: &str, source: Option<&str>, kind: &str) -> serde_json::Value {
        json!({ "id": name, "name": name, "version": "1", "license": license, "source": source,
            "dependencies": [{ "name": "d", "req": "*", "path": null }],
            "targets": [{ "kind": [kind] }] })
    }

    #[test]
    fn each_rule_finds_what_breaks_it_and_nothing_else() {
        let registry = Some("registry+somewhere");
        let edge = |to: &str, kind: Option<&str>| json!({"pkg": to, "dep_kinds": [{"kind": kind}]});
        let metadata: Metadata = serde_json::from_value(json!({
            "packages": [
                package(SHIM, "Apache-2.0 OR MIT", registry, "cdylib"),
                package("strict", "Apache-2.0", registry, "lib"),
                package("macro", "Apache-2.0", registry, "proc-macro"),
                package("below macro", "Apache-2.0", registry, "lib"),
                package("test", "Apache-2.0", registry, "lib"),
                package("odd", "Odd-1.0", registry, "lib"),
                package("far", "MIT", Some("git+https://example.org"), "lib"),
                package("ours", "MIT", None, "lib"),
            ],
            "resolve": { "nodes": [
                { "id": SHIM, "deps": [
                    edge("strict", None), edge("macro", None), edge("test", Some("dev")),
                ] },
                { "id": "macro", "deps": [edge("below macro", None)] },
            ] },
        }))
        .unwrap();
        let found = judge(&metadata, &["MIT", "Apache-2.0"].into());
        let messages: Vec<_> = found.iter().map(|finding| finding.message.as_str()).collect();
        assert_eq!(
            messages,
            [
                "strict 1: licence `Apache-2.0` does not fit QEMU's",
                "odd 1: licence `Odd-1.0` is not in deny.toml",
                "far 1 comes from `git+https://example.org`",
                "ours takes any version of d",
            ]
        );
    }

    #[test]
    fn the_list_is_read() {
        let list = allowed("[licenses]\nallow = [\"MIT\", \"Zlib\"]\n").unwrap();
        assert_eq!(list, ["MIT", "Zlib"].into());
        assert_eq!(allowed("[licenses]"), None);
    }
}
