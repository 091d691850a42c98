//! What one sandbox may reach, and who may reach it.

use std::num::NonZeroU16;

use serde::{Deserialize, Serialize};

use super::address::AddressRange;
use super::destination::Destination;
use super::header::HeaderError;
use super::leave::NetworkLeave;
use super::request_host::RequestHost;
use super::rule::HeaderRules;

/// Entries of one list of a policy.
pub const NETWORK_ENTRIES_MAX: usize = 256;

/// Why a policy cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// One list is too long.
    #[error(
        "`{list}` has {entries} entries, but {NETWORK_ENTRIES_MAX} is the limit: use {}",
        if *list == "public_ports" { "`allow_public_traffic`" } else { "ranges or `*.name`" }
    )]
    TooMany {
        /// Its field.
        list: &'static str,
        /// How many it has.
        entries: usize,
    },
    /// The rules are too much.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// The operator forbids it.
    #[error("the operator does not permit `{entry}`: it needs `forkd serve --network {needs}`")]
    NotPermitted {
        /// The entry, or the field.
        entry: String,
        /// The least leave that permits it.
        needs: NetworkLeave,
    },
}

/// What one sandbox may reach, and who may reach it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NetworkPolicy {
    /// What holds for destinations that no list names. Absent: true without `allow_out`, else
    /// false.
    pub allow_internet_access: Option<bool>,
    /// What is allowed, whatever the other fields say.
    pub allow_out: Vec<Destination>,
    /// What is denied unless `allow_out` names it.
    pub deny_out: Vec<AddressRange>,
    /// Headers that the gateway sets in requests to some hosts. They allow nothing.
    pub rules: HeaderRules,
    /// Whether previews of all its ports need no token.
    pub allow_public_traffic: bool,
    /// Ports whose previews need no token.
    pub public_ports: Vec<NonZeroU16>,
    /// The host that its servers are told in requests of previews.
    pub mask_request_host: Option<RequestHost>,
}

impl NetworkPolicy {
    /// A policy that lets nothing out.
    #[must_use]
    pub fn closed() -> Self {
        Self { allow_internet_access: Some(false), ..Self::default() }
    }

    /// What holds for destinations that no list names.
    #[must_use]
    pub fn allows_by_default(&self) -> bool {
        self.allow_internet_access.unwrap_or(self.allow_out.is_empty())
    }

    /// Whether only what `allow_out` names can be reached. Then the resolver answers for its names
    /// alone. `0.0.0.0/0` in `deny_out` stands for all addresses, those of IPv6 too.
    #[must_use]
    pub fn is_list(&self) -> bool {
        !self.allows_by_default() || self.deny_out.iter().any(AddressRange::is_everything)
    }

    /// Whether a preview of the port needs no token.
    #[must_use]
    pub fn is_public(&self, port: NonZeroU16) -> bool {
        self.allow_public_traffic || self.public_ports.contains(&port)
    }

    /// Checks the policy against what the operator permits.
    ///
    /// # Errors
    /// Names the first entry that is too much.
    pub fn check(&self, leave: NetworkLeave) -> Result<(), PolicyError> {
        self.rules.check()?;
        for (list, entries) in [
            ("allow_out", self.allow_out.len()),
            ("deny_out", self.deny_out.len()),
            ("public_ports", self.public_ports.len()),
        ] {
            if entries > NETWORK_ENTRIES_MAX {
                return Err(PolicyError::TooMany { list, entries });
            }
        }
        if leave == NetworkLeave::None && self.allow_internet_access == Some(true) {
            let entry = "allow_internet_access: true".to_owned();
            return Err(PolicyError::NotPermitted { entry, needs: NetworkLeave::Public });
        }
        for entry in &self.allow_out {
            let needs = entry.needs();
            if leave < needs {
                return Err(PolicyError::NotPermitted { entry: entry.to_string(), needs });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_open_without_a_list_and_closed_with_one() {
        let policy = |allow_internet_access, allow_out: &[&str], deny_out: &[&str]| NetworkPolicy {
            allow_internet_access,
            allow_out: allow_out.iter().map(|entry| entry.parse().unwrap()).collect(),
            deny_out: deny_out.iter().map(|entry| entry.parse().unwrap()).collect(),
            ..NetworkPolicy::default()
        };
        for (made, is_list) in [
            (policy(None, &[], &[]), false),
            (policy(None, &["a.example"], &[]), true),
            (policy(Some(true), &["a.example"], &[]), false),
            (policy(Some(true), &["a.example"], &["0.0.0.0/0"]), true),
            (policy(None, &[], &["198.51.100.0/24"]), false),
            (NetworkPolicy::closed(), true),
        ] {
            assert_eq!(made.is_list(), is_list, "{made:?}");
        }
    }

    #[test]
    fn the_operator_has_the_last_word() {
        let policy = |entry: &str| NetworkPolicy {
            allow_out: vec![entry.parse().unwrap()],
            ..NetworkPolicy::default()
        };
        for (entry, needs) in [
            ("a.example", NetworkLeave::Public),
            ("0.0.0.0/0", NetworkLeave::Public),
            ("10.1.0.0/16", NetworkLeave::Any),
            ("fd00::/8", NetworkLeave::Any),
            ("host:5432", NetworkLeave::Any),
        ] {
            for leave in [NetworkLeave::None, NetworkLeave::Public, NetworkLeave::Any] {
                let checked = policy(entry).check(leave);
                assert_eq!(checked.is_ok(), leave >= needs, "{entry} under {leave}");
            }
        }
        let open = NetworkPolicy { allow_internet_access: Some(true), ..NetworkPolicy::default() };
        assert!(open.check(NetworkLeave::None).is_err());
        NetworkPolicy::default().check(NetworkLeave::None).unwrap();
        let mut long = policy("a.example");
        long.allow_out = vec![long.allow_out[0].clone(); NETWORK_ENTRIES_MAX + 1];
        let error = long.check(NetworkLeave::Any).unwrap_err();
        assert!(error.to_string().contains("`allow_out` has 257 entries"), "{error}");
        let public_ports = vec![NonZeroU16::MIN; NETWORK_ENTRIES_MAX + 1];
        let long = NetworkPolicy { public_ports, ..NetworkPolicy::default() };
        let error = long.check(NetworkLeave::Any).unwrap_err();
        assert!(error.to_string().contains("use `allow_public_traffic`"), "{error}");
    }

    #[test]
    fn a_policy_is_plain_json() {
        let text = concat!(
            r#"{"allow_internet_access":null,"allow_out":["*.example.org:443"],"#,
            r#""deny_out":["198.51.100.0/24"],"rules":{"api.example.org":[{"transform":"#,
            r#"{"headers":{"authorization":"Bearer ${secrets.KEY}"}}}]},"#,
            r#""allow_public_traffic":false,"public_ports":[8080],"#,
            r#""mask_request_host":"localhost:${PORT}"}"#
        );
        let policy: NetworkPolicy = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&policy).unwrap(), text);
        let error = serde_json::from_str::<NetworkPolicy>(r#"{"deny_out":["a.example"]}"#);
        assert!(error.unwrap_err().to_string().contains("denies nothing"));
    }
}
