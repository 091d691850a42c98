//! What a sandbox may reach, in E2B's words.

use axum::http::StatusCode;
use forkd_types::network::{HeaderRules, NetworkPolicy};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::asked::{Asked, Body, Said, to_the_end};
use crate::failure::Failure;

/// What a client wants. Each field is done or refused.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct NetworkWish {
    /// Addresses, ranges of them, and names. What is allowed is not denied.
    allow_out: Option<Vec<String>>,
    /// Addresses and ranges of them.
    deny_out: Option<Vec<String>>,
    /// Whether everybody who knows the address of a server may reach it; `true` by itself.
    allow_public_traffic: Option<bool>,
    #[serde(rename = "allow_internet_access")]
    allow_internet_access: Option<bool>,
    /// forkd does not do this: more than an empty list is refused.
    dns_servers: Option<Value>,
    /// forkd does not do this: more than an empty object is refused.
    egress_proxy: Option<Value>,
    /// The host that servers are told; `${PORT}` in it is their port.
    mask_request_host: Option<String>,
    /// forkd does not do this: more than an empty list is refused.
    https_ports: Option<Value>,
    /// forkd does not do this: more than an empty object is refused.
    rules: Option<Value>,
}

/// What a sandbox may reach.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Network)]
pub(super) struct NetworkShown {
    allow_out: Vec<String>,
    deny_out: Vec<String>,
    /// Whether everybody who knows the address of a server may reach it.
    allow_public_traffic: bool,
    /// The host that servers are told.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    mask_request_host: Option<String>,
    /// Headers in requests to some hosts. A secret is named, not told.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>, nullable = false)]
    rules: Option<Value>,
}

fn is_given(value: &Option<Value>) -> bool {
    match value {
        None | Some(Value::Null) => false,
        Some(Value::Array(all)) => !all.is_empty(),
        Some(Value::Object(all)) => !all.is_empty(),
        Some(_) => true,
    }
}

impl NetworkWish {
    /// Whether everybody who knows the address of a server may reach it: E2B's default.
    pub(super) fn is_public(&self) -> bool {
        self.allow_public_traffic.unwrap_or(true)
    }
}

/// The policy that is wanted; none if nothing is.
pub(super) fn policy_of(
    allow_internet_access: Option<bool>,
    wish: Option<&NetworkWish>,
) -> Result<Option<NetworkPolicy>, Failure> {
    let Some(wish) = wish else {
        let allow =
            |allow| NetworkPolicy { allow_internet_access: Some(allow), ..Default::default() };
        // Clients send `true` by themselves: it is then what the daemon's default is.
        return Ok(allow_internet_access.filter(|allow| !allow).map(allow));
    };
    let refused = [
        ("network.dnsServers", &wish.dns_servers),
        ("network.egressProxy", &wish.egress_proxy),
        ("network.httpsPorts", &wish.https_ports),
    ];
    if let Some((name, _)) = refused.iter().find(|(_, value)| is_given(value)) {
        return Err(Failure::not_done(name));
    }
    let mut policy = NetworkPolicy {
        allow_internet_access: allow_internet_access.filter(|allow| !allow),
        allow_public_traffic: wish.allow_public_traffic.unwrap_or(false),
        rules: rules_of(wish.rules.as_ref().filter(|_| is_given(&wish.rules)))?,
        ..NetworkPolicy::default()
    };
    if let Some(host) = wish.mask_request_host.as_deref().filter(|host| !host.is_empty()) {
        let wrong = |error: forkd_types::network::NoRequestHost| {
            Failure::field("network.maskRequestHost", &error.to_string())
        };
        policy.mask_request_host = Some(host.parse().map_err(wrong)?);
    }
    for entry in wish.allow_out.iter().flatten() {
        let wrong = |error: forkd_types::network::DestinationError| {
            Failure::field("network.allowOut", &error.to_string())
        };
        policy.allow_out.push(entry.parse().map_err(wrong)?);
    }
    // E2B denies what its list of denials names, and allows the rest.
    if !policy.allow_out.is_empty() && policy.allow_internet_access.is_none() {
        policy.allow_internet_access = Some(true);
    }
    for entry in wish.deny_out.iter().flatten() {
        let wrong = |error: forkd_types::network::DestinationError| {
            Failure::field("network.denyOut", &error.to_string())
        };
        policy.deny_out.push(entry.parse().map_err(wrong)?);
    }
    Ok(Some(policy))
}

/// Where a rule wants the value of a secret, in E2B's words and in ours.
const SECRET: (&str, &str) = ("${e2b.secrets.", "${secrets.");

/// Headers for requests to some hosts: written as ours are, but for the word for secrets.
fn rules_of(said: Option<&Value>) -> Result<HeaderRules, Failure> {
    let Some(said) = said else { return Ok(HeaderRules::default()) };
    let text = said.to_string().replace(SECRET.0, SECRET.1);
    let wrong = |problem: String| Failure::field("network.rules", &problem);
    let rules: HeaderRules = serde_json::from_str(&text).map_err(|it| wrong(it.to_string()))?;
    rules.check().map_err(|error| wrong(error.to_string()))?;
    Ok(rules)
}

/// The same as clients have said it, if there is any.
fn shown_rules(rules: &HeaderRules) -> Option<Value> {
    let text = json!(rules).to_string().replace(SECRET.1, SECRET.0);
    serde_json::from_str(&text).ok().filter(|_| !rules.is_empty())
}

/// What a sandbox may reach, as it is shown. What E2B has no word for is left out.
pub(super) fn shown(policy: &NetworkPolicy, is_public: bool) -> NetworkShown {
    NetworkShown {
        allow_out: policy.allow_out.iter().map(ToString::to_string).collect(),
        deny_out: policy.deny_out.iter().map(ToString::to_string).collect(),
        allow_public_traffic: is_public,
        mask_request_host: policy.mask_request_host.as_ref().map(ToString::to_string),
        rules: shown_rules(&policy.rules),
    }
}

/// Replaces the policy; what is left out is cleared.
pub(super) async fn replace(
    asked: Asked,
    axum::extract::Path(said): Said,
    Body(wish): Body<NetworkWish>,
) -> Result<StatusCode, Failure> {
    let sandbox = asked.sandbox(&said)?;
    let policy = policy_of(wish.allow_internet_access, Some(&wish))?.unwrap_or_default();
    let engine = asked.engine.clone();
    to_the_end(async move { engine.set_network(&sandbox.id, policy, None).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_policy_is_shown_in_the_words_in_which_it_was_said() {
        let said = json!({
            "allowOut": ["1.1.1.1", "example.com"], "denyOut": ["0.0.0.0/0"],
            "allowPublicTraffic": false, "maskRequestHost": "here:${PORT}",
            "rules": {"api.example.com": [
                {"transform": {"headers": {"authorization": "Bearer ${e2b.secrets.KEY}"}}},
            ]},
        });
        let policy = policy(None, Some(said.clone())).unwrap().unwrap();
        assert_eq!(json!(shown(&policy, false)), said);
        let secrets: Vec<_> = policy.rules.secrets().map(ToString::to_string).collect();
        assert_eq!(secrets, ["KEY"], "it is a secret of this daemon's");
    }

    fn policy(access: Option<bool>, wish: Option<Value>) -> Result<Option<NetworkPolicy>, Failure> {
        let wish = wish.map(|wish| serde_json::from_value::<NetworkWish>(wish).unwrap());
        policy_of(access, wish.as_ref())
    }

    #[test]
    fn a_user_who_denies_the_internet_does_not_get_it() {
        let closed = policy(Some(false), None).unwrap().unwrap();
        assert!(!closed.allows_by_default());
        let with_list = policy(Some(false), Some(json!({"denyOut": ["10.0.0.0/8"]})));
        assert!(!with_list.unwrap().unwrap().allows_by_default());
        let all = policy(None, Some(json!({"denyOut": ["0.0.0.0/0"], "allowOut": ["1.1.1.1"]})));
        assert!(all.unwrap().unwrap().is_list());
        assert_eq!(policy(Some(true), None).unwrap(), None);
        assert_eq!(policy(None, None).unwrap(), None);
    }

    #[test]
    fn what_cannot_be_done_is_refused_and_not_passed_over() {
        for (field, value) in [
            ("dnsServers", json!(["1.1.1.1"])),
            ("egressProxy", json!({"address": "a:1"})),
            ("httpsPorts", json!([443])),
        ] {
            let failure = policy(None, Some(json!({field: value}))).unwrap_err();
            assert!(failure.to_string().contains(field), "{failure}");
        }
        for (field, value) in [
            ("denyOut", json!(["no such thing"])),
            ("maskRequestHost", json!("a b")),
            ("rules", json!({"example.com": []})),
            ("rules", json!({"example.com": [{"transform": {"headers": {"a b": "c"}}}]})),
            ("rules", json!({"example.com": [{"block": true}]})),
        ] {
            let failure = policy(None, Some(json!({field: value}))).unwrap_err();
            assert!(failure.to_string().contains(&format!("network.{field}")), "{failure}");
        }
    }
}
