//! The domain under which each port of a sandbox has a name: `3000-sb0123456789ab.DOMAIN`.

use std::fmt;
use std::str::FromStr;

/// A domain, with a port where it is not that of the scheme.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Domain {
    host: String,
    port: Option<u16>,
}

/// The text is no domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("write a domain, with a port if you like, such as sandboxes.example.com:8443")]
pub struct DomainError;

impl Domain {
    /// Names of this machine, which browsers and curl know without asking anybody.
    #[must_use]
    pub fn local(port: u16) -> Self {
        Self { host: "localhost".to_owned(), port: Some(port) }
    }

    /// What stands before this domain in a host, if it is below it. The port of the host is that
    /// of a proxy or of ours: it says nothing.
    pub(crate) fn label<'a>(&self, host: &'a str) -> Option<&'a str> {
        let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
        let cut = name.len().checked_sub(self.host.len() + 1)?;
        let (label, rest) = name.split_at_checked(cut)?;
        let is_below = rest.strip_prefix('.')?.eq_ignore_ascii_case(&self.host);
        (is_below && !label.contains('.')).then_some(label)
    }
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.host)?;
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

impl FromStr for Domain {
    type Err = DomainError;

    fn from_str(text: &str) -> Result<Self, DomainError> {
        let (host, port) = match text.split_once(':') {
            Some((host, port)) => (host, Some(port.parse().map_err(|_| DomainError)?)),
            None => (text, None),
        };
        let is_label = |word: &str| {
            (1..=63).contains(&word.len())
                && word.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
        };
        let last = host.rsplit('.').next().unwrap_or_default();
        // An address is no domain: nothing can be below it.
        let is_name = last.bytes().any(|b| b.is_ascii_alphabetic());
        if host.len() > 200 || !host.split('.').all(is_label) || !is_name || port == Some(0) {
            return Err(DomainError);
        }
        Ok(Self { host: host.to_ascii_lowercase(), port })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_below_the_domain_gives_its_label_and_no_other_does() {
        let domain: Domain = "Boxes.example.com:8443".parse().unwrap();
        assert_eq!(domain.to_string(), "boxes.example.com:8443");
        for host in ["80-a.boxes.example.com", "80-a.BOXES.example.com:1", "80-a.boxes.example.com"]
        {
            assert_eq!(domain.label(host), Some("80-a"), "{host}");
        }
        for other in [
            "boxes.example.com",
            "80-aboxes.example.com",
            "a.80-a.boxes.example.com",
            "80-a.boxes.example.com.evil.example",
            "80-a.example.com",
            "\u{e9}.example.com",
            "",
        ] {
            assert_eq!(domain.label(other), None, "{other}");
        }
    }

    #[test]
    fn what_is_no_domain_is_refused() {
        for bad in
            ["", ".", "a..b", "127.0.0.1", "a:0", "a:b", "a:70000", "https://a", "a/b", "a_b"]
        {
            assert_eq!(bad.parse::<Domain>(), Err(DomainError), "{bad}");
        }
        assert_eq!(Domain::local(80).to_string().parse(), Ok(Domain::local(80)));
    }
}
