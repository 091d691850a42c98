//! `forkd process`: one background process of a sandbox.

mod attach;
mod logs;
mod which;

use std::io::Read as _;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Subcommand;
use forkd_api::{CreateProcess, Process, SignalName, TtySize};
use forkd_client::{Client, InputEnd};
use forkd_types::limit;
use serde_json::json;

use crate::console::output::{self, or_dash};
use crate::console::report;
use crate::daemon::connect;
use crate::exit::{self, Exit};
use crate::options::Global;
use crate::options::program::Program;
use which::Which;

/// Largest piece of input that is sent at once.
const INPUT_PIECE_BYTES: usize = 1 << 20;

/// Start and control background processes in a sandbox
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    P=$(forkd process start sb-0123456789ab --stdin -- sh -c 'read name; echo hello $name')\n  \
    forkd process input sb-0123456789ab $P 'world'\n  \
    forkd process logs sb-0123456789ab $P --follow\n  \
    forkd process attach sb-0123456789ab $P\n  \
    forkd process info sb-0123456789ab $P\n  \
    forkd process resize sb-0123456789ab $P --rows 50 --cols 132\n  \
    forkd process kill sb-0123456789ab $P INT\n  \
    forkd process wait sb-0123456789ab $P\n  \
    forkd process rm sb-0123456789ab $P")]
pub(crate) struct Options {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Start(Start),
    /// Show details of a process
    Info(Which),
    Logs(logs::Options),
    Attach(attach::Options),
    /// Wait for a process to end
    Wait(Which),
    Input(Input),
    /// Send a signal to a process and its process group
    #[command(visible_alias = "signal")]
    Kill {
        #[command(flatten)]
        which: Which,
        /// A name such as INT, or a number from 1 to 31
        #[arg(default_value = "TERM")]
        signal: String,
    },
    /// Change the size of the terminal of a process
    Resize {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        size: Size,
    },
    /// Remove a process; kills it if it runs
    Rm(Which),
}

/// Start a program in the background
///
/// It keeps running when this command has ended. Prints its id.
#[derive(Debug, clap::Args)]
struct Start {
    /// The sandbox
    sandbox: String,
    #[command(flatten)]
    program: Program,
    /// Keep its input open for `forkd process input`
    #[arg(long)]
    stdin: bool,
    /// Give it a terminal of 24 lines and 80 columns; see `resize` and `attach`
    #[arg(long)]
    tty: bool,
    /// The program and its arguments; no shell interprets them
    #[arg(last = true, required = true, value_name = "ARGS")]
    args: Vec<String>,
}

/// Send input to a process
#[derive(Debug, clap::Args)]
struct Input {
    #[command(flatten)]
    which: Which,
    /// A line of input; without it, all of standard input
    text: Option<String>,
    /// Do not add a newline to the text
    #[arg(long, requires = "text")]
    no_newline: bool,
    /// End the input after this
    #[arg(long)]
    eof: bool,
}

/// How much a terminal shows.
#[derive(Debug, clap::Args)]
struct Size {
    /// Lines
    #[arg(long, value_name = "N")]
    rows: u16,
    /// Characters of a line
    #[arg(long, value_name = "N")]
    cols: u16,
}

pub(crate) async fn run(global: &Global, options: Options) -> anyhow::Result<ExitCode> {
    let client = connect::client(global).await?;
    match options.what {
        What::Start(start) => begin(global, &client, start).await?,
        What::Info(Which { sandbox, process }) => {
            show(global, client.process(&sandbox, &process).await?)?;
        }
        What::Logs(options) => return logs::run(global, &client, options).await,
        What::Attach(options) => return attach::run(&client, options).await,
        What::Wait(which) => return wait(global, &client, which).await,
        What::Input(input) => feed(&client, input).await?,
        What::Kill { which: Which { sandbox, process }, signal } => {
            client.signal_process(&sandbox, &process, named(&signal)).await?;
            done(global, "signalled", process)?;
        }
        What::Resize { which: Which { sandbox, process }, size: Size { rows, cols } } => {
            client.resize_process(&sandbox, &process, TtySize { rows, cols }).await?;
        }
        What::Rm(Which { sandbox, process }) => {
            client.delete_process(&sandbox, &process).await?;
            done(global, "removed", process)?;
        }
    }
    Ok(Exit::Ok.into())
}

/// A signal as a person names it.
fn named(signal: &str) -> SignalName {
    match signal.parse() {
        Ok(number) => SignalName::Number(number),
        Err(_) => SignalName::Name(signal.to_uppercase()),
    }
}

fn done(global: &Global, what: &str, process: String) -> anyhow::Result<()> {
    if global.json {
        return output::json(&json!({ what: [process] }));
    }
    output::line(&process)
}

async fn begin(global: &Global, client: &Client, start: Start) -> anyhow::Result<()> {
    let body = CreateProcess {
        stdin: start.stdin,
        tty: start.tty.then_some(TtySize { rows: 24, cols: 80 }),
        ..start.program.request(start.args)
    };
    let process = client.create_process(&start.sandbox, &body).await?;
    if global.json {
        return output::json(&process);
    }
    output::line(&process.id)
}

fn show(global: &Global, process: Process) -> anyhow::Result<()> {
    if global.json {
        return output::json(&process);
    }
    let kept = format!("{} to {}", process.output_from, process.output_to);
    let mut facts = vec![
        ("process", process.id),
        ("pid", process.pid.to_string()),
        ("state", process.state),
        ("exit code", or_dash(process.exit_code.map(|code| code.to_string()))),
        ("command", report::printable_line(&shell_words::join(&process.args))),
        ("age", output::age(process.created_at_unix)),
        ("output kept", kept),
    ];
    let more = [
        ("signal", process.signal.map(|signal| signal.to_string())),
        ("timed out", process.timed_out.then(|| "yes".to_owned())),
        ("error", process.error),
    ];
    facts.extend(more.into_iter().filter_map(|(name, value)| Some((name, value?))));
    output::facts(&facts)
}

async fn wait(global: &Global, client: &Client, which: Which) -> anyhow::Result<ExitCode> {
    let ended = loop {
        let process = client
            .wait_process(&which.sandbox, &which.process, limit::PROCESS_WAIT_MAX.as_secs())
            .await?;
        if process.state != "running" {
            break process;
        }
    };
    let (timed_out, code) = (ended.timed_out, ended.exit_code);
    if global.json {
        output::json(&ended)?;
    } else if let Some(error) = &ended.error {
        report::note(&format!("error: {}", report::printable(error)));
    }
    Ok(match code {
        _ if timed_out => Exit::TimedOut.into(),
        Some(code) => exit::of_program(code),
        None => Exit::Failed.into(),
    })
}

async fn feed(client: &Client, input: Input) -> anyhow::Result<()> {
    let Which { sandbox, process } = input.which;
    let mut bytes = Vec::new();
    match input.text {
        Some(text) => {
            bytes.extend(text.into_bytes());
            if !input.no_newline {
                bytes.push(b'\n');
            }
        }
        None => {
            std::io::stdin().read_to_end(&mut bytes).context("read standard input")?;
        }
    }
    for piece in bytes.chunks(INPUT_PIECE_BYTES) {
        client.send_stdin(&sandbox, &process, piece.to_vec(), InputEnd::Open).await?;
    }
    if input.eof {
        client.send_stdin(&sandbox, &process, Vec::new(), InputEnd::Eof).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_a_number_or_a_name_in_any_case() {
        assert_eq!(named("9"), SignalName::Number(9));
        assert_eq!(named("sigint"), SignalName::Name("SIGINT".to_owned()));
    }
}
