//! `forkd processes`: the background processes of a sandbox.

use crate::console::output::{self, Align, Table, or_dash};
use crate::console::report;
use crate::daemon::connect;
use crate::options::Global;

/// List the background processes of a sandbox
///
/// Shows the processes that run and the last ones that ended. These are the ones that you start
/// with `forkd process start` or another client; `forkd exec SANDBOX -- ps` shows all programs of
/// the guest.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    forkd processes sb-0123456789ab\n  \
    forkd ps sb-0123456789ab -q")]
pub(crate) struct Options {
    /// The sandbox
    sandbox: String,
}

pub(crate) async fn run(global: &Global, options: Options) -> anyhow::Result<()> {
    let processes = connect::client(global).await?.processes(&options.sandbox).await?;
    if global.json {
        return output::json(&processes);
    }
    let mut table = Table::new(&[
        ("PROCESS", Align::Left),
        ("PID", Align::Right),
        ("STATE", Align::Left),
        ("EXIT", Align::Right),
        ("OUTPUT", Align::Right),
        ("AGE", Align::Right),
        ("COMMAND", Align::Left),
    ]);
    for process in processes {
        table.row([
            process.id,
            process.pid.to_string(),
            process.state,
            or_dash(process.exit_code.map(|code| code.to_string())),
            output::size(process.output_to),
            output::age(process.created_at_unix),
            report::printable_line(&shell_words::join(&process.args)),
        ]);
    }
    table.print("no background processes; start one with `forkd process start SANDBOX -- CMD`")
}
