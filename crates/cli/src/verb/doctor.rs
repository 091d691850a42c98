//! `forkd doctor`: does this host have what forkd needs?

use std::process::ExitCode;

use forkd_daemon::doctor::{self, Check, Outcome};

use crate::args::{Global, Places};
use crate::exit::Exit;
use crate::{connect, output, report, settings};

/// Check whether this host has what forkd needs; works without a daemon
///
/// Ends with 1 when a check fails. A warning means that something works, with less.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  forkd doctor --json")]
pub(crate) struct Options {
    #[command(flatten)]
    places: Places,
}

pub(crate) async fn run(global: &Global, options: Options) -> anyhow::Result<ExitCode> {
    let config = settings::serve_config(global, &options.places)?;
    let mut checks = doctor::run(&config).await;
    checks.push(daemon(global).await);
    if global.json {
        output::json(&checks)?;
    } else {
        checks.iter().flat_map(lines).try_for_each(|line| output::line(&line))?;
    }
    let failed = checks.iter().any(|check| check.outcome == Outcome::Fail);
    Ok(if failed { Exit::Error } else { Exit::Ok }.into())
}

/// Not running is no fault: the next verb starts one.
async fn daemon(global: &Global) -> Check {
    let detail = match connect::running_client(global).await {
        Ok(Some(client)) => match client.version().await {
            Ok(version) => {
                let (version, accelerator) = (version.version, version.accelerator);
                format!("{version} runs at {}, guests on {accelerator}", client.target())
            }
            Err(error) => format!("does not answer: {error}"),
        },
        Ok(None) => "none runs; the next command starts one".to_owned(),
        Err(error) => format!("cannot be looked for: {error}"),
    };
    Check { name: "daemon", outcome: Outcome::Ok, detail, remedy: None }
}

fn lines(check: &Check) -> Vec<String> {
    let word = match check.outcome {
        Outcome::Ok => "ok  ",
        Outcome::Warn => "warn",
        Outcome::Fail => "FAIL",
    };
    let first = format!("{word}  {:<14} {}", check.name, report::printable(&check.detail));
    let remedy = check.remedy.iter().map(|text| format!("{:<20} -> {text}", ""));
    std::iter::once(first).chain(remedy).collect()
}
