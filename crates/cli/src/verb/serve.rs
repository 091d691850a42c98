//! `forkd serve`: be the daemon.

use std::io::IsTerminal as _;
use std::path::PathBuf;

use anyhow::Context as _;
use forkd_daemon::TlsFiles;
use tracing_subscriber::EnvFilter;

use crate::args::{Global, Places};
use crate::settings;

/// Run the daemon in the foreground until it is told to stop
///
/// Other verbs start one by themselves; run it like this under a service manager or to see its log.
/// FORKD_LOG sets what is logged, such as `debug` or `forkd_engine=trace`.
///
/// SIGTERM ends it in order. Sandboxes run on then, as they do when it is killed, and the next
/// daemon takes them over.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  forkd serve\n  forkd serve --listen 127.0.0.1:8889")]
pub(crate) struct Options {
    #[command(flatten)]
    places: Places,
    /// Tokens that requests over TCP must have, one a line, with a name before it if you like
    #[arg(long, value_name = "FILE", env = "FORKD_TOKEN_FILE", hide_env_values = true)]
    token_file: Option<PathBuf>,
    /// Certificate chain for TCP, PEM
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Private key of the certificate, PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Write down who asked for what: one JSON line for each request
    #[arg(long, value_name = "FILE")]
    audit_log: Option<PathBuf>,
    /// Remove all sandboxes at the end
    #[arg(long)]
    stop_sandboxes: bool,
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
    config.stop_sandboxes = options.stop_sandboxes;
    config.token_file = options.token_file;
    config.audit_log = options.audit_log;
    let files = options.tls_cert.zip(options.tls_key);
    config.tls = files.map(|(certificate, key)| TlsFiles { certificate, key });
    settings::secure_run_dir(&config.run_dir)?;
    forkd_daemon::serve(config).await.context("the daemon cannot run")
}
