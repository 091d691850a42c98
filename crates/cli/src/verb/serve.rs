//! `forkd serve`: be the daemon.

use std::io::IsTerminal as _;

use anyhow::Context as _;
use tracing_subscriber::EnvFilter;

use crate::args::{Global, Maxima, Places};
use crate::settings;

/// Run the daemon in the foreground until it is told to stop
///
/// Other verbs start one by themselves; run it like this under a service manager or to see its log.
/// FORKD_LOG sets what is logged, such as `debug` or `forkd_engine=trace`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  forkd serve\n  forkd serve --listen 127.0.0.1:8889")]
pub(crate) struct Options {
    #[command(flatten)]
    places: Places,
    #[command(flatten)]
    maxima: Maxima,
    /// Leave the session of whoever started us
    #[arg(long, hide = true)]
    detached: bool,
}

pub(crate) async fn run(global: &Global, options: Options) -> anyhow::Result<()> {
    if options.detached {
        // A signal from the terminal is meant for the command that started us.
        rustix::process::setsid().context("leave the session")?;
    }
    let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let filter = EnvFilter::try_from_env("FORKD_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(colour)
        .with_writer(std::io::stderr)
        .init();
    let mut config = settings::serve_config(global, &options.places)?;
    config.limits = settings::limits(&options.maxima);
    settings::secure_run_dir(&config.run_dir)?;
    forkd_daemon::serve(config).await.context("the daemon cannot run")
}
