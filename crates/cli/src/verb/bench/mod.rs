//! `forkd bench`: measure this machine.

mod branch;
mod daemon;
mod guest;
mod measure;
mod options;
mod row;
mod statistics;
mod summary;

use clap::Subcommand;

use crate::options::Global;

/// Measure forkd on this machine
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  forkd bench branch --iterations 20")]
pub(crate) struct Options {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Branch(options::Options),
}

pub(crate) async fn run(global: &Global, options: Options) -> anyhow::Result<()> {
    let What::Branch(options) = options.what;
    branch::run(global, options).await
}
