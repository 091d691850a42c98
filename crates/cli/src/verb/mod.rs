//! The verbs, one file or folder each: its options and what it does with them.
//!
//! A verb has `Options`, and `run(global, options)`, which gives `()` or an exit code. It is named
//! here and nowhere else: once as a module, once in the list, whose order is that of the help.

mod bench;
mod branch;
mod build;
mod completions;
mod cp;
mod doctor;
mod e2b;
mod each;
mod eval;
mod events;
mod exec;
mod file;
mod fork;
mod hub;
mod images;
mod info;
mod key;
mod logs;
mod ls;
mod mcp;
mod metrics;
mod netd;
mod network;
mod operation;
mod operations;
mod pause;
mod ping;
mod port;
mod ports;
mod process;
mod processes;
mod pull;
mod push;
mod resume;
mod rm;
mod rollback;
mod run;
mod secret;
mod serve;
mod shell;
mod snapshot;
mod snapshots;
mod stop;
mod template;
mod top;
mod tree;
mod version;

use std::process::{ExitCode, Termination as _};

use clap::Subcommand;

use crate::options::Global;

macro_rules! verbs {
    ($($(#[$attribute:meta])* $verb:ident($module:ident),)*) => {
        /// What to do.
        #[derive(Debug, Subcommand)]
        #[expect(clippy::large_enum_variant, reason = "there is one, for as long as the program")]
        pub(crate) enum Verb {
            $($(#[$attribute])* $verb($module::Options),)*
            Completions(completions::Options),
        }

        impl Verb {
            /// Does it and gives the exit code. Completions are about the whole grammar.
            pub(crate) async fn run(
                self,
                global: &Global,
                grammar: fn() -> clap::Command,
            ) -> anyhow::Result<ExitCode> {
                match self {
                    $(Self::$verb(options) => {
                        $module::run(global, options).await.map(|done| done.report())
                    })*
                    Self::Completions(options) => {
                        completions::run(&options, grammar()).map(|done| done.report())
                    }
                }
            }
        }
    };
}

verbs! {
    Run(run),
    Shell(shell),
    Exec(exec),
    Eval(eval),
    Cp(cp),
    File(file),
    #[command(visible_alias = "ps")]
    Processes(processes),
    Process(process),
    Fork(fork),
    Branch(branch),
    Rollback(rollback),
    Pause(pause),
    Resume(resume),
    Rm(rm),
    Ls(ls),
    Tree(tree),
    Top(top),
    Info(info),
    Ping(ping),
    Logs(logs),
    Network(network),
    Ports(ports),
    Port(port),
    Secret(secret),
    Images(images),
    Template(template),
    Build(build),
    Snapshots(snapshots),
    Snapshot(snapshot),
    Push(push),
    Pull(pull),
    Hub(hub),
    Key(key),
    Operations(operations),
    Operation(operation),
    Events(events),
    Metrics(metrics),
    Mcp(mcp),
    #[command(name = "e2b")]
    E2b(e2b),
    Serve(serve),
    #[command(hide = true)]
    Netd(netd),
    Stop(stop),
    Doctor(doctor),
    Bench(bench),
    Version(version),
}
