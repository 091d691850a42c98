//! The tier of Debian 13: the README's two commands on its QEMU and its libraries, with guests of
//! its kernel, on a machine that may have another release.
//!
//! Guarantees: programs, images and templates of the tests meet there: disks are made by its tools
//! and hold its packages.
//!
//! The demonstration runs the programs that are tested, not the released ones.

use anyhow::Context;

use super::harness::Harness;
use crate::command::run_logged;
use crate::debian13::{system, this_program};
use crate::demo;
use crate::progress::Step;
use crate::workspace::Workspace;

/// What the demonstration is called where test programs are chosen by their names.
pub(super) const DEMO: &str = "demo";

/// Makes the templates of the tests there, in one go: what runs there ends with its first process.
pub(super) fn make_templates(workspace: &Workspace) -> anyhow::Result<()> {
    let system = system(workspace);
    system.tidy_up()?;
    let mut xtask = this_program(workspace);
    xtask.arg("test-templates");
    let step = Step::start("templates in Debian 13");
    run_logged(&step, system.command(&xtask), &workspace.log("debian13-templates"))
        .context("make the templates of the tests in Debian 13")?;
    step.done("made");
    Ok(())
}

/// Runs the demonstration, told as a test.
pub(super) fn demonstrate(workspace: &Workspace, harness: &mut Harness) -> anyhow::Result<bool> {
    let demo = demo::command(workspace, &workspace.tested());
    let well = harness.run(DEMO, &mut system(workspace).command(&demo))?;
    let (word, numbers) =
        if well { ("ok", "1 passed; 0 failed") } else { ("FAILED", "0 passed; 1 failed") };
    harness.line(format!("test {DEMO} ... {word}\n").as_bytes())?;
    harness.line(format!("test result: {word}. {numbers}\n").as_bytes())?;
    Ok(well)
}
