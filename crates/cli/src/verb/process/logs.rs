//! `forkd process logs`: what a process has written.

use std::process::ExitCode;

use forkd_api::OutputEvent;
use forkd_client::Client;

use super::which::Which;
use crate::attach;
use crate::console::output::{self, Reader};
use crate::console::report;
use crate::exit::Exit;
use crate::options::Global;

/// Print the output of a process; forkd keeps the last 1 MiB
///
/// Standard output and standard error stay apart. With --json each line is an object with one
/// event.
#[derive(Debug, clap::Args)]
pub(super) struct Options {
    #[command(flatten)]
    which: Which,
    /// Follow the output until the process ends
    #[arg(short, long)]
    follow: bool,
    /// Start at this byte of the output; without it, at the oldest that is kept
    #[arg(long, value_name = "OFFSET")]
    from: Option<u64>,
}

pub(super) async fn run(
    global: &Global,
    client: &Client,
    options: Options,
) -> anyhow::Result<ExitCode> {
    let Which { sandbox, process } = &options.which;
    let view = client.process(sandbox, process).await?;
    let from = options.from.unwrap_or(view.output_from);
    // Past it nothing is there yet.
    let until = if options.follow { u64::MAX } else { view.output_to };
    if from >= until {
        return Ok(Exit::Ok.into());
    }
    let mut stream = client.process_output(sandbox, process, Some(from)).await?;
    while let Some(event) = stream.next().await? {
        if let OutputEvent::Gone { reason } = &event {
            return Err(attach::gone(reason));
        }
        let shown = if global.json {
            output::flowing(format!("{}\n", serde_json::to_string(&event)?).as_bytes())?
        } else {
            show(&event)?
        };
        let over = matches!(event, OutputEvent::Exit(_)) || stream.offset() >= until;
        if over || shown == Reader::Gone {
            break;
        }
    }
    Ok(Exit::Ok.into())
}

fn show(event: &OutputEvent) -> anyhow::Result<Reader> {
    match event {
        OutputEvent::Stdout(data) => return output::flowing(&data.bytes().unwrap_or_default()),
        OutputEvent::Stderr(data) => output::guest_streams(&[], &data.bytes().unwrap_or_default())?,
        OutputEvent::Lost { bytes } => {
            report::note(&format!("{bytes} bytes of output are lost; forkd keeps the last 1 MiB"));
        }
        OutputEvent::Exit(_) | OutputEvent::Gone { .. } => {}
    }
    Ok(Reader::There)
}
