//! `forkd process attach`: a process joined to our standard streams.

use std::process::ExitCode;

use forkd_client::Client;

use super::Which;
use crate::attach::{End, Input, Joined, Sink};
use crate::exit::Exit;
use crate::report::Hinted;
use crate::signals::Signals;
use crate::{report, terminal};

/// Join a process to our standard input and output until it ends, with its exit code
///
/// It begins with what is kept of the output. Interrupting this command leaves the process running,
/// and so does `~.` at the beginning of a line when the process has a terminal (--tty).
#[derive(Debug, clap::Args)]
pub(super) struct Options {
    #[command(flatten)]
    which: Which,
    /// Join it to this terminal: all keys go there, and it is told the size of the window
    #[arg(short, long)]
    tty: bool,
    /// Only follow the output
    #[arg(long, conflicts_with = "tty")]
    no_stdin: bool,
}

pub(super) async fn run(client: &Client, options: Options) -> anyhow::Result<ExitCode> {
    if options.tty && !terminal::is_interactive() {
        let hint = "leave out --tty, or run this command on a terminal";
        return Err(Hinted::usage("--tty needs a terminal here", hint).into());
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
            report::remark(&format!("{} runs on", joined.process));
            Ok(Exit::Ok.into())
        }
        end => end.exit_code(None),
    }
}
