//! One step in the sandbox of a build.

use anyhow::Context as _;
use forkd_recipe::Step;

use super::context::Context;
use super::machine::{Machine, succeeded};
use super::plan::Planned;
use super::{copy, start};

/// Does it, up to the moment at which the sandbox can be branched.
pub(super) async fn step(
    machine: &Machine,
    planned: &Planned,
    context: Option<&Context>,
) -> anyhow::Result<()> {
    let settings = &planned.settings;
    if let Some(directory) = &settings.workdir {
        machine.client.make_directory(&machine.id, directory, None).await?;
    }
    match &planned.step {
        Step::Run(run) => {
            let mut body = machine.exec(&run.command, settings);
            for (name, value) in &run.arguments {
                body.env.entry(name.clone()).or_insert_with(|| value.clone());
            }
            succeeded(&machine.client.exec(&machine.id, &body).await?)
        }
        Step::Copy(what) => {
            let context = context.context("a step copies files without a context")?;
            copy::copy(machine, what, &planned.files, context).await
        }
        Step::Start(what) => start::start(machine, what, settings).await,
        Step::Env(_) | Step::Workdir(_) | Step::User(_) => Ok(()),
    }
}
