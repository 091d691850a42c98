//! `generate`: writes every file of the repository that is made from others. `--check` only tells
//! which of them are not current.
//!
//! Guarantees: a file that is made later from one that is made earlier is made from its current
//! form. A generator that did not run has failed.

use std::process::{Command, ExitCode};

use anyhow::bail;

use crate::command::{output, run_visible};
use crate::progress::say;
use crate::python::Python;
use crate::workspace::Workspace;

/// Set for the test of a [`How::Test`], which then writes the file.
const WRITE: &str = "FORKD_UPDATE";

/// Generates what the SDKs have of it.
const SDK_SCRIPT: &str = "scripts/generate.py";

/// All generated files, in the order in which they are made.
const GENERATORS: [Generator; 6] = [
    Generator {
        files: "openapi/v1.json",
        how: How::Test("forkd-daemon", "--lib", "the_committed_openapi_document_is_current"),
    },
    Generator {
        files: "openapi/e2b.json",
        how: How::Test("forkd-e2b", "--lib", "the_committed_document_of_e2b_is_current"),
    },
    Generator {
        files: "docs/reference/cli.md",
        how: How::Test("forkd-cli", "--bins", "the_committed_reference_is_current"),
    },
    Generator {
        files: "docs/reference/errors.md",
        how: How::Test("forkd-api", "--lib", "the_committed_page_of_errors_is_current"),
    },
    Generator {
        files: "docs/reference/e2b-methods.md",
        how: How::Test("forkd-testkit", "--lib", "the_committed_page_of_methods_is_current"),
    },
    Generator {
        files: "models, errors and synchronous classes of sdk/python and sdk/typescript",
        how: How::Script(SDK_SCRIPT),
    },
];

/// Options of `generate`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Write nothing; fail if a file is not current.
    #[arg(long)]
    check: bool,
}

struct Generator {
    files: &'static str,
    how: How,
}

/// What makes the files.
enum How {
    /// A unit test: package, where it is in that, and name. It compares, and with the variable
    /// [`WRITE`] it writes.
    Test(&'static str, &'static str, &'static str),
    /// A Python program in the folder of the Python SDK. It writes, and compares with `--check`.
    Script(&'static str),
}

/// Makes or checks all files; the exit code tells whether all is well.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    let stale = if options.check { stale(workspace) } else { Vec::new() };
    if !options.check {
        for generator in &GENERATORS {
            generator.run(workspace, false)?;
        }
    }
    Ok(if stale.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The files that are not current; each is told.
pub(crate) fn stale(workspace: &Workspace) -> Vec<&'static str> {
    let mut stale = Vec::new();
    for generator in &GENERATORS {
        if let Err(error) = generator.run(workspace, true) {
            say(&format!("{error:#}"));
            say(&format!("not current: {}; run `make generate`", generator.files));
            stale.push(generator.files);
        }
    }
    stale
}

/// Tells whether the SDKs' files are current. The unit tests tell it of the others.
pub(crate) fn sdk_check(python: &Python) -> Command {
    let mut check = python.command();
    check.args([SDK_SCRIPT, "--check"]);
    check
}

impl Generator {
    fn run(&self, workspace: &Workspace, check: bool) -> anyhow::Result<()> {
        match self.how {
            How::Test(package, place, name) => {
                let mut cargo = workspace.cargo();
                cargo.args(["test", "--quiet", "--locked", "-p", package, place, name]);
                if !check {
                    cargo.env(WRITE, "1");
                }
                one_passed(name, &output(&mut cargo)?)
            }
            How::Script(script) => {
                let python = Python::prepare(workspace)?;
                run_visible(python.command().arg(script).args(check.then_some("--check")))
            }
        }
    }
}

/// Fails unless a test ran: a filter that fits none succeeds.
fn one_passed(name: &str, printed: &str) -> anyhow::Result<()> {
    if !printed.contains("test result: ok. 1 passed") {
        bail!("no test is called {name}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generator_that_did_not_run_has_failed() {
        assert!(one_passed("x", "test result: ok. 0 passed; 0 failed").is_err());
        let two_programs = "test result: ok. 0 passed\n\ntest result: ok. 1 passed; 0 failed";
        assert!(one_passed("x", two_programs).is_ok());
    }
}
