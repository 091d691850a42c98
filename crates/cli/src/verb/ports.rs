//! `forkd ports`: what listens in a sandbox.

use crate::console::output::{self, Align, Table, or_dash};
use crate::console::report;
use crate::daemon::connect;
use crate::options::Global;

/// List the TCP ports that programs in a sandbox listen on
///
/// Shows servers that are bound to a loopback address too; `forkd port` reaches them as well.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  forkd ports sb-0123456789ab")]
pub(crate) struct Options {
    /// The sandbox
    sandbox: String,
}

pub(crate) async fn run(global: &Global, options: Options) -> anyhow::Result<()> {
    let ports = connect::client(global).await?.ports(&options.sandbox).await?;
    if global.json {
        return output::json(&ports);
    }
    let mut table = Table::new(&[
        ("PORT", Align::Right),
        ("ADDRESS", Align::Left),
        ("PID", Align::Right),
        ("PROGRAM", Align::Left),
    ]);
    for port in ports {
        table.row([
            port.port.to_string(),
            report::printable_line(&port.address),
            or_dash(port.pid.map(|pid| pid.to_string())),
            or_dash(port.program.map(|name| report::printable_line(&name))),
        ]);
    }
    table.print("nothing listens on a TCP port")
}
