//! Options of every verb.

use std::path::PathBuf;

use clap::Args;

use crate::console::manner::{Colour, Manner};

/// Options of every verb.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Options of every verb")]
pub(crate) struct Global {
    /// Use the daemon on this Unix socket; do not start one
    #[arg(long, global = true, env = "FORKD_SOCKET", value_name = "PATH", hide_env_values = true)]
    pub(crate) socket: Option<PathBuf>,
    /// Use the daemon at this URL, such as https://host:8889 or unix:/path; its token is read from
    /// FORKD_TOKEN
    #[arg(
        long,
        global = true,
        env = "FORKD_URL",
        value_name = "URL",
        conflicts_with = "socket",
        hide_env_values = true
    )]
    pub(crate) url: Option<String>,
    /// Check the daemon at --url against the CA certificates in this PEM file, not the system's
    #[arg(long, global = true, env = "FORKD_CA_CERT", value_name = "FILE", hide_env_values = true)]
    pub(crate) ca_cert: Option<PathBuf>,
    /// Print JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Print names only: no headings, no remarks, no progress
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
    /// When to use colours: auto (on a terminal, unless NO_COLOR is set), always or never
    #[arg(
        long,
        global = true,
        value_enum,
        default_value_t,
        value_name = "WHEN",
        hide_possible_values = true
    )]
    pub(crate) color: Colour,
}

impl Global {
    /// How this run talks.
    pub(crate) fn manner(&self) -> Manner {
        Manner { colour: self.color, quiet: self.quiet }
    }
}
