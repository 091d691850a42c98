//! `forkd build`: a template from a recipe.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use forkd_recipe::StartFrom;
use forkd_types::{ByteCount, TagName};
use serde_json::json;

use crate::build::{self, Audience, Bounds, Order, Source};
use crate::console::output;
use crate::console::signals::Signals;
use crate::daemon::connect;
use crate::options::{Global, key_value};

/// Options that mean nothing where nothing is built.
const OF_BUILDS: [&str; 8] =
    ["file", "tag", "from", "build_arg", "start_cmd", "no_cache", "keep", "events"];

/// Build a snapshot from a forkd.toml or a Dockerfile
///
/// Each step that changes the sandbox is branched live. A later build goes on from the last step
/// that has not changed, with its memory and its processes.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    forkd build -t app\n  \
    forkd build -f Dockerfile --build-arg VERSION=3 -t app ./app\n  \
    forkd build --prune --max-age 1d")]
pub(crate) struct Options {
    /// The directory that files are copied from
    #[arg(default_value = ".")]
    context: PathBuf,
    /// The recipe: a .toml file, or a Dockerfile; - for a forkd.toml on standard input; by default
    /// forkd.toml or Dockerfile in CONTEXT
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Tag of the result; that of an earlier build is replaced
    #[arg(short, long)]
    tag: Option<TagName>,
    /// Begin with this snapshot or image in place of the recipe's
    #[arg(long, value_name = "NAME")]
    from: Option<String>,
    /// Set an ARG of a Dockerfile; can be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = key_value)]
    build_arg: Vec<(String, String)>,
    /// Start a Dockerfile's ENTRYPOINT and CMD as the last step
    #[arg(long)]
    start_cmd: bool,
    /// Run all steps, also those in the cache
    #[arg(long)]
    no_cache: bool,
    /// Leave the sandbox of a step that fails
    #[arg(long)]
    keep: bool,
    /// Print what happens while it does: each line is a JSON object with one event, and the last
    /// one has the result or the failure
    #[arg(long, conflicts_with = "json")]
    events: bool,
    /// Build nothing: remove steps that are old, or too many, and that nothing builds on
    #[arg(long, conflicts_with_all = OF_BUILDS)]
    prune: bool,
    /// Remove steps that are older, such as 12h
    #[arg(long, value_name = "TIME", default_value = "7d", requires = "prune")]
    max_age: humantime::Duration,
    /// Keep so many MiB of steps at most
    #[arg(long, value_name = "N", default_value_t = 20 << 10, requires = "prune")]
    max_size_mib: u64,
}

pub(crate) async fn run(global: &Global, options: Options) -> anyhow::Result<ExitCode> {
    if options.prune {
        return prune(global, &options).await;
    }
    if !options.events {
        return build(global, options).await;
    }
    let built = build(global, options).await;
    if let Err(error) = &built {
        // Nobody is left to tell when standard output is closed.
        build::print_failed(error).ok();
    }
    built
}

async fn build(global: &Global, options: Options) -> anyhow::Result<ExitCode> {
    let start = if options.start_cmd { StartFrom::Command } else { StartFrom::Nothing };
    let source = Source {
        context: options.context,
        file: options.file,
        from: options.from,
        arguments: options.build_arg.into_iter().collect(),
        start,
    };
    let recipe = build::read(&source)?;
    let order = Order {
        recipe,
        context: source.context,
        tag: options.tag.map(|tag| tag.to_string()),
        is_anew: options.no_cache,
        keeps_failed: options.keep,
        audience: if options.events { Audience::Program } else { Audience::People },
    };
    let client = connect::client(global).await?;
    let mut signals = Signals::catch().context("catch signals")?;
    match build::build(&client, order, &mut signals).await? {
        Err(caught) => return Ok(caught.exit()),
        Ok(built) if options.events => build::print_built(&built)?,
        Ok(built) if global.json => output::json(&built)?,
        Ok(built) => output::line(&built.tag)?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn prune(global: &Global, options: &Options) -> anyhow::Result<ExitCode> {
    let client = connect::client(global).await?;
    let size = ByteCount::from_mib(options.max_size_mib);
    let bounds = Bounds { age: options.max_age.into(), size };
    let gone = build::prune(&client, bounds, &BTreeSet::new()).await?;
    match global.json {
        true => output::json(&json!({ "removed": gone }))?,
        false => gone.iter().try_for_each(|tag| output::line(tag))?,
    }
    Ok(ExitCode::SUCCESS)
}
