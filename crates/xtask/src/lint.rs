//! `lint`: formatting, clippy, generated files, the SDKs and the house rules. All of them run,
//! whatever fails first.

use std::process::ExitCode;

use crate::command::run_visible;
use crate::node::Node;
use crate::progress::say;
use crate::workspace::Workspace;
use crate::{generate, python, tidy};

/// Runs all checks; the exit code tells whether every one passed.
pub(crate) fn run(workspace: &Workspace) -> anyhow::Result<ExitCode> {
    let mut failed = Vec::new();
    let checks: [(&str, &[&str]); 2] = [
        ("cargo fmt --check", &["fmt", "--all", "--check"]),
        (
            "cargo clippy",
            &["clippy", "--locked", "--workspace", "--all-targets", "--", "-D", "warnings"],
        ),
    ];
    for (name, arguments) in checks {
        if run_visible(workspace.cargo().args(arguments)).is_err() {
            failed.push(name);
        }
    }
    failed.extend(generate::stale(workspace));
    match python::lint(workspace) {
        Ok(checks) => failed.extend(checks),
        Err(error) => {
            say(&format!("the Python SDK cannot be checked: {error:#}"));
            failed.push("Python SDK");
        }
    }
    if let Err(error) = Node::prepare(workspace) {
        say(&format!("the TypeScript SDK cannot be checked: {error:#}"));
        failed.push("TypeScript SDK");
    }
    if tidy::run(workspace)? != ExitCode::SUCCESS {
        failed.push("tidy");
    }
    if failed.is_empty() {
        say("lint: all clean");
        return Ok(ExitCode::SUCCESS);
    }
    say(&format!("lint: failed: {}", failed.join(", ")));
    Ok(ExitCode::FAILURE)
}
