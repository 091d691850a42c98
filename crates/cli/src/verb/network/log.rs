//! `forkd network log`: what a sandbox has reached, and what it was refused.

use std::time::{Duration, UNIX_EPOCH};

use forkd_api::NetworkLogEntry;
use forkd_types::FlowOutcome;

use crate::console::output::{self, Reader};
use crate::console::report;
use crate::daemon::connect;
use crate::options::Global;

/// Between two looks at a log that is followed.
const LOOK: Duration = Duration::from_millis(500);

#[derive(Debug, clap::Args)]
pub(super) struct Options {
    /// The sandbox
    sandbox: String,
    /// Go on with what comes, until the sandbox is removed
    #[arg(long, short)]
    follow: bool,
    /// Only what was refused
    #[arg(long)]
    refused: bool,
    /// At most this many of the newest entries to begin with
    #[arg(long, value_name = "N", default_value_t = 1000)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    last: u32,
}

pub(super) async fn run(global: &Global, options: Options) -> anyhow::Result<()> {
    let client = connect::client(global).await?;
    let (mut after, mut limit) = (None, Some(options.last));
    loop {
        let log = client.network_log(&options.sandbox, after, limit).await?;
        if after.is_some() && log.missing > 0 {
            report::note(&format!("{} entries are lost; forkd keeps the last MiB", log.missing));
        }
        for entry in &log.entries {
            if options.refused && entry.outcome != FlowOutcome::Refused {
                continue;
            }
            let line = if global.json {
                serde_json::to_string(entry)?
            } else {
                report::printable_line(&line(entry))
            };
            if output::flowing(format!("{line}\n").as_bytes())? == Reader::Gone {
                return Ok(());
            }
        }
        let last = log.entries.last().map(|entry| entry.number);
        (after, limit) = (last.or(after).or(Some(0)), None);
        if !options.follow {
            return Ok(());
        }
        if last.is_none() {
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// An entry in columns that do not depend on the others.
fn line(entry: &NetworkLogEntry) -> String {
    let at = humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_millis(entry.unix_ms));
    let remote = match (&entry.address, entry.port) {
        (Some(address), Some(port)) if address.contains(':') => format!("[{address}]:{port}"),
        (Some(address), Some(port)) => format!("{address}:{port}"),
        _ => "-".to_owned(),
    };
    let mut more = match (entry.bytes_out, entry.bytes_in) {
        (Some(out), Some(into)) => {
            let (out, into) = (output::size(out), output::size(into));
            let took = Duration::from_millis(entry.ms.unwrap_or_default());
            format!("{out} out, {into} in, {}", humantime::format_duration(took))
        }
        _ => entry.reason.clone(),
    };
    if let Some(times) = entry.repeated {
        more = format!("{more}, {times} more times");
    }
    let (outcome, name) = (&entry.outcome, entry.name.as_deref().unwrap_or("-"));
    format!("{at}  {outcome:<7}  {:<4}  {remote:<21}  {name}  {more}", entry.protocol)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> NetworkLogEntry {
        NetworkLogEntry {
            number: 1,
            unix_ms: 1_700_000_000_000,
            outcome: FlowOutcome::Ended.into(),
            protocol: "tcp".into(),
            address: Some("203.0.113.7".into()),
            port: Some(443),
            name: Some("api.example.com".into()),
            reason: "allowed".into(),
            bytes_out: Some(517),
            bytes_in: Some(2048),
            ms: Some(1250),
            repeated: None,
        }
    }

    #[test]
    fn a_line_tells_what_was_reached_or_why_not() {
        assert_eq!(
            line(&entry()),
            "2023-11-14T22:13:20Z  ended    tcp   203.0.113.7:443        api.example.com  \
             517 B out, 2.0 KiB in, 1s 250ms"
        );
        let refused = NetworkLogEntry {
            outcome: FlowOutcome::Refused.into(),
            address: Some("2001:db8::1".into()),
            name: None,
            reason: "the default".into(),
            bytes_out: None,
            bytes_in: None,
            ms: None,
            repeated: Some(99),
            ..entry()
        };
        assert_eq!(
            line(&refused),
            "2023-11-14T22:13:20Z  refused  tcp   [2001:db8::1]:443      -  \
             the default, 99 more times"
        );
    }
}
