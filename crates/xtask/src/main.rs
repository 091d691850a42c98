//! Everything that is done *to* this repository: prepare the machine, build the programs and the
//! guest images, run the demonstration, the tests and the style checks.
//!
//! Guarantees: every verb can be repeated, does nothing when nothing changed, and says what it is
//! doing whenever it takes more than a moment. Nothing is written outside `build/` and the cargo
//! target folder, except by `setup`, which installs Debian packages.
//!
//! It does not run sandboxes; that is the product's own command line, `forkd`.

mod bench;
mod build;
mod command;
mod conformance;
mod count;
mod crash;
mod debian13;
mod demo;
mod emulated;
mod enter;
mod fuzz;
mod generate;
mod images;
mod lint;
mod node;
mod progress;
mod prove;
mod python;
mod setup;
mod test;
mod tidy;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::workspace::Workspace;

/// Tasks of the forkd repository.
#[derive(Parser)]
#[command(name = "xtask", disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Install the Debian packages that the other verbs need.
    Setup,
    /// Build the programs: forkd, the preload library and the static guest agent.
    Build,
    /// Build the guest kernel and images into build/images.
    Images(images::Options),
    /// Prepare everything and run the demonstration.
    Demo(demo::Options),
    /// Prepare everything, run all tests and print what ran in each tier.
    Test(test::Options),
    /// Prepare everything and prove that branches are of one instant.
    Prove(prove::Options),
    /// Crash a store again and again and check what is left.
    Crash(crash::Options),
    /// Prepare everything and count the instructions of starts and branches on KVM.
    Count(count::Options),
    /// Prepare everything and measure what the results are made of.
    Bench(bench::Options),
    /// Write the results and their plots from what was measured.
    Results(bench::ResultsOptions),
    /// Search for inputs that break the parsers of foreign bytes.
    Fuzz(fuzz::Options),
    /// Prepare everything and run the SDKs' tests against daemons with real guests.
    Conformance(conformance::Options),
    /// Write every generated file of the repository.
    Generate(generate::Options),
    /// Check formatting, clippy, generated files, the SDKs and the house rules.
    Lint,
    /// Check the house rules only; reports all findings at once.
    Tidy,
    /// Pack a root file system archive into a disk; runs inside the user namespace that
    /// `images` makes when it is not root.
    #[command(hide = true)]
    PackRootDisk(images::PackOptions),
    /// Run a program in the root file system of another system; the first process of namespaces
    /// that `test` makes.
    #[command(hide = true)]
    Enter(enter::Options),
    /// Make the templates that the system tests share; runs in another system.
    #[command(hide = true)]
    TestTemplates,
}

fn main() -> ExitCode {
    match run(Arguments::parse().verb) {
        Ok(code) => code,
        Err(error) => {
            progress::say(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(verb: Verb) -> anyhow::Result<ExitCode> {
    if let Verb::PackRootDisk(options) = &verb {
        images::pack_root_disk(options)?;
        return Ok(ExitCode::SUCCESS);
    }
    let workspace = Workspace::find()?;
    match verb {
        Verb::Setup => setup::run(&workspace)?,
        Verb::Build => build::run(&workspace)?,
        Verb::Images(options) => images::run(&workspace, &options)?,
        Verb::Demo(options) => return demo::run(&workspace, &options),
        Verb::Test(options) => return test::run(&workspace, &options),
        Verb::Prove(options) => return prove::run(&workspace, &options),
        Verb::Crash(options) => return crash::run(&workspace, &options),
        Verb::Count(options) => return count::run(&workspace, &options),
        Verb::Bench(options) => return bench::run(&workspace, &options),
        Verb::Results(options) => return bench::results(&workspace, &options),
        Verb::Fuzz(options) => return fuzz::run(&workspace, &options),
        Verb::Conformance(options) => return conformance::run(&workspace, &options),
        Verb::Generate(options) => return generate::run(&workspace, &options),
        Verb::Lint => return lint::run(&workspace),
        Verb::Tidy => return tidy::run(&workspace),
        Verb::Enter(options) => return enter::run(&workspace, &options),
        Verb::TestTemplates => test::make_templates(&workspace)?,
        Verb::PackRootDisk(_) => unreachable!("handled before the workspace is looked for"),
    }
    Ok(ExitCode::SUCCESS)
}
