//! Rules of a policy: per host, headers that the gateway sets in every request to it.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::error::DestinationError;
use super::header::{HeaderError, HeaderName, HeaderTemplate, SecretName, wrong};
use super::name::DomainName;
use crate::text::as_text;

/// Hosts with rules in one policy.
pub const RULE_HOSTS_MAX: usize = 64;
/// Headers for one host.
pub const RULE_HEADERS_MAX: usize = 32;
/// Bytes of all names and values in the rules of one policy, which travels in one packet.
const RULES_BYTES_MAX: usize = 16 << 10;

/// The hosts that a rule is for: `api.example.com`, or `*.example.com` for the names below it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum HostPattern {
    /// One name.
    Name(DomainName),
    /// All names below it, not itself.
    Below(DomainName),
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(f, "{name}"),
            Self::Below(parent) => write!(f, "*.{parent}"),
        }
    }
}

impl FromStr for HostPattern {
    type Err = HeaderError;

    fn from_str(value: &str) -> Result<Self, HeaderError> {
        let made = match value.strip_prefix("*.") {
            Some(parent) => parent.parse().map(Self::Below),
            None => value.parse().map(Self::Name),
        };
        made.map_err(|_: DestinationError| {
            wrong(value, "write a host such as `api.example.com`, or `*.example.com`, without port")
        })
    }
}

as_text!(HostPattern, HeaderError);

/// One change to the requests to a host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// What it changes.
    pub transform: Transform,
}

/// What is changed in a request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Transform {
    /// Headers that replace the guest's own.
    pub headers: BTreeMap<HeaderName, HeaderTemplate>,
}

/// All rules of a policy, by host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HeaderRules(pub BTreeMap<HostPattern, Vec<Rule>>);

impl HeaderRules {
    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The rules for a host, with what they are for. A name comes before `*.name`, and among those
    /// the longest.
    #[must_use]
    pub fn of(&self, host: &DomainName) -> Option<(&HostPattern, &[Rule])> {
        let found = |pattern: HostPattern| self.0.get_key_value(&pattern);
        let labels = host.as_str().match_indices('.').map(|(at, _)| &host.as_str()[at + 1..]);
        let parents = labels.filter_map(|parent| parent.parse().ok()).map(HostPattern::Below);
        let (pattern, rules) =
            std::iter::once(HostPattern::Name(host.clone())).chain(parents).find_map(found)?;
        Some((pattern, rules))
    }

    /// All headers, by host.
    pub fn headers(&self) -> impl Iterator<Item = (&HostPattern, &HeaderName, &HeaderTemplate)> {
        self.0.iter().flat_map(|(host, rules)| {
            let headers = rules.iter().flat_map(|rule| &rule.transform.headers);
            headers.map(move |(name, value)| (host, name, value))
        })
    }

    /// The secrets that the rules name.
    pub fn secrets(&self) -> impl Iterator<Item = &SecretName> {
        self.headers().flat_map(|(_, _, value)| value.secrets())
    }

    /// Checks how much there is of it.
    ///
    /// # Errors
    /// Names what is too much, or a host without headers.
    pub fn check(&self) -> Result<(), HeaderError> {
        if self.0.len() > RULE_HOSTS_MAX {
            let entry = format!("rules for {} hosts", self.0.len());
            return Err(wrong(&entry, format!("{RULE_HOSTS_MAX} is the limit: use `*.name`")));
        }
        for (host, rules) in &self.0 {
            let headers = rules.iter().map(|rule| rule.transform.headers.len());
            if !(1..=RULE_HEADERS_MAX).contains(&headers.clone().sum()) || headers.min() == Some(0)
            {
                let remedy =
                    format!("each rule sets a header, and a host has at most {RULE_HEADERS_MAX}");
                return Err(wrong(&host.to_string(), remedy));
            }
        }
        let mut bytes = self.0.keys().map(|host| host.to_string().len()).sum::<usize>();
        for (_, name, value) in self.headers() {
            bytes += name.as_str().len() + value.to_string().len();
            if bytes > RULES_BYTES_MAX {
                let remedy = format!("all rules together have at most {RULES_BYTES_MAX} bytes");
                return Err(wrong(name.as_str(), remedy));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(hosts: &[&str], headers: usize, value: &str) -> HeaderRules {
        let header = |n| (format!("x-{n}").parse().unwrap(), value.parse().unwrap());
        let transform = Transform { headers: (0..headers).map(header).collect() };
        let rules = vec![Rule { transform }];
        HeaderRules(hosts.iter().map(|host| (host.parse().unwrap(), rules.clone())).collect())
    }

    #[test]
    fn the_nearest_rule_counts() {
        let rules = rules(&["a.example.com", "*.example.com", "*.b.example.com", "*.com"], 1, "x");
        for (host, pattern) in [
            ("a.example.com", Some("a.example.com")),
            ("c.example.com", Some("*.example.com")),
            ("x.a.example.com", Some("*.example.com")),
            ("x.b.example.com", Some("*.b.example.com")),
            ("b.example.com", Some("*.example.com")),
            ("example.com", Some("*.com")),
            ("com", None),
            ("aexample.org", None),
        ] {
            let found = rules.of(&host.parse().unwrap()).map(|(pattern, _)| pattern.to_string());
            assert_eq!(found.as_deref(), pattern, "{host}");
        }
        for host in ["", "a.example.com:443", "*", "*example.com", "203.0.113.7", "a b"] {
            let error = host.parse::<HostPattern>().unwrap_err();
            assert!(error.to_string().contains("without port"), "{host}: {error}");
        }
    }

    #[test]
    fn rules_are_bounded_and_the_error_names_the_entry() {
        rules(&["a.example"], RULE_HEADERS_MAX, "x").check().unwrap();
        for (rules, said) in [
            (rules(&["a.example"], RULE_HEADERS_MAX + 1, "x"), "`a.example`"),
            (rules(&["a.example"], 0, "x"), "`a.example`"),
            (rules(&["a.example"], 5, &"x".repeat(4000)), "`x-4`"),
        ] {
            let error = rules.check().unwrap_err();
            assert!(error.to_string().contains(said), "{error}");
        }
        let hosts: Vec<String> = (0..=RULE_HOSTS_MAX).map(|n| format!("h{n}.example")).collect();
        let hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
        let error = rules(&hosts, 1, "x").check().unwrap_err();
        assert!(error.to_string().contains("rules for 65 hosts"), "{error}");
        let none = HeaderRules([("a.example".parse().unwrap(), Vec::new())].into());
        assert!(none.check().is_err());
    }
}
