//! `forkd network`: what a sandbox may reach and has reached, and private networks.

mod log;
mod private;

use std::process::ExitCode;

use clap::Subcommand;
use forkd_api::NetworkPolicy;

use crate::console::output;
use crate::daemon::connect;
use crate::exit::Exit;
use crate::options::{Global, Network};

/// See or change what a sandbox may reach, see what it has reached, and join sandboxes
#[derive(Debug, clap::Args)]
#[command(visible_alias = "net")]
#[command(after_help = "Examples:\n  \
    forkd network show sb-0123456789ab\n  \
    forkd network set sb-0123456789ab --allow api.example.com:443 --allow '*.example.org'\n  \
    forkd network set sb-0123456789ab --no-internet\n  \
    forkd network log sb-0123456789ab --refused\n  \
    forkd network create team\n  \
    forkd network join sb-0123456789ab team\n  \
    forkd network ls team\n  \
    forkd network leave sb-0123456789ab team\n  \
    forkd network rm team")]
pub(crate) struct Options {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Show what a sandbox may reach
    Show {
        /// The sandbox
        sandbox: String,
    },
    /// Replace what a sandbox may reach; without options, public addresses
    ///
    /// New connections obey at once. Connections that are no longer allowed end.
    Set {
        /// The sandbox
        sandbox: String,
        #[command(flatten)]
        network: Network,
    },
    /// Show what a sandbox has reached, and what it was refused
    ///
    /// There is a line for each connection at its end, and for each refusal. With --json each line
    /// is an object.
    Log(log::Options),
    /// Create a private network, whose members reach each other by name
    ///
    /// Members reach each other whatever else they may reach, and nobody else reaches them.
    Create {
        /// Its name: lower-case letters, digits and `-`
        name: String,
    },
    /// List your private networks, or the members of one
    Ls {
        /// List the members of this one
        name: Option<String>,
    },
    /// Remove private networks; connections between members are reset
    Rm {
        /// The networks
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
    /// Make a sandbox a member of a private network, and print its name there
    Join {
        /// The sandbox
        sandbox: String,
        /// The network
        #[arg(value_name = "NAME")]
        network: String,
    },
    /// Make a sandbox a member no longer; its connections to other members are reset
    Leave {
        /// The sandbox
        sandbox: String,
        /// The network
        #[arg(value_name = "NAME")]
        network: String,
    },
}

pub(crate) async fn run(global: &Global, options: Options) -> anyhow::Result<ExitCode> {
    match options.what {
        What::Show { sandbox } => {
            show(global, &connect::client(global).await?.network(&sandbox).await?)?;
        }
        What::Set { sandbox, network } => {
            let policy = network.policy().unwrap_or_default();
            let client = connect::client(global).await?;
            show(global, &client.set_network(&sandbox, &policy).await?.network)?;
        }
        What::Log(options) => log::run(global, options).await?,
        What::Create { name } => private::create(global, &name).await?,
        What::Ls { name: None } => private::list(global).await?,
        What::Ls { name: Some(name) } => private::members(global, &name).await?,
        What::Rm { names } => return private::remove(global, names).await,
        What::Join { sandbox, network } => private::join(global, &sandbox, &network).await?,
        What::Leave { sandbox, network } => private::leave(global, &sandbox, &network).await?,
    }
    Ok(Exit::Ok.into())
}

fn show(global: &Global, policy: &NetworkPolicy) -> anyhow::Result<()> {
    if global.json { output::json(policy) } else { output::facts(&facts(policy)) }
}

/// What a policy says, in the order in which it is read.
fn facts(policy: &NetworkPolicy) -> Vec<(&'static str, String)> {
    let list = |entries: &[String]| match entries {
        [] => "-".to_owned(),
        entries => entries.join(", "),
    };
    let rest = if policy.reaches_the_rest() { "can be reached" } else { "cannot be reached" };
    let headers = policy.rules.iter().flat_map(|(host, rules)| {
        let headers = rules.iter().flat_map(|rule| &rule.transform.headers);
        headers.map(move |(name, value)| ("header", format!("{host}:{name}: {value}")))
    });
    let mut facts = vec![
        ("allowed", list(&policy.allow_out)),
        ("denied", list(&policy.deny_out)),
        ("other public addresses", rest.to_owned()),
    ];
    facts.extend(headers);
    facts.extend(policy.join.as_ref().map(|names| ("private networks", list(names))));
    let ports = policy.public_ports.iter().map(ToString::to_string).collect::<Vec<_>>();
    let open = if policy.allow_public_traffic { "all".to_owned() } else { list(&ports) };
    if open != "-" {
        facts.push(("public ports", open));
    }
    facts.extend(policy.mask_request_host.clone().map(|host| ("host in requests", host)));
    facts
}

/// A policy in a few words.
pub(in crate::verb) fn summary(policy: &NetworkPolicy) -> String {
    let mut parts = vec![policy.allow_out.join(", ")];
    if policy.reaches_the_rest() {
        parts.push("public addresses".to_owned());
    }
    if !policy.deny_out.is_empty() {
        parts.push(format!("but not {}", policy.deny_out.join(", ")));
    }
    parts.retain(|part| !part.is_empty());
    if parts.is_empty() { "nothing".to_owned() } else { parts.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_summed_up_in_a_few_words() {
        let policy = |text: &str| summary(&serde_json::from_str(text).unwrap());
        assert_eq!(policy("{}"), "public addresses");
        assert_eq!(policy(r#"{"allow_internet_access":false}"#), "nothing");
        assert_eq!(policy(r#"{"allow_out":["a.example","b.example"]}"#), "a.example, b.example");
        assert_eq!(
            policy(r#"{"deny_out":["198.51.100.0/24"]}"#),
            "public addresses, but not 198.51.100.0/24"
        );
    }
}
