//! The workspace's own programs and their test programs.
//!
//! Guarantees: one cargo command builds them all, so every crate is compiled once, with one set of
//! features. Afterwards they run without cargo, so tiers side by side do not wait for its lock.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, bail};

use super::harness::SYSTEM_TESTS;
use super::templates;
use crate::command::output_logged;
use crate::progress::Step;
use crate::tidy::Metadata;
use crate::workspace::Workspace;

/// A program of tests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TestProgram {
    pub(super) package: String,
    /// The name of the target.
    pub(super) name: String,
    pub(super) path: PathBuf,
    /// The package's folder, where it runs.
    folder: PathBuf,
}

/// Which of the programs are to run, and how.
#[derive(Debug, Clone, Default, clap::Args)]
pub(super) struct Selection {
    /// Run only this one of the tiers' Rust test programs; may be repeated. `demo` is the
    /// demonstration that the tier `debian13` runs as well.
    #[arg(long = "program", value_name = "NAME", requires = "tiers")]
    programs: Vec<String>,
    /// Passed to these programs: a part of the names of tests, for instance.
    #[arg(last = true, requires = "tiers")]
    pub(super) arguments: Vec<String>,
}

impl Selection {
    /// Whether all programs are to run, with all of their tests.
    pub(super) fn is_all(&self) -> bool {
        self.programs.is_empty() && self.arguments.is_empty()
    }

    /// Whether this program is to run.
    pub(super) fn has(&self, name: &str) -> bool {
        self.programs.is_empty() || self.programs.iter().any(|chosen| chosen == name)
    }

    /// Refuses what is not there: nobody shall believe that it ran.
    pub(super) fn check(&self, names: &[&str]) -> anyhow::Result<()> {
        match self.programs.iter().find(|chosen| !names.contains(&chosen.as_str())) {
            Some(unknown) => {
                bail!("no test program {unknown} in these tiers; there are: {}", names.join(" "))
            }
            None => Ok(()),
        }
    }
}

/// Builds them.
pub(super) fn build(
    workspace: &Workspace,
    metadata: &Metadata,
) -> anyhow::Result<Vec<TestProgram>> {
    let step = Step::start("build the programs and the tests");
    let mut cargo = workspace.cargo();
    cargo.args(["build", "--locked", "--workspace", "--lib", "--bins", "--tests"]);
    cargo.arg("--message-format=json-render-diagnostics");
    let messages = output_logged(&step, cargo, &workspace.log("test-build"))?;
    let programs = test_programs(&messages, metadata);
    step.done(&format!("{} test programs", programs.len()));
    Ok(programs)
}

/// The test programs in cargo's messages, in the order of their names.
fn test_programs(messages: &str, metadata: &Metadata) -> Vec<TestProgram> {
    let mut programs: Vec<_> = messages
        .lines()
        .filter_map(|line| {
            let message: serde_json::Value = serde_json::from_str(line).ok()?;
            let path = message["executable"].as_str().map(PathBuf::from)?;
            let manifest = message["manifest_path"].as_str()?;
            let package =
                metadata.packages.iter().find(|package| package.manifest_path == manifest)?;
            let (package, folder) = (package.name.clone(), PathBuf::from(manifest));
            let name = message["target"]["name"].as_str()?.to_owned();
            let folder = folder.parent()?.to_owned();
            let is_test = message["profile"]["test"].as_bool()?;
            is_test.then_some(TestProgram { package, name, path, folder })
        })
        .collect();
    programs.sort_by(|a, b| (&a.package, &a.name).cmp(&(&b.package, &b.name)));
    programs
}

impl TestProgram {
    /// For tests.
    #[cfg(test)]
    pub(super) fn named(package: &str, name: &str) -> Self {
        let path = PathBuf::from(format!("/t/{name}-1"));
        let folder = PathBuf::from("/w").join(package);
        Self { package: package.to_owned(), name: name.to_owned(), path, folder }
    }

    /// Runs it as `cargo test` would, told where everything is.
    pub(super) fn command(&self, workspace: &Workspace) -> Command {
        let images = workspace.images();
        let mut command = Command::new(&self.path);
        command
            .current_dir(&self.folder)
            .envs(workspace.places_for_vms(&workspace.tested()))
            .env("CARGO_MANIFEST_DIR", &self.folder)
            .env(templates::VARIABLE, templates::folder(workspace))
            .env("FORKD_TEST_KERNEL", images.join("kernel/vmlinuz"))
            .env("FORKD_TEST_INITRAMFS", images.join("tiny/initramfs.cpio"))
            .env("FORKD_TEST_ROOT_DISK", images.join("python/root.ext4"));
        command
    }
}

/// The test program of the system tests that is called `name`.
pub(super) fn system_test<'a>(
    programs: &'a [TestProgram],
    name: &str,
) -> anyhow::Result<&'a TestProgram> {
    programs
        .iter()
        .find(|program| program.package == SYSTEM_TESTS && program.name == name)
        .with_context(|| format!("cargo built no test program {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selection_has_what_it_names_and_refuses_what_is_not_there() {
        let all = Selection::default();
        assert!(all.is_all() && all.has("vm_cli") && all.check(&[]).is_ok());
        let one = Selection { programs: vec!["vm_cli".to_owned()], arguments: Vec::new() };
        assert!(!one.is_all() && one.has("vm_cli") && !one.has("vm_branch"));
        assert!(one.check(&["vm_branch", "vm_cli"]).is_ok());
        let error = one.check(&["vm_branch", "demo"]).unwrap_err().to_string();
        assert!(error.contains("vm_cli") && error.contains("vm_branch demo"), "{error}");
    }

    #[test]
    fn test_programs_are_found_among_cargos_messages() {
        let packages = serde_json::json!({"packages": [{
            "name": "forkd-sys", "manifest_path": "/w/forkd-sys/Cargo.toml", "dependencies": [],
            "targets": [],
        }]});
        let metadata = serde_json::from_value(packages).unwrap();
        let message = |name: &str, test: bool, path: Option<&str>| {
            serde_json::json!({
                "reason": "compiler-artifact", "manifest_path": "/w/forkd-sys/Cargo.toml",
                "target": {"name": name}, "profile": {"test": test}, "executable": path,
            })
            .to_string()
        };
        let messages = [
            message("wire", true, Some("/t/wire-1")),
            message("forkd", false, Some("/t/forkd")),
            message("forkd_sys", true, None),
            "not json".to_owned(),
            "{\"reason\":\"build-finished\",\"success\":true}".to_owned(),
            message("answers", true, Some("/t/answers-1")),
        ];
        let found = test_programs(&messages.join("\n"), &metadata);
        let program = TestProgram::named;
        assert_eq!(found, [program("forkd-sys", "answers"), program("forkd-sys", "wire")]);
        assert!(system_test(&found, "wire").unwrap_err().to_string().contains("wire"));
    }
}
