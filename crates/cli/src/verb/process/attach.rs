//! `forkd process attach`: a process joined to our standard streams.

use std::process::ExitCode;

use forkd_client::Client;

use super::which::Which;
use crate::attach::{End, Input, Joined, Sink};
use crate::console::report::Hinted;
use crate::console::signals::Signals;
use crate::console::{report, terminal};
use crate::exit::Exit;

/// Connect to the input and output of a process
///
/// Starts with the output that is kept, and ends with the process. If you interrupt this command,
/// the process keeps running; with --tty, type `~.` at the start of a line to leave it running.
#[derive(Debug, clap::Args)]
pub(super) struct Options {
    #[command(flatten)]
    which: Which,
    /// Give it this terminal: all keys go there, and it follows the size of the window
    #[arg(short, long)]
    tty: bool,
    /// Send no input
    #[arg(long, conflicts_with = "tty")]
    no_stdin: bool,
}

pub(super) async fn run(client: &Client, options: Options) -> anyhow::Result<ExitCode> {
    if options.tty && !terminal::is_interactive() {
        let hint = "leave out --tty, or run this command on a terminal";
        return Err(Hinted::usage("standard input and output must be a terminal", hint).into());
    }
    let Which { sandbox, process } = options.which;
    let input = match (options.tty, options.no_stdin) {
        (true, _) => Input::Keys,
        (false, false) => Input::Stream,
        (false, true) => Input::None,
    };
    let mut signals = Signals::catch()?;
    let client = client.clone();
    let mut joined = Joined { client, sandbox, process, from: None, input, sink: Sink::Streams };
    match joined.follow(&mut signals).await? {
        End::Left => {
            report::remark(&format!("{} keeps running", joined.process));
            Ok(Exit::Ok.into())
        }
        end => end.exit_code(None),
    }
}
