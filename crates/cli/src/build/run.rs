//! A whole build: what is done already, the rest step by step, and the tag at the end.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Context as _;
use forkd_client::{Client, ClientError, Dependents};
use forkd_recipe::{Key, Recipe};
use serde::Serialize;

use super::context::Context;
use super::machine::Machine;
use super::plan::{self, Planned};
use super::{Bounds, base, cache, step};
use crate::console::output::milliseconds;
use crate::console::progress;
use crate::console::report::{Hinted, note, remark};
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
}

/// What was done.
#[derive(Debug, Serialize)]
pub(crate) struct Built {
    /// The snapshot to start from.
    pub(crate) tag: String,
    /// All steps, in order.
    pub(crate) steps: Vec<Done>,
    /// From the request to the snapshot, in milliseconds.
    pub(crate) ms: f64,
}

/// What became of a step.
#[derive(Debug, Serialize)]
pub(crate) struct Done {
    /// Where it is written.
    line: usize,
    /// The step in one line.
    step: String,
    /// Whether it was there.
    cached: bool,
    /// How long it took, with its branch.
    ms: f64,
    /// The snapshot after it; none for a step that changes only what later ones are run with.
    snapshot_tag: Option<String>,
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
        anyhow::Ok((base, steps, context, done))
    };
    let (base, steps, context, done) = match signals.or(prepared).await {
        Ok(prepared) => prepared?,
        Err(caught) => return Ok(Err(caught)),
    };
    let from = plan::last_tag(&steps[..done]).unwrap_or_else(|| base.clone());
    let mut told = Vec::new();
    for (index, step) in steps[..done].iter().enumerate() {
        told.push(tell(index, &steps, step, true, 0.0));
    }
    // Steps that change only settings need no sandbox.
    if plan::last_tag(&steps[done..]).is_some() {
        let run = Run { client, order: &order, steps: &steps, context: context.as_ref(), done };
        match run.rest(&from, signals).await? {
            Ok(rest) => told.extend(rest),
            Err(caught) => return Ok(Err(caught)),
        }
    } else {
        for (index, step) in steps.iter().enumerate().skip(done) {
            told.push(tell(index, &steps, step, false, 0.0));
        }
    }
    let last = plan::last_tag(&steps).unwrap_or(base);
    if let Some(tag) = &order.tag {
        name(client, &last, tag).await?;
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
        let done = signals.or(self.all(&machine)).await;
        let has_failed = matches!(done, Ok(Err(_)));
        if has_failed && self.order.keeps_failed {
            note(&format!("the sandbox of the step that failed is {}", machine.id));
        } else {
            machine.remove().await?;
        }
        match done {
            Ok(done) => done.map(Ok),
            Err(caught) => Ok(Err(caught)),
        }
    }

    async fn all(&self, machine: &Machine) -> anyhow::Result<Vec<Done>> {
        let mut all = Vec::new();
        for (index, step) in self.steps.iter().enumerate().skip(self.done) {
            let begun = Instant::now();
            let shown = step.step.shown();
            progress::during(&shown, self.one(machine, step))
                .await
                .with_context(|| format!("line {}: {shown}", step.line))?;
            let ms = begun.elapsed().as_secs_f64() * 1e3;
            all.push(tell(index, self.steps, step, false, ms));
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

fn tell(index: usize, all: &[Planned], step: &Planned, cached: bool, ms: f64) -> Done {
    let shown = step.step.shown();
    let how = match (cached, step.step.changes_sandbox()) {
        (true, _) => "cached".to_owned(),
        (false, true) => milliseconds(ms),
        (false, false) => "set".to_owned(),
    };
    let text = format!("{}/{} {shown}: {how}", index + 1, all.len());
    remark(&crate::console::report::printable_line(&text));
    let snapshot_tag = step.step.changes_sandbox().then(|| step.key.tag());
    Done { line: step.line, step: shown, cached, ms, snapshot_tag }
}

/// Gives the state after the last step its tag: a branch of a child, so that the snapshot builds on
/// the step, which therefore stays in the cache. The result of an earlier build makes room.
async fn name(client: &Client, last: &str, tag: &str) -> anyhow::Result<()> {
    let parent = match client.snapshot_info(tag).await {
        Ok(info) => Some(info.snapshot.parent_tag),
        Err(ClientError::Api(failure)) if failure.code == "snapshot_not_found" => None,
        Err(error) => return Err(error.into()),
    };
    match parent {
        Some(Some(parent)) if parent == last => return Ok(()),
        Some(parent) if !parent.as_deref().is_some_and(Key::is_tag) => {
            let message = format!("the tag `{tag}` is taken by a snapshot that no build has made");
            let hint = format!("choose another, or remove it: forkd snapshot rm {tag}");
            return Err(Hinted::new(message, hint).into());
        }
        _ => {}
    }
    let machine = Machine::start(client, last, false).await?;
    let named = async {
        if parent.is_some() {
            client.delete_snapshot(tag, Dependents::Keep).await?;
        }
        machine.branch(tag).await
    };
    let named = named.await;
    machine.remove().await?;
    Ok(named?)
}

/// Keeps the cache within its bounds. The build has succeeded in any case.
async fn collect(client: &Client, steps: &[Planned]) {
    let keep = steps.iter().map(|step| step.key.tag()).collect();
    if let Err(error) = cache::prune(client, Bounds::USUAL, &keep).await {
        note(&format!("old steps could not be removed: {error}"));
    }
}
