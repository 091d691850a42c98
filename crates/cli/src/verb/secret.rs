//! `forkd secret`: keys that programs in sandboxes use and never have.

use std::io::{IsTerminal as _, Read as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Subcommand;
use forkd_types::network::HEADER_BYTES_MAX;

use super::each;
use crate::console::output::{self, Align, Table};
use crate::console::report::Hinted;
use crate::daemon::connect;
use crate::exit::Exit;
use crate::options::Global;

/// Keep keys for header rules; programs in sandboxes use them and never have them
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    forkd secret set OPENAI < key\n  \
    forkd secret set OPENAI --env OPENAI_API_KEY\n  \
    forkd secret ls -q\n  \
    forkd secret rm OPENAI\n  \
    forkd fork py --header 'api.openai.com:Authorization: Bearer ${secrets.OPENAI}'")]
pub(crate) struct Options {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Set a secret, or replace it; the value comes from standard input
    ///
    /// Requests that come from now on have the new value. A line end behind the value is left out.
    Set {
        /// Its name: letters, digits and `_`
        name: String,
        /// Read the value from this file
        #[arg(long, value_name = "FILE", conflicts_with = "env")]
        file: Option<PathBuf>,
        /// Take the value of this variable
        #[arg(long, value_name = "VARIABLE")]
        env: Option<String>,
    },
    /// List the names of your secrets
    Ls {},
    /// Remove secrets; requests that need them fail from then on
    Rm {
        /// The secrets
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
}

pub(crate) async fn run(global: &Global, options: Options) -> anyhow::Result<ExitCode> {
    match options.what {
        What::Set { name, file, env } => {
            let value = value(file.as_deref(), env.as_deref())?;
            connect::client(global).await?.set_secret(&name, value).await?;
        }
        What::Ls {} => list(global).await?,
        What::Rm { names } => {
            let client = connect::client(global).await?;
            let remove = async |name: &str| client.remove_secret(name).await;
            return each::removed(global, names, remove).await;
        }
    }
    Ok(Exit::Ok.into())
}

fn value(file: Option<&Path>, variable: Option<&str>) -> anyhow::Result<String> {
    let mut value = match (file, variable) {
        (Some(path), _) => read(std::fs::File::open(path), &path.display().to_string())?,
        (None, Some(variable)) => std::env::var(variable)
            .with_context(|| format!("cannot read the variable {variable}"))?,
        (None, None) if std::io::stdin().is_terminal() => {
            let hint = "give it as in `forkd secret set NAME < FILE`, or use --file or --env";
            return Err(Hinted::new("the value would show on the terminal", hint).into());
        }
        (None, None) => read(Ok(std::io::stdin()), "standard input")?,
    };
    for end in ['\n', '\r'] {
        if value.ends_with(end) {
            value.pop();
        }
    }
    Ok(value)
}

fn read<R: std::io::Read>(from: std::io::Result<R>, what: &str) -> anyhow::Result<String> {
    // A little more than fits, so that the daemon says what is wrong.
    let bytes = u64::try_from(HEADER_BYTES_MAX)? + 3;
    let mut value = String::new();
    let read = from.and_then(|from| from.take(bytes).read_to_string(&mut value));
    read.with_context(|| format!("cannot read the value from {what}"))?;
    Ok(value)
}

async fn list(global: &Global) -> anyhow::Result<()> {
    let secrets = connect::client(global).await?.secrets().await?;
    if global.json {
        return output::json(&secrets);
    }
    let mut table = Table::new(&[("SECRET", Align::Left), ("SET", Align::Left)]);
    for secret in secrets {
        table.row([secret.name, output::age(secret.set_at_unix)]);
    }
    table.print("no secrets; set one with `forkd secret set NAME`")
}
