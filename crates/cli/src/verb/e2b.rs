//! `forkd e2b`: what clients of E2B must be told.

use std::fs;

use anyhow::Context as _;
use clap::Subcommand;

use crate::console::output;
use crate::console::report::Hinted;
use crate::daemon::settings;
use crate::options::{Global, Places};

/// Show what programs that use E2B's clients need to find the daemon
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    forkd serve --e2b-listen 127.0.0.1:8891 --e2b-template base=python\n  \
    eval \"$(forkd e2b env)\"\n  \
    forkd e2b env > e2b.sh")]
pub(crate) struct Options {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Print the variables for a shell: addresses, and a key for the daemon's own user
    Env {
        #[command(flatten)]
        places: Places,
    },
}

pub(crate) async fn run(global: &Global, options: Options) -> anyhow::Result<()> {
    let What::Env { places } = options.what;
    let config = settings::serve_config(global, &places)?;
    let file = forkd_daemon::e2b_environment_file(&config.state_dir);
    let text = match fs::read_to_string(&file) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let hint = "start one with `forkd serve --e2b-listen 127.0.0.1:8891`";
            return Err(Hinted::new("no daemon here answers clients of E2B", hint).into());
        }
        read => read.with_context(|| format!("read {}", file.display()))?,
    };
    output::line(text.trim_end())
}
