//! Options of a daemon that answers clients of E2B.

use std::net::SocketAddr;

use clap::Args;
use forkd_daemon::{E2bConfig, E2bDomain};
use forkd_types::{TagError, TagName};

/// Where clients of E2B are answered, and what they find.
#[derive(Debug, Clone, Args)]
pub(crate) struct E2b {
    /// Answer clients of E2B at this address, such as 127.0.0.1:8891; `forkd e2b env` has what they
    /// must be told
    ///
    /// Their keys are the tokens of --token-file, and one of the daemon's own user.
    #[arg(long, value_name = "ADDRESS", env = "FORKD_E2B_LISTEN", hide_env_values = true)]
    e2b_listen: Option<SocketAddr>,
    /// Let a template name of E2B stand for a snapshot, such as `base=python`; may be repeated
    #[arg(long, value_name = "NAME=TAG", env = "FORKD_E2B_TEMPLATE", hide_env_values = true)]
    #[arg(value_delimiter = ',', value_parser = template_name, requires = "e2b_listen")]
    e2b_template: Vec<(String, TagName)>,
    /// Names below this domain lead to that address over TLS, such as sandboxes.example.com: E2B's
    /// clients find ports of sandboxes by them [default: localhost:PORT, without TLS]
    #[arg(long, value_name = "DOMAIN[:PORT]", env = "FORKD_E2B_DOMAIN", hide_env_values = true)]
    #[arg(requires = "e2b_listen")]
    e2b_domain: Option<E2bDomain>,
}

impl E2b {
    /// The daemon's share.
    pub(crate) fn config(self) -> Option<E2bConfig> {
        let Self { e2b_listen, e2b_template, e2b_domain: domain } = self;
        let templates = e2b_template.into_iter().collect();
        e2b_listen.map(|listen| E2bConfig { listen, templates, domain })
    }
}

/// A name of a template, and what it stands for.
pub(crate) fn template_name(text: &str) -> Result<(String, TagName), String> {
    let (name, tag) = text.split_once('=').ok_or("use NAME=TAG")?;
    let tag = tag.parse().map_err(|error: TagError| error.to_string())?;
    Ok((name.to_owned(), tag))
}
