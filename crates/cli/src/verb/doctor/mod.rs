//! `forkd doctor`: does this host have what forkd needs?

mod e2b;

use std::process::ExitCode;

use forkd_client::Client;
use forkd_daemon::ServeConfig;
use forkd_daemon::doctor::{self, Check, Outcome};
use forkd_types::StandbyStatus;

use crate::console::{output, report};
use crate::daemon::{connect, settings};
use crate::exit::Exit;
use crate::options::{E2b, Global, Places};
use crate::samples::Samples;
use crate::standby;

/// Check that forkd can work on this host, by trying it; needs no daemon
///
/// Boots a small guest, branches it and starts a child, in directories of its own that it removes.
/// Of a daemon that runs here it asks what programs that use E2B's clients would ask.
/// Exits with 1 if a required check fails. A warning means that something is slower, or that an
/// optional feature is missing. Each problem comes with its remedy.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  forkd doctor --json")]
pub(crate) struct Options {
    #[command(flatten)]
    places: Places,
    #[command(flatten)]
    e2b: E2b,
}

pub(crate) async fn run(global: &Global, options: Options) -> anyhow::Result<ExitCode> {
    let mut config = settings::serve_config(global, &options.places)?;
    config.e2b = options.e2b.config();
    // As they are made: the guest takes a while.
    let mut said = Ok(());
    let mut tell = |check: &Check| {
        if !global.json && said.is_ok() {
            said = lines(check).iter().try_for_each(|line| output::line(line));
        }
    };
    let mut checks = doctor::run(&config, &mut tell).await;
    for check in daemon(global, &config).await {
        tell(&check);
        checks.push(check);
    }
    said?;
    if global.json {
        output::json(&checks)?;
    }
    report::note(&verdict(&checks));
    let failed = checks.iter().any(|check| check.outcome == Outcome::Fail);
    Ok(if failed { Exit::Error } else { Exit::Ok }.into())
}

/// Not running is no fault: the next verb starts one. Another host's says nothing of E2B.
async fn daemon(global: &Global, config: &ServeConfig) -> Vec<Check> {
    let (detail, mut more) = match connect::running_client(global).await {
        Ok(Some(client)) => match client.version().await {
            Ok(version) => {
                let previews = previews(version.preview_url.as_deref());
                let (version, accelerator) = (version.version, version.accelerator);
                let target = client.target();
                let detail = format!("{version} is running at {target}, guests on {accelerator}");
                (detail, vec![standing_by(&client).await, previews])
            }
            Err(error) => (format!("does not answer: {error}"), Vec::new()),
        },
        Ok(None) => ("not running; the next command starts it".to_owned(), Vec::new()),
        Err(error) => (format!("cannot look for it: {error}"), Vec::new()),
    };
    let runs = !more.is_empty();
    if global.url.is_none() {
        more.push(e2b::check(config, runs).await);
    }
    more.insert(0, Check::ok("daemon", detail));
    more
}

fn previews(url: Option<&str>) -> Check {
    let detail = match url {
        Some(url) => format!("ports of sandboxes have addresses below {url}"),
        None => "off; `forkd serve --preview-listen 127.0.0.1:8890` shows ports to browsers".into(),
    };
    Check::ok("previews", detail)
}

/// VMMs that stand by. None is no fault either, unless there should be some.
async fn standing_by(client: &Client) -> Check {
    const NAME: &str = "standby";
    let samples = match client.metrics().await {
        Ok(text) => Samples::parse(&text),
        Err(error) => return Check::ok(NAME, format!("the daemon does not say: {error}")),
    };
    let line = standby::line(&samples);
    match standby::status(&samples) {
        Some(StandbyStatus::Failed) => {
            Check::warn(NAME, line, "see the daemon's log for the reason")
        }
        Some(StandbyStatus::ShortOfMemory) => {
            Check::warn(NAME, line, "end other programs, or add memory")
        }
        _ => Check::ok(NAME, line),
    }
}

fn lines(check: &Check) -> Vec<String> {
    let word = match check.outcome {
        Outcome::Ok => "ok  ",
        Outcome::Warn => "warn",
        Outcome::Fail => "FAIL",
    };
    let first = format!("{word}  {:<15} {}", check.name, report::printable(&check.detail));
    let remedy = check.remedy.iter().map(|text| format!("{:<21} -> {text}", ""));
    std::iter::once(first).chain(remedy).collect()
}

/// All of it in one sentence.
fn verdict(checks: &[Check]) -> String {
    let names = |outcome| {
        let them = checks.iter().filter(|check| check.outcome == outcome);
        them.map(|check| check.name).collect::<Vec<_>>().join(", ")
    };
    match (names(Outcome::Fail).as_str(), names(Outcome::Warn).as_str()) {
        ("", "") => "forkd can do everything here".to_owned(),
        ("", less) => format!("forkd works here, with warnings: {less}"),
        (missing, _) => format!("forkd does not work here: {missing}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verdict_names_what_fails_and_else_what_is_less() {
        let check = |name, outcome| Check { outcome, ..Check::ok(name, "") };
        let good = check("a", Outcome::Ok);
        let (less, bad) = (check("b", Outcome::Warn), check("c", Outcome::Fail));
        assert!(verdict(std::slice::from_ref(&good)).contains("everything"));
        let text = verdict(&[good.clone(), less.clone()]);
        assert!(text.contains("works here") && text.contains("with warnings: b"), "{text}");
        let text = verdict(&[good, less, bad]);
        assert!(text.contains("does not work") && text.ends_with(": c"), "{text}");
    }

    #[test]
    fn words_from_outside_cannot_steer_the_terminal() {
        let check = Check::ok("n", "\u{1b}[2J");
        assert!(!lines(&check).concat().contains('\u{1b}'));
    }
}
