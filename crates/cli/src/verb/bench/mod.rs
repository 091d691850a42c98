//! `forkd bench`: measure this machine.

mod branch;
mod daemon;
mod fork;
mod host;
mod result;
mod row;
mod statistics;
mod summary;

use clap::Subcommand;

use crate::options::Global;

/// Measure forkd on this machine
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    forkd bench branch --iterations 20\n  \
    forkd bench fork -n 10")]
pub(crate) struct Options {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Branch(branch::Options),
    Fork(fork::Options),
}

pub(crate) async fn run(global: &Global, options: Options) -> anyhow::Result<()> {
    match options.what {
        What::Branch(options) => branch::run(global, options).await,
        What::Fork(options) => fork::run(global, options).await,
    }
}
