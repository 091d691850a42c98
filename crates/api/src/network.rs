//! What a sandbox may reach, and who may reach it.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU16;

use forkd_types::FlowOutcome;
use forkd_types::network::{
    self, HeaderError, HeaderRules, HostPattern, NetworkName, Rule, Transform, UnknownNetwork,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{FieldError, Word};

/// What a sandbox may reach, read in this order: `allow_out`, then `deny_out`, then
/// `allow_internet_access`. Some addresses stay out of reach whatever it says, such as the host's
/// own and those of metadata services.
///
/// The last three fields are about [previews](/v1/sandboxes/{id}/ports/{port}/token).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct NetworkPolicy {
    /// Whether public addresses that no list names can be reached. By default they can, unless
    /// there is an `allow_out`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_internet_access: Option<bool>,
    /// What can be reached, at most 256 entries: a name, `*.name` for all names below it, an
    /// address, a range, or `*`; with a port or a range of ports behind a colon, and `udp://` or
    /// `icmp://` in front for what is not TCP.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 256, example = json!(["api.example.com:443", "*.example.org"]))]
    pub allow_out: Vec<String>,
    /// What cannot be reached unless `allow_out` names it: addresses and ranges, at most 256.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 256, example = json!(["198.51.100.0/24"]))]
    pub deny_out: Vec<String>,
    /// Headers that the gateway sets in every request to a host, by the host's name or `*.name`.
    /// A rule allows nothing by itself. At most 64 hosts.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(example = json!({"api.example.com":
        [{"transform": {"headers": {"Authorization": "Bearer ${secrets.KEY}"}}}]}))]
    pub rules: BTreeMap<String, Vec<HeaderRule>>,
    /// The private networks that it is a member of, at most 16. Left out: none for a new sandbox,
    /// those of its source for a child of a branch, and no change for a sandbox that runs. Alone,
    /// it says nothing about what else can be reached: that stays, or is inherited.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(max_items = 16, example = json!(["team"]))]
    pub join: Option<Vec<String>>,
    /// Whether whoever knows the address of a preview may open it: no port needs a token.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub allow_public_traffic: bool,
    /// Ports whose previews need no token, at most 256.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 256, value_type = Vec<u16>, example = json!([8080]))]
    pub public_ports: Vec<NonZeroU16>,
    /// The `Host` that servers are told in requests of previews, in place of the preview's own.
    /// `${PORT}` stands for the server's port.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "localhost:${PORT}")]
    pub mask_request_host: Option<String>,
}

/// One change to the requests to a host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HeaderRule {
    /// What it changes.
    pub transform: HeaderTransform,
}

/// What the gateway changes in a request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HeaderTransform {
    /// Headers that replace those of the guest. In a value, `${secrets.NAME}` stands for the
    /// secret of that name.
    pub headers: BTreeMap<String, String>,
}

impl NetworkPolicy {
    /// Whether public addresses that no list names can be reached.
    #[must_use]
    pub fn reaches_the_rest(&self) -> bool {
        self.allow_internet_access.unwrap_or(self.allow_out.is_empty())
    }

    /// Whether it says more than which networks to join.
    #[must_use]
    pub fn is_policy(&self) -> bool {
        self.join.is_none() || Self { join: None, ..self.clone() } != Self::default()
    }

    /// What a sandbox that is started may reach, if that is said.
    pub(crate) fn check_if_said(
        said: Option<&Self>,
    ) -> Result<Option<network::NetworkPolicy>, FieldError> {
        said.filter(|said| said.is_policy()).map(Self::check).transpose()
    }

    /// The networks to join, if they are said and can be names.
    ///
    /// # Errors
    /// Names the entry.
    pub fn joined(&self) -> Result<Option<BTreeSet<NetworkName>>, FieldError> {
        let Some(names) = &self.join else { return Ok(None) };
        let names: Result<_, _> = names.iter().map(|name| name.parse()).collect();
        names.map(Some).map_err(|error: UnknownNetwork| FieldError::new("network.join", error))
    }

    /// The policy, when all entries are in order.
    ///
    /// # Errors
    /// Names the list and the entry.
    pub fn check(&self) -> Result<network::NetworkPolicy, FieldError> {
        Ok(network::NetworkPolicy {
            allow_internet_access: self.allow_internet_access,
            allow_out: entries("network.allow_out", &self.allow_out)?,
            deny_out: entries("network.deny_out", &self.deny_out)?,
            rules: rules(&self.rules)?,
            allow_public_traffic: self.allow_public_traffic,
            public_ports: self.public_ports.clone(),
            mask_request_host: self.request_host()?,
        })
    }
}

impl NetworkPolicy {
    fn request_host(&self) -> Result<Option<network::RequestHost>, FieldError> {
        let parsed = self.mask_request_host.as_deref().map(str::parse).transpose();
        parsed.map_err(|error: network::NoRequestHost| {
            FieldError::new("network.mask_request_host", error)
        })
    }
}

impl From<network::NetworkPolicy> for NetworkPolicy {
    fn from(policy: network::NetworkPolicy) -> Self {
        Self {
            allow_internet_access: policy.allow_internet_access,
            allow_out: policy.allow_out.iter().map(ToString::to_string).collect(),
            deny_out: policy.deny_out.iter().map(ToString::to_string).collect(),
            rules: policy.rules.0.into_iter().map(shown).collect(),
            join: None,
            allow_public_traffic: policy.allow_public_traffic,
            public_ports: policy.public_ports,
            mask_request_host: policy.mask_request_host.map(|host| host.to_string()),
        }
    }
}

fn shown((host, rules): (HostPattern, Vec<Rule>)) -> (String, Vec<HeaderRule>) {
    let shown = |rule: Rule| {
        let headers = rule.transform.headers.into_iter();
        let headers = headers.map(|(name, value)| (name.to_string(), value.to_string())).collect();
        HeaderRule { transform: HeaderTransform { headers } }
    };
    (host.to_string(), rules.into_iter().map(shown).collect())
}

fn rules(given: &BTreeMap<String, Vec<HeaderRule>>) -> Result<HeaderRules, FieldError> {
    let rule = |rule: &HeaderRule| {
        let header = |(name, value): (&String, &String)| Ok((name.parse()?, value.parse()?));
        let headers = rule.transform.headers.iter().map(header).collect::<Result<_, _>>()?;
        Ok(Rule { transform: Transform { headers } })
    };
    let host = |(host, rules): (&String, &Vec<HeaderRule>)| {
        Ok((host.parse()?, rules.iter().map(rule).collect::<Result<_, _>>()?))
    };
    let wrong = |error: HeaderError| FieldError::new("network.rules", error);
    let rules = given.iter().map(host).collect::<Result<_, _>>().map(HeaderRules).map_err(wrong)?;
    rules.check().map_err(wrong)?;
    Ok(rules)
}

/// What a sandbox has reached, and what it was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NetworkLog {
    /// Oldest first.
    pub entries: Vec<NetworkLogEntry>,
    /// How many entries before these the reader has not seen and the log may no longer keep.
    pub missing: u64,
}

/// One connection, one exchange of datagrams, or one refusal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NetworkLogEntry {
    /// Which entry of this sandbox it is, from 1.
    pub number: u64,
    /// When it was written, in milliseconds since 1970.
    pub unix_ms: u64,
    /// What became of it.
    #[schema(value_type = FlowOutcome)]
    pub outcome: Word<FlowOutcome>,
    /// `tcp`, `udp` or `icmp`. A refused name counts as `udp`.
    pub protocol: String,
    /// The other end; null for a refused name.
    #[serde(default)]
    pub address: Option<String>,
    /// The other end's port; 0 for a ping, null for a refused name.
    #[serde(default)]
    pub port: Option<u16>,
    /// The name by which the sandbox knows the address, or which was refused.
    #[serde(default)]
    pub name: Option<String>,
    /// The rule that decided, or what went wrong.
    pub reason: String,
    /// Bytes that the sandbox sent; null for a refusal.
    #[serde(default)]
    pub bytes_out: Option<u64>,
    /// Bytes that it got; null for a refusal.
    #[serde(default)]
    pub bytes_in: Option<u64>,
    /// From the first packet to the end; null for a refusal.
    #[serde(default)]
    pub ms: Option<u64>,
    /// How often the same refusal came again; null if it is the first.
    #[serde(default)]
    pub repeated: Option<u64>,
}

fn entries<T: std::str::FromStr<Err = network::DestinationError>>(
    field: &'static str,
    texts: &[String],
) -> Result<Vec<T>, FieldError> {
    let parsed = texts.iter().map(|text| text.parse());
    parsed.collect::<Result<_, _>>().map_err(|error| FieldError::new(field, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_what_it_was_after_it_was_read_and_shown() {
        let text = r#"{"allow_out":["api.example.com:443","*.example.org","udp://203.0.113.0/24"],
            "deny_out":["198.51.100.7"],"rules":{"*.example.com":[{"transform":{"headers":
            {"authorization":"Bearer ${secrets.KEY}"}}}]},"allow_public_traffic":true,
            "public_ports":[8080],"mask_request_host":"localhost:${PORT}"}"#;
        let wire: NetworkPolicy = serde_json::from_str(text).unwrap();
        assert_eq!(NetworkPolicy::from(wire.check().unwrap()), wire);
    }

    #[test]
    fn networks_are_joined_without_a_word_about_the_rest() {
        let said = |text: &str| {
            let wire: NetworkPolicy = serde_json::from_str(text).unwrap();
            let policy = NetworkPolicy::check_if_said(Some(&wire)).unwrap();
            (policy.is_some(), wire.joined().unwrap().map(|names| names.len()))
        };
        assert_eq!(said("{}"), (true, None));
        assert_eq!(said(r#"{"join":[]}"#), (false, Some(0)));
        assert_eq!(said(r#"{"join":["team","lab","team"]}"#), (false, Some(2)));
        assert_eq!(said(r#"{"join":["team"],"deny_out":["192.0.2.0/24"]}"#), (true, Some(1)));
        let wrong: NetworkPolicy = serde_json::from_str(r#"{"join":["Team"]}"#).unwrap();
        assert_eq!(wrong.joined().unwrap_err().field, "network.join");
    }

    #[test]
    fn a_refusal_names_the_list_and_the_entry() {
        let refused = |text: &str| {
            let policy: NetworkPolicy = serde_json::from_str(text).unwrap();
            policy.check().unwrap_err()
        };
        let error = refused(r#"{"allow_out":["ok.example.com","not a name"]}"#);
        assert_eq!(error.field, "network.allow_out");
        assert!(error.to_string().contains("not a name"), "{error}");
        let error = refused(r#"{"deny_out":["example.com"]}"#);
        assert_eq!(error.field, "network.deny_out");
        assert!(error.to_string().contains("example.com"), "{error}");
        let error = refused(r#"{"mask_request_host":"a b"}"#);
        assert_eq!(error.field, "network.mask_request_host");
        for (rules, said) in [
            (r#"{"api.example.com:443":[]}"#, "`api.example.com:443`"),
            (r#"{"api.example.com":[]}"#, "`api.example.com`"),
            (r#"{"a.example":[{"transform":{"headers":{"Host":"x"}}}]}"#, "`Host`"),
            (r#"{"a.example":[{"transform":{"headers":{"X":"${env.X}"}}}]}"#, "`${env.X}`"),
        ] {
            let error = refused(&format!(r#"{{"rules":{rules}}}"#));
            assert_eq!(error.field, "network.rules");
            assert!(error.to_string().contains(said), "{error}");
        }
    }
}
