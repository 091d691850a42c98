//! `forkd shell`: a program of a sandbox on this terminal.

use std::process::ExitCode;

use forkd_api::CreateProcess;

use crate::attach::{Input, Joined, Sink};
use crate::console::report::Hinted;
use crate::console::signals::Signals;
use crate::console::terminal;
use crate::daemon::connect;
use crate::options::Global;
use crate::options::program::{self, Program};

/// Open a shell in a sandbox, on this terminal
///
/// All keys go to the program in the sandbox until it ends, and it follows the size of the window.
/// If it no longer answers, type `~.` at the start of a line to leave; that ends the program.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    forkd shell sb-0123456789ab\n  \
    forkd shell sb-0123456789ab -- python3\n  \
    forkd shell sb-0123456789ab --cwd /srv --env EDITOR=vi")]
pub(crate) struct Options {
    /// The sandbox
    sandbox: String,
    #[command(flatten)]
    program: Program,
    /// Run this program with its arguments, not bash or sh
    #[arg(last = true, value_name = "ARGS")]
    args: Vec<String>,
}

pub(crate) async fn run(global: &Global, options: Options) -> anyhow::Result<ExitCode> {
    if !terminal::is_interactive() {
        return Err(Hinted::usage(
            "standard input and output must be a terminal",
            "run a single program with `forkd exec SANDBOX -- PROGRAM`",
        )
        .into());
    }
    let body = options.program.request(program::or_shell(options.args));
    let body = CreateProcess { tty: Some(terminal::size()), hold_output: true, ..body };
    let client = connect::client(global).await?;
    let mut signals = Signals::catch()?;
    let process = client.create_process(&options.sandbox, &body).await?.id;
    let mut joined = Joined {
        client: client.clone(),
        sandbox: options.sandbox,
        process,
        from: Some(0),
        input: Input::Keys,
        sink: Sink::Streams,
    };
    let end = joined.follow(&mut signals).await;
    // However it ended: what was ours is not left behind. It is gone already with its sandbox.
    client.delete_process(&joined.sandbox, &joined.process).await.ok();
    end?.exit_code(body.timeout_secs)
}
