//! `forkd key`: who signs exported snapshots, and whose are imported.

use std::process::ExitCode;

use clap::Subcommand;

use super::each;
use crate::console::output::{self, Align, Table};
use crate::daemon::connect;
use crate::exit::Exit;
use crate::options::Global;

/// Show the key that signs exported snapshots; trust the keys of other daemons
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    forkd key\n  \
    forkd key trust build-host \"$(ssh build-host forkd key)\"\n  \
    forkd key ls -q\n  \
    forkd key rm build-host")]
pub(crate) struct Options {
    #[command(subcommand)]
    what: Option<What>,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Trust a key: this daemon imports what was signed with it
    ///
    /// Get the key from whoever exports, over a way that nobody else can write to.
    Trust {
        /// What you call it; replaces a key of the same name
        name: String,
        /// What `forkd key` prints on the other host
        key: String,
    },
    /// List the keys that this daemon trusts besides its own
    Ls {},
    /// Stop trusting keys; imported snapshots stay
    Rm {
        /// The names of the keys
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
}

pub(crate) async fn run(global: &Global, options: Options) -> anyhow::Result<ExitCode> {
    let client = connect::client(global).await?;
    match options.what {
        None => {
            let keys = client.keys().await?;
            match global.json {
                true => output::json(&keys)?,
                false => output::line(&keys.key)?,
            }
        }
        Some(What::Trust { name, key }) => client.trust_key(&name, &key).await?,
        Some(What::Ls {}) => {
            let trusted = client.keys().await?.trusted;
            if global.json {
                output::json(&trusted)?;
                return Ok(Exit::Ok.into());
            }
            let columns = [("NAME", Align::Left), ("TRUSTED", Align::Left), ("KEY", Align::Left)];
            let mut table = Table::new(&columns);
            for key in trusted {
                table.row([key.name, output::age(key.trusted_at_unix), key.key]);
            }
            table.print("no trusted keys; trust one with `forkd key trust NAME KEY`")?;
        }
        Some(What::Rm { names }) => {
            let remove = async |name: &str| client.remove_key(name).await;
            return each::removed(global, names, remove).await;
        }
    }
    Ok(Exit::Ok.into())
}
