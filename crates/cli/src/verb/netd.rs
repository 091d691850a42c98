//! `forkd netd`: be the network gateway. Daemons start it by themselves, with its socket
//! for its standard input.

use std::os::fd::AsFd as _;
use std::path::PathBuf;

use anyhow::Context as _;
use forkd_netd::{Filtered, NetdOptions};
use tracing_subscriber::EnvFilter;

use crate::options::Global;

/// The resolvers of the host.
const RESOLV_CONF: &str = "/etc/resolv.conf";

/// Run the network gateway of a daemon
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Write what each sandbox reached into its directory in this one
    #[arg(long, value_name = "DIR")]
    log_dir: PathBuf,
    /// Ask the resolvers in this file
    #[arg(long, value_name = "FILE", default_value = RESOLV_CONF)]
    resolv_conf: PathBuf,
    /// Give up all system calls that a gateway does not need
    #[arg(long)]
    filtered: bool,
}

pub(crate) async fn run(_: &Global, options: Options) -> anyhow::Result<()> {
    let filter = EnvFilter::new("warn");
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    forkd_netd::hide_memory().context("the gateway cannot hide its memory")?;
    let socket = std::io::stdin().as_fd().try_clone_to_owned();
    let Options { log_dir, resolv_conf, filtered } = options;
    let options = NetdOptions {
        socket: socket.context("the gateway has no socket")?,
        log_dir,
        resolv_conf,
        filtered: if filtered { Filtered::Process } else { Filtered::Nothing },
    };
    forkd_netd::run(options).await.context("the gateway cannot run")
}
