//! `forkd serve`: be the daemon.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::ValueEnum;
use forkd_daemon::{PreviewConfig, PreviewUrl, SocketMode, TlsFiles};
use tracing_subscriber::EnvFilter;

use crate::console::manner;
use crate::daemon::settings;
use crate::options::{E2b, Global, Maxima, Places};

/// Run the daemon in the foreground
///
/// Other verbs start a daemon by themselves. Use this one under a service manager, or to see the
/// log; FORKD_LOG sets what it has, such as `debug` or `forkd_engine=trace`.
///
/// SIGTERM stops the daemon. Its sandboxes keep running, even if it is killed, and the next daemon
/// takes them over.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  forkd serve\n  \
    forkd serve --listen 127.0.0.1:8889 --token-file tokens")]
pub(crate) struct Options {
    #[command(flatten)]
    places: Places,
    /// Who may connect to the Unix socket: 600, 660 or 666
    ///
    /// With 660 the file's group, with 666 all users of this machine. Each user sees only what is
    /// theirs; the daemon's user and root see all. They also need the right to enter the directory.
    #[arg(
        long,
        env = "FORKD_SOCKET_MODE",
        value_name = "MODE",
        default_value = "600",
        hide_env_values = true
    )]
    socket_mode: SocketMode,
    /// Require a token from this file over TCP: one a line, as `NAME TOKEN`, then `owner=OWNER` or
    /// `admin` if you like
    #[arg(long, value_name = "FILE", env = "FORKD_TOKEN_FILE", hide_env_values = true)]
    token_file: Option<PathBuf>,
    /// Let every process and user of this machine do everything over TCP on loopback, without a
    /// token
    #[arg(long, conflicts_with = "token_file")]
    insecure_no_token: bool,
    /// Certificate chain for TLS, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Private key of the certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Show ports of sandboxes to browsers at this address, such as 127.0.0.1:8890; `forkd port
    /// --preview` gives addresses of ports
    #[arg(long, value_name = "ADDRESS", env = "FORKD_PREVIEW_LISTEN", hide_env_values = true)]
    preview_listen: Option<SocketAddr>,
    /// Where browsers find it, such as https://preview.example.com; names below that host must lead
    /// here [default: http://localhost:PORT]
    #[arg(long, value_name = "URL", env = "FORKD_PREVIEW_URL", hide_env_values = true)]
    #[arg(requires = "preview_listen")]
    preview_url: Option<PreviewUrl>,
    /// Certificate chain for previews, in PEM; for all names below their host
    #[arg(long, value_name = "FILE", requires_all = ["preview_tls_key", "preview_listen"])]
    preview_tls_cert: Option<PathBuf>,
    /// Private key of that certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "preview_tls_cert")]
    preview_tls_key: Option<PathBuf>,
    #[command(flatten)]
    e2b: E2b,
    /// Record who asked for what in this file, one JSON line per request
    #[arg(long, value_name = "FILE")]
    audit_log: Option<PathBuf>,
    /// Remove all sandboxes when the daemon stops
    #[arg(long, alias = "stop-sandboxes")]
    remove_sandboxes: bool,
    #[command(flatten)]
    maxima: Maxima,
    /// How to write the log
    #[arg(
        long,
        env = "FORKD_LOG_FORMAT",
        value_enum,
        default_value_t,
        value_name = "HOW",
        hide_env_values = true
    )]
    log_format: LogFormat,
    /// Leave the session of whoever started us
    #[arg(long, hide = true)]
    detached: bool,
}

/// How the log is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    /// Lines for people
    #[default]
    Text,
    /// A JSON object per line, with the fields of all spans
    Json,
}

fn start_log(format: LogFormat) {
    let filter = EnvFilter::try_from_env("FORKD_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Text => log.with_ansi(manner::stderr_has_colour()).init(),
        LogFormat::Json => log.json().init(),
    }
}

pub(crate) async fn run(global: &Global, options: Options) -> anyhow::Result<()> {
    if options.detached {
        // A signal from the terminal is meant for the command that started us.
        rustix::process::setsid().context("leave the session")?;
    }
    start_log(options.log_format);
    let mut config = settings::serve_config(global, &options.places)?;
    config.limits = settings::limits(&options.maxima);
    config.stop_sandboxes = options.remove_sandboxes;
    config.socket_mode = options.socket_mode;
    config.token_file = options.token_file;
    config.insecure_no_token = options.insecure_no_token;
    config.audit_log = options.audit_log;
    let files = options.tls_cert.zip(options.tls_key);
    config.tls = files.map(|(certificate, key)| TlsFiles { certificate, key });
    let files = options.preview_tls_cert.zip(options.preview_tls_key);
    config.previews = options.preview_listen.map(|listen| PreviewConfig {
        listen,
        url: options.preview_url,
        tls: files.map(|(certificate, key)| TlsFiles { certificate, key }),
    });
    config.e2b = options.e2b.config();
    settings::secure_run_dir(&config.run_dir)?;
    forkd_daemon::serve(config).await.context("the daemon cannot run")
}
