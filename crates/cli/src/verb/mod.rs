//! The verbs, one file or folder each: its options and what it does with them.

pub(crate) mod bench;
pub(crate) mod branch;
pub(crate) mod cp;
pub(crate) mod doctor;
pub(crate) mod eval;
pub(crate) mod events;
pub(crate) mod exec;
pub(crate) mod fork;
pub(crate) mod images;
pub(crate) mod logs;
pub(crate) mod ls;
pub(crate) mod mcp;
pub(crate) mod operation;
pub(crate) mod operations;
pub(crate) mod rm;
pub(crate) mod serve;
pub(crate) mod snapshot;
pub(crate) mod snapshots;
pub(crate) mod stop;
pub(crate) mod template;

use std::process::ExitCode;

use crate::args::{Cli, Verb};
use crate::exit::Exit;

/// Does what the command line asks for and gives the exit code.
pub(crate) async fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    let global = cli.global;
    match cli.verb {
        Verb::Serve(options) => serve::run(&global, options).await.map(done),
        Verb::Template(options) => template::run(&global, options).await.map(done),
        Verb::Images(_) => images::run(&global).await.map(done),
        Verb::Snapshots(_) => snapshots::run(&global).await.map(done),
        Verb::Snapshot(options) => snapshot::run(&global, options).await.map(done),
        Verb::Ls(options) => ls::run(&global, options).await.map(done),
        Verb::Fork(options) => fork::run(&global, options).await.map(done),
        Verb::Branch(options) => branch::run(&global, options).await,
        Verb::Exec(options) => exec::run(&global, options).await,
        Verb::Eval(options) => eval::run(&global, options).await,
        Verb::Cp(options) => cp::run(&global, options).await.map(done),
        Verb::Rm(options) => rm::run(&global, options).await,
        Verb::Logs(options) => logs::run(&global, options).await.map(done),
        Verb::Mcp(_) => mcp::run(&global).await.map(done),
        Verb::Operations(options) => operations::run(&global, options).await.map(done),
        Verb::Operation(options) => operation::run(&global, options).await,
        Verb::Events(options) => events::run(&global, options).await.map(done),
        Verb::Doctor(options) => doctor::run(&global, options).await,
        Verb::Bench(options) => bench::run(&global, options).await.map(done),
        Verb::Stop(options) => stop::run(&global, options).await.map(done),
    }
}

fn done((): ()) -> ExitCode {
    Exit::Ok.into()
}
