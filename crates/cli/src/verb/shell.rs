//! `forkd shell`: a program of a sandbox on this terminal.

use std::process::ExitCode;

use forkd_api::CreateProcess;

use crate::args::Global;
use crate::attach::{Input, Joined, Sink};
use crate::program::{self, Program};
use crate::report::Hinted;
use crate::signals::Signals;
use crate::{connect, terminal};

/// Open a shell in a sandbox, on this terminal
///
/// The terminal belongs to the program in the sandbox until it ends: all keys go there, and it is
/// told when the window changes its size. `~.` at the beginning of a line leaves and ends the
/// program, for when it does not answer any more. Ends with the program's exit code.
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
    /// Another program, with its arguments; bash or sh by default
    #[arg(last = true, value_name = "ARGS")]
    args: Vec<String>,
}

pub(crate) async fn run(global: &Global, options: Options) -> anyhow::Result<ExitCode> {
    if !terminal::is_interactive() {
        return Err(Hinted::usage(
            "a shell needs a terminal for its input and its output",
            "run a single command with `forkd exec SANDBOX -- CMD`",
        )
        .into());
    }
    let body = options.program.request(program::or_shell(options.args))?;
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
