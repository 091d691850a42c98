//! `conformance`: the SDKs against daemons of their own with real guests: the scenarios, the code
//! blocks of the documents, and the recipes that use an SDK.

use std::path::Path;
use std::process::{Command, ExitCode};

use crate::command::run_visible;
use crate::node::Node;
use crate::progress::say;
use crate::python::Python;
use crate::workspace::Workspace;
use crate::{build, images, setup};

/// What gives a program a daemon of its own, from an SDK's folder.
const WITH_DAEMON: &str = "../conformance/with_daemon.py";

/// Options of `conformance`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Play with these SDKs only.
    #[arg(value_enum)]
    languages: Vec<Language>,
    /// Passed as they are to the one SDK's player: pytest, or Node's test runner.
    #[arg(last = true)]
    arguments: Vec<String>,
}

/// What an SDK is written in.
#[derive(Debug, Clone, Copy, PartialEq, clap::ValueEnum)]
pub(crate) enum Language {
    Python,
    #[value(name = "typescript")]
    TypeScript,
}

impl Language {
    pub(crate) const ALL: [Self; 2] = [Self::Python, Self::TypeScript];

    /// What plays everything with this SDK; `programs` is the folder of the program `forkd`.
    pub(crate) fn player(
        self,
        workspace: &Workspace,
        programs: &Path,
        arguments: &[String],
    ) -> anyhow::Result<Command> {
        let python = Python::prepare(workspace)?;
        let mut player = match self {
            Self::Python => {
                let mut tests = python.tests();
                tests.arg("tests/daemon").args(arguments);
                tests
            }
            Self::TypeScript => {
                let mut node = Node::prepare(workspace)?.daemon_tests()?;
                // Files come last.
                node.splice(1..1, arguments.iter().cloned());
                let mut tests = python.command();
                tests.current_dir(workspace.root.join("sdk/typescript"));
                tests.args([WITH_DAEMON, "--", "node"]).args(node);
                tests
            }
        };
        player.env("FORKD", programs.join("forkd")).env("FORKD_IMAGE_DIR", workspace.images());
        Ok(player)
    }
}

/// Runs the verb; the exit code tells whether all is well.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    setup::run(workspace)?;
    setup::for_sdks(workspace)?;
    build::run(workspace)?;
    images::run(workspace, &images::Options::default())?;
    let mut well = true;
    for language in Language::ALL {
        if options.languages.is_empty() || options.languages.contains(&language) {
            let mut player =
                language.player(workspace, &workspace.released(), &options.arguments)?;
            well &= run_visible(&mut player).is_ok();
        }
    }
    say(if well { "conformance: all well" } else { "conformance: FAILED" });
    Ok(if well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
