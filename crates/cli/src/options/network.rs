//! What a sandbox may reach and who may reach it, as options.

use std::collections::BTreeMap;
use std::num::NonZeroU16;

use forkd_api::{HeaderRule, HeaderTransform, NetworkPolicy};
use forkd_types::network::{HeaderError, HeaderName, HeaderTemplate, HostPattern, RequestHost};

#[derive(Debug, Default, clap::Args)]
pub(crate) struct Network {
    /// Let it reach this: a name, `*.name`, an address or a range, with `:PORT` behind it or
    /// `udp://` in front; can be repeated. What you do not name is out of reach then
    #[arg(long, value_name = "DESTINATION")]
    allow: Vec<String>,
    /// Keep it from this address or range; can be repeated
    #[arg(long, value_name = "RANGE")]
    deny: Vec<String>,
    /// Let it reach nothing but what --allow names
    #[arg(long)]
    no_internet: bool,
    /// Let it reach public addresses besides what --allow names
    #[arg(long, conflicts_with = "no_internet")]
    internet: bool,
    /// Set this header in every request to this host, as `HOST:NAME: VALUE`; can be repeated.
    /// `${secrets.NAME}` in the value is a secret, see `forkd secret`. Does not allow the host
    #[arg(long = "header", value_name = "HEADER", value_parser = header)]
    headers: Vec<Header>,
    /// Join this private network, see `forkd network create`; can be repeated. Alone it changes
    /// nothing of what else the sandbox may reach
    #[arg(long, value_name = "NAME")]
    join: Vec<String>,
    /// Let whoever knows the address open previews of this port, without a token; can be repeated
    #[arg(long = "public-port", value_name = "PORT")]
    public_ports: Vec<NonZeroU16>,
    /// Let whoever knows the address open previews of all ports, without a token
    #[arg(long, conflicts_with = "public_ports")]
    allow_public_traffic: bool,
    /// Tell its servers this host in requests of previews, such as `localhost:${PORT}`
    #[arg(long, value_name = "HOST")]
    mask_request_host: Option<RequestHost>,
}

/// A header that the gateway sets.
#[derive(Debug, Clone)]
struct Header {
    host: HostPattern,
    name: HeaderName,
    value: HeaderTemplate,
}

fn header(text: &str) -> Result<Header, String> {
    let parts = text.split_once(':').and_then(|(host, rest)| Some((host, rest.split_once(':')?)));
    let Some((host, (name, value))) = parts else {
        return Err("write it as `HOST:NAME: VALUE`".to_owned());
    };
    let wrong = |error: HeaderError| error.to_string();
    Ok(Header {
        host: host.parse().map_err(wrong)?,
        name: name.trim().parse().map_err(wrong)?,
        value: value.trim().parse().map_err(wrong)?,
    })
}

impl Network {
    /// What was said, if anything.
    pub(crate) fn policy(self) -> Option<NetworkPolicy> {
        let mut rules: BTreeMap<String, Vec<HeaderRule>> = BTreeMap::new();
        for Header { host, name, value } in self.headers {
            let headers = [(name.to_string(), value.to_string())].into();
            let rule = HeaderRule { transform: HeaderTransform { headers } };
            rules.entry(host.to_string()).or_default().push(rule);
        }
        let policy = NetworkPolicy {
            allow_internet_access: match (self.internet, self.no_internet) {
                (true, _) => Some(true),
                (_, true) => Some(false),
                _ => None,
            },
            allow_out: self.allow,
            deny_out: self.deny,
            rules,
            join: (!self.join.is_empty()).then_some(self.join),
            allow_public_traffic: self.allow_public_traffic,
            public_ports: self.public_ports,
            mask_request_host: self.mask_request_host.map(|host| host.to_string()),
        };
        (policy != NetworkPolicy::default()).then_some(policy)
    }
}
