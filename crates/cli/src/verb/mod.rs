//! The verbs, one file or folder each: its options and what it does with them.

pub(crate) mod bench;
pub(crate) mod branch;
pub(crate) mod completions;
pub(crate) mod cp;
pub(crate) mod doctor;
mod each;
pub(crate) mod eval;
pub(crate) mod events;
pub(crate) mod exec;
pub(crate) mod file;
pub(crate) mod fork;
pub(crate) mod images;
pub(crate) mod info;
pub(crate) mod logs;
pub(crate) mod ls;
pub(crate) mod mcp;
pub(crate) mod metrics;
pub(crate) mod operation;
pub(crate) mod operations;
pub(crate) mod pause;
pub(crate) mod ping;
pub(crate) mod process;
pub(crate) mod processes;
pub(crate) mod resume;
pub(crate) mod rm;
pub(crate) mod rollback;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod shell;
pub(crate) mod snapshot;
pub(crate) mod snapshots;
pub(crate) mod stop;
pub(crate) mod template;
pub(crate) mod top;
pub(crate) mod tree;
pub(crate) mod version;

use std::process::ExitCode;

use crate::args::{Cli, Verb};
use crate::exit::Exit;

/// Does what the command line asks for and gives the exit code.
pub(crate) async fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    let global = cli.global;
    match cli.verb {
        Verb::Run(options) => run::run(&global, options).await,
        Verb::Shell(options) => shell::run(&global, options).await,
        Verb::File(options) => file::run(&global, options).await,
        Verb::Processes(options) => processes::run(&global, options).await.map(done),
        Verb::Process(options) => process::run(&global, options).await,
        Verb::Rollback(options) => rollback::run(&global, options).await.map(done),
        Verb::Pause(options) => pause::run(&global, options).await,
        Verb::Resume(options) => resume::run(&global, options).await,
        Verb::Tree(options) => tree::run(&global, options).await.map(done),
        Verb::Top(options) => top::run(&global, options).await,
        Verb::Info(options) => info::run(&global, options).await.map(done),
        Verb::Ping(options) => ping::run(&global, options).await.map(done),
        Verb::Metrics(options) => metrics::run(&global, options).await.map(done),
        Verb::Version(_) => version::run(&global).await.map(done),
        Verb::Completions(options) => completions::run(&options).map(done),
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
