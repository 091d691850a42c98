//! `forkd e2b`: what clients of E2B must be told, and which templates they find.

use std::collections::BTreeMap;
use std::fs;

use anyhow::Context as _;
use clap::Subcommand;
use forkd_types::TagName;

use crate::console::output;
use crate::console::report::Hinted;
use crate::daemon::settings;
use crate::options::{Global, Places};

/// Let programs that use E2B's clients find the daemon and its templates
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    forkd serve --e2b-listen 127.0.0.1:8891\n  \
    forkd e2b alias base=python\n  \
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
    /// Let a template name of E2B stand for a snapshot, from now on; without a name, list them
    ///
    /// It counts before what `forkd serve --e2b-template` has said of the name, also for daemons
    /// that are started later.
    Alias {
        /// Such as base=python; TAG is looked up when a sandbox is made
        #[arg(value_name = "NAME=TAG", value_parser = crate::options::e2b::template_name)]
        aliases: Vec<(String, TagName)>,
        /// Forget what was said of this name; may be repeated
        #[arg(long, value_name = "NAME")]
        remove: Vec<String>,
        #[command(flatten)]
        places: Places,
    },
}

pub(crate) async fn run(global: &Global, options: Options) -> anyhow::Result<()> {
    match options.what {
        What::Env { places } => environment(global, &places),
        What::Alias { aliases, remove, places } => {
            let config = settings::serve_config(global, &places)?;
            let all = forkd_daemon::e2b_aliases(&config.state_dir);
            if aliases.is_empty() && remove.is_empty() {
                return list(global, &all.all().context("read the aliases")?);
            }
            for name in remove {
                let was_there = all.remove(&name).with_context(|| format!("forget '{name}'"))?;
                if !was_there {
                    let hint = "`forkd e2b alias` lists the names";
                    let text = format!("nothing was said of the name '{name}'");
                    return Err(Hinted::new(text, hint).into());
                }
            }
            for (name, tag) in aliases {
                all.set(&name, &tag).with_context(|| format!("let '{name}' stand for {tag}"))?;
            }
            Ok(())
        }
    }
}

fn list(global: &Global, aliases: &BTreeMap<String, TagName>) -> anyhow::Result<()> {
    if global.json {
        let texts = aliases.iter().map(|(name, tag)| (name, tag.to_string()));
        return output::json(&texts.collect::<BTreeMap<_, _>>());
    }
    for (name, tag) in aliases {
        output::line(&format!("{name}={tag}"))?;
    }
    Ok(())
}

fn environment(global: &Global, places: &Places) -> anyhow::Result<()> {
    let config = settings::serve_config(global, places)?;
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
