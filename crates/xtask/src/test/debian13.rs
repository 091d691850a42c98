//! The tier of Debian 13: the README's two commands on its QEMU and its libraries, with guests of
//! its kernel, on a machine that may have another release.
//!
//! Guarantees: programs, images and templates of the tests meet there: disks are made by its tools
//! and hold its packages. Nothing of it mixes with this machine's images.
//!
//! It does not build the programs there: those that this machine has built run on a newer C
//! library. The host's kernel stays this machine's. The demonstration runs the programs that are
//! tested, not the released ones.

use std::process::Command;

use anyhow::Context;

use super::harness::Harness;
use crate::command::run_logged;
use crate::enter::{self, System};
use crate::progress::Step;
use crate::workspace::Workspace;
use crate::{demo, images};

/// What the demonstration is called where test programs are chosen by their names.
pub(super) const DEMO: &str = "demo";

/// Why this machine cannot run it.
pub(super) fn obstacle() -> Option<String> {
    let is_root = rustix::process::geteuid().is_root();
    (!is_root).then(|| "needs root, to mount Debian 13's root file system".to_owned())
}

/// Debian 13, once it is there.
pub(super) fn system(workspace: &Workspace) -> System {
    System::new(workspace.debian13())
}

/// Builds Debian 13 and, in it, the images; what is current stays. The guest agent has to be built.
pub(super) fn prepare(workspace: &Workspace) -> anyhow::Result<()> {
    let system = images::debian13(workspace)?;
    system.tidy_up()?;
    let agent = workspace.for_guests("forkd-agent");
    let mut xtask = this_program(workspace);
    xtask.args(["images", "--agent"]).arg(agent);
    let step = Step::start("images in Debian 13");
    run_logged(&step, system.command(&xtask), &workspace.log("debian13-images")).with_context(
        || {
            format!(
                "build images in Debian 13, which needs a kernel with overlayfs and permission to \
                 mount and to make namespaces; build/ there is {}",
                workspace.relative(&system.build()).display()
            )
        },
    )?;
    step.done("current");
    Ok(())
}

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

fn this_program(workspace: &Workspace) -> Command {
    let mut command = Command::new(enter::THIS_PROGRAM);
    command.current_dir(&workspace.root);
    command
}
