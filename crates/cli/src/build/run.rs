//! A whole build: what is done already, the rest step by step, and the tag at the end.

use std::path::PathBuf;
use std::time::Instant;

use forkd_client::Client;
use forkd_recipe::Recipe;

use super::built::{Built, Done};
use super::context::Context;
use super::events::Audience;
use super::failure::StepFailed;
use super::machine::Machine;
use super::plan::{self, Planned};
use super::result::Place;
use super::{Bounds, base, cache, step};
use crate::console::progress;
use crate::console::report::note;
use crate::console::signals::{Caught, Signals};

/// What is wanted.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) recipe: Recipe,
    /// The directory that files are copied from.
    pub(crate) context: PathBuf,
    /// What the result is to be called.
    pub(crate) tag: Option<String>,
    /// Whether all steps are run, whatever is there.
    pub(crate) is_anew: bool,
    /// Whether the sandbox of a step that fails stays.
    pub(crate) keeps_failed: bool,
    /// Who is told what happens.
    pub(crate) audience: Audience,
}

/// Builds, until a signal comes.
pub(crate) async fn build(
    client: &Client,
    order: Order,
    signals: &mut Signals,
) -> anyhow::Result<Result<Built, Caught>> {
    let begun = Instant::now();
    let prepared = async {
        let (base, key) = base::prepare(client, &order.recipe.base, order.is_anew).await?;
        let list = || Context::list(&order.context);
        let (steps, context) = plan::plan(order.recipe.clone(), key, list)?;
        let done = match order.is_anew {
            true => 0,
            false => plan::done(&steps, &cache::tags(client).await?),
        };
        let place = match &order.tag {
            Some(tag) => Some(Place::look(client, tag).await?),
            None => None,
        };
        anyhow::Ok((base, steps, context, done, place))
    };
    let (base, steps, context, done, place) = match signals.or(prepared).await {
        Ok(prepared) => prepared?,
        Err(caught) => return Ok(Err(caught)),
    };
    let from = plan::last_tag(&steps[..done]).unwrap_or_else(|| base.clone());
    let tell = |index, cached| tell(order.audience, index, &steps, cached, 0.0);
    let mut told = Vec::new();
    for index in 0..done {
        told.push(tell(index, true)?);
    }
    // Steps that change only settings need no sandbox.
    if plan::last_tag(&steps[done..]).is_some() {
        let run = Run { client, order: &order, steps: &steps, context: context.as_ref(), done };
        match run.rest(&from, signals).await? {
            Ok(rest) => told.extend(rest),
            Err(caught) => return Ok(Err(caught)),
        }
    } else {
        for index in done..steps.len() {
            told.push(tell(index, false)?);
        }
    }
    let last = plan::last_tag(&steps).unwrap_or(base);
    if let Some(place) = place {
        place.fill(client, &last).await?;
    }
    let ms = begun.elapsed().as_secs_f64() * 1e3;
    collect(client, &steps).await;
    Ok(Ok(Built { tag: order.tag.unwrap_or(last), steps: told, ms }))
}

/// The steps that are not there.
struct Run<'a> {
    client: &'a Client,
    order: &'a Order,
    steps: &'a [Planned],
    context: Option<&'a Context>,
    done: usize,
}

impl Run<'_> {
    async fn rest(
        &self,
        from: &str,
        signals: &mut Signals,
    ) -> anyhow::Result<Result<Vec<Done>, Caught>> {
        // Not interrupted: a sandbox that is being started could not be removed.
        let machine = Machine::start(self.client, from, self.order.keeps_failed).await?;
        let mut done = signals.or(self.all(&machine)).await;
        match &mut done {
            Ok(Err(error)) if self.order.keeps_failed => {
                note(&format!("the sandbox of the step that failed is {}", machine.id));
                if let Some(failed) = error.downcast_mut::<StepFailed>() {
                    failed.sandbox = Some(machine.id.clone());
                }
            }
            _ => machine.remove().await?,
        }
        match done {
            Ok(done) => done.map(Ok),
            Err(caught) => Ok(Err(caught)),
        }
    }

    async fn all(&self, machine: &Machine) -> anyhow::Result<Vec<Done>> {
        let mut all = Vec::new();
        let audience = self.order.audience;
        for (index, step) in self.steps.iter().enumerate().skip(self.done) {
            let begun = Instant::now();
            let shown = step.step.shown();
            audience.begins(index, self.steps)?;
            progress::during(&shown, self.one(machine, step)).await.map_err(|source| {
                let (number, line) = (index + 1, step.line);
                StepFailed { number, line, step: shown, sandbox: None, source }
            })?;
            let ms = begun.elapsed().as_secs_f64() * 1e3;
            all.push(tell(audience, index, self.steps, false, ms)?);
        }
        Ok(all)
    }

    async fn one(&self, machine: &Machine, step: &Planned) -> anyhow::Result<()> {
        if !step.step.changes_sandbox() {
            return Ok(());
        }
        step::step(machine, step, self.context).await?;
        let tag = step.key.tag();
        if self.order.is_anew {
            cache::remove(self.client, &tag).await?;
        }
        machine.branch_step(&tag).await
    }
}

fn tell(
    audience: Audience,
    index: usize,
    all: &[Planned],
    cached: bool,
    ms: f64,
) -> anyhow::Result<Done> {
    let step = &all[index];
    let snapshot_tag = step.step.changes_sandbox().then(|| step.key.tag());
    let done = Done { line: step.line, step: step.step.shown(), cached, ms, snapshot_tag };
    audience.is_done(index, all.len(), &done)?;
    Ok(done)
}

/// Keeps the cache within its bounds. The build has succeeded in any case.
async fn collect(client: &Client, steps: &[Planned]) {
    let keep = steps.iter().map(|step| step.key.tag()).collect();
    if let Err(error) = cache::prune(client, Bounds::USUAL, &keep).await {
        note(&format!("old steps could not be removed: {error}"));
    }
}
