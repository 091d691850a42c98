//! Debian 13 on a machine that may have another release: its root file system, and images that its
//! tools have made of its packages.
//!
//! Guarantees: nothing of it mixes with this machine's images. What is current stays.
//!
//! It does not build the programs there: those that this machine has built run on a newer C
//! library. The host's kernel stays this machine's.

use std::process::Command;

use anyhow::Context;

use crate::command::run_logged;
use crate::enter::{self, System};
use crate::images;
use crate::progress::Step;
use crate::workspace::Workspace;

/// Why this machine cannot run programs there.
pub(crate) fn obstacle() -> Option<String> {
    let is_root = rustix::process::geteuid().is_root();
    (!is_root).then(|| "needs root, to mount Debian 13's root file system".to_owned())
}

/// Debian 13, once it is there.
pub(crate) fn system(workspace: &Workspace) -> System {
    System::new(workspace.debian13())
}

/// Builds Debian 13 and, in it, the images. The guest agent has to be built.
pub(crate) fn prepare(workspace: &Workspace) -> anyhow::Result<()> {
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

/// This program, for [`System::command`].
pub(crate) fn this_program(workspace: &Workspace) -> Command {
    let mut command = Command::new(enter::THIS_PROGRAM);
    command.current_dir(&workspace.root);
    command
}
