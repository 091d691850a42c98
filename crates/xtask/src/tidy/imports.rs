//! Who may import whom: the walls between the crates.

use std::fs;
use std::path::PathBuf;

use anyhow::Context;
use serde::Deserialize;

use super::finding::Finding;
use crate::command::output;
use crate::workspace::Workspace;

/// Crates that everything may import.
const FOR_ALL: &str = "types";

/// For tests of any crate.
const FOR_TESTS: &str = "testkit";

/// Crates that may import anything: they look at the whole.
const IMPORT_ANYTHING: [&str; 4] = ["bench", "fuzz", "system-tests", "testkit"];

/// Each crate and what it may import besides `types`. A crate that is not here imports nothing.
const ALLOWED: [(&str, &[&str]); 17] = [
    ("agent", &["protocol", "sys"]),
    ("artifact", &["store"]),
    ("capture", &["sys"]),
    // The daemon only for `forkd serve`, the gateway for `forkd netd`.
    ("cli", &["api", "client", "daemon", "mcp", "meter-protocol", "netd", "recipe"]),
    ("client", &["api"]),
    ("daemon", &["api", "e2b", "engine"]),
    ("e2b", &["engine"]),
    (
        "engine",
        &[
            "artifact",
            "capture",
            "launcher",
            "netd-protocol",
            "oci",
            "protocol",
            "store",
            "sys",
            "vmm",
        ],
    ),
    ("launcher", &["sys"]),
    ("mcp", &["api", "client"]),
    ("meter", &["meter-protocol", "sys"]),
    ("netd", &["netd-protocol", "sys"]),
    ("netd-protocol", &["sys"]),
    ("shim", &["sys"]),
    ("store", &["sys"]),
    ("vmm", &["launcher", "sys"]),
    ("xtask", &["sys"]),
];

/// What only the tests of a crate may import besides that.
const ALLOWED_IN_TESTS: [(&str, &str); 2] = [
    // They talk to the guest agent as the daemon does.
    ("agent", "engine"),
    // With a feature that only tests have.
    ("store", "store"),
];

/// What `cargo metadata` prints, as far as it matters here and to the test tiers.
#[derive(Deserialize)]
pub(crate) struct Metadata {
    /// The packages of the workspace.
    pub(crate) packages: Vec<Package>,
}

/// A package of the workspace.
#[derive(Deserialize)]
pub(crate) struct Package {
    /// As in `Cargo.toml`.
    pub(crate) name: String,
    /// Its `Cargo.toml`.
    pub(crate) manifest_path: String,
    dependencies: Vec<Dependency>,
    /// Libraries, programs and tests.
    pub(crate) targets: Vec<Target>,
}

/// Something that cargo builds.
#[derive(Deserialize)]
pub(crate) struct Target {
    /// Its root file.
    pub(super) src_path: PathBuf,
    /// Library or program, as in `Cargo.toml`.
    pub(super) kind: Vec<String>,
    /// Whether examples in its documentation are run.
    pub(super) doctest: bool,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    /// None for one that is always there.
    kind: Option<String>,
    /// Set for packages of the workspace only.
    path: Option<String>,
}

/// Describes the workspace without looking at other packages.
pub(crate) fn metadata(workspace: &Workspace) -> anyhow::Result<Metadata> {
    let mut cargo = workspace.cargo();
    let text = output(cargo.args(["metadata", "--no-deps", "--format-version", "1"]))?;
    serde_json::from_str(&text).context("understand what cargo metadata printed")
}

/// Checks the dependencies of every crate.
pub(super) fn check(workspace: &Workspace, packages: &[Package]) -> anyhow::Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for package in packages {
        let manifest = fs::read_to_string(&package.manifest_path)
            .with_context(|| format!("read {}", package.manifest_path))?;
        let file = workspace.relative(package.manifest_path.as_ref()).display().to_string();
        for dependency in package.dependencies.iter().filter(|found| found.path.is_some()) {
            let for_tests = dependency.kind.as_deref() == Some("dev");
            let (importer, imported) = (short(&package.name), short(&dependency.name));
            if !is_allowed(importer, imported, for_tests) {
                let line = line_of(&manifest, &dependency.name);
                let message = format!("{importer} may not import {imported}");
                findings.push(Finding { file: file.clone(), line, message });
            }
        }
    }
    Ok(findings)
}

fn short(name: &str) -> &str {
    name.strip_prefix("forkd-").unwrap_or(name)
}

fn is_allowed(importer: &str, imported: &str, for_tests: bool) -> bool {
    let listed = ALLOWED.iter().find(|(name, _)| *name == importer);
    imported == FOR_ALL
        || IMPORT_ANYTHING.contains(&importer)
        || for_tests && imported == FOR_TESTS
        || for_tests && ALLOWED_IN_TESTS.contains(&(importer, imported))
        || listed.is_some_and(|(_, allowed)| allowed.contains(&imported))
}

/// The line of a manifest on which a dependency is named.
fn line_of(manifest: &str, dependency: &str) -> usize {
    let names_it = |line: &str| {
        line.strip_prefix(dependency).is_some_and(|rest| rest.starts_with(['.', ' ', '=']))
    };
    manifest.lines().position(names_it).map_or(1, |index| index + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allowed_imports_are_fine() {
        for (importer, imported) in
            [("cli", "client"), ("engine", "vmm"), ("store", "types"), ("testkit", "daemon")]
        {
            assert!(is_allowed(importer, imported, false), "{importer} -> {imported}");
        }
        assert!(is_allowed("capture", "testkit", true));
    }

    #[test]
    fn imports_through_a_wall_are_found() {
        for (importer, imported) in [
            ("cli", "engine"),
            ("engine", "daemon"),
            ("capture", "vmm"),
            ("agent", "engine"),
            ("types", "sys"),
            ("capture", "testkit"),
            ("a-new-crate", "sys"),
        ] {
            assert!(!is_allowed(importer, imported, false), "{importer} -> {imported}");
        }
        assert!(!is_allowed("capture", "store", true), "tests keep to the walls as well");
    }

    #[test]
    fn a_finding_names_the_line_of_the_dependency() {
        let manifest = "[dependencies]\nforkd-system.workspace = true\nforkd-sys = \"1\"\n";
        assert_eq!(line_of(manifest, "forkd-sys"), 3);
        assert_eq!(line_of(manifest, "forkd-vmm"), 1);
    }

    #[test]
    fn the_table_names_each_crate_once_in_order() {
        assert!(ALLOWED.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }
}
