//! The host that servers in a sandbox are told.

use std::fmt;
use std::num::NonZeroU16;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::id::shown;
use crate::text::as_text;

/// What stands for the server's port.
const PORT: &str = "${PORT}";
/// As many bytes as a name and a port have at most.
const HOST_BYTES_MAX: usize = 260;

/// The `Host` of requests to a server, in place of the one that the client has asked for:
/// `localhost:${PORT}`. Servers for development often answer nothing else.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RequestHost(String);

/// The text names no host.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no host: write a name or an address, with a port if you like; `${{PORT}}` stands \
     for the server's"
)]
pub struct NoRequestHost(String);

impl RequestHost {
    /// The host for a server at `port`.
    #[must_use]
    pub fn at(&self, port: NonZeroU16) -> String {
        self.0.replace(PORT, &port.to_string())
    }
}

impl fmt::Display for RequestHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for RequestHost {
    type Err = NoRequestHost;

    fn from_str(value: &str) -> Result<Self, NoRequestHost> {
        let longest = Self(value.to_owned()).at(NonZeroU16::MAX);
        if longest.len() <= HOST_BYTES_MAX && is_host(&longest) {
            Ok(Self(value.to_owned()))
        } else {
            Err(NoRequestHost(shown(value)))
        }
    }
}

fn is_host(text: &str) -> bool {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    };
    let is_name = |name: &str| {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
        !name.is_empty() && name.bytes().all(allowed)
    };
    let is_address = |host: &str| {
        let inside = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        inside.is_some_and(|inside| inside.parse::<std::net::Ipv6Addr>().is_ok())
    };
    let is_port = |port: &str| port.parse::<NonZeroU16>().is_ok() && !port.starts_with('+');
    (is_name(host) || is_address(host)) && port.is_none_or(is_port)
}

as_text!(RequestHost, NoRequestHost);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_stands_where_it_is_asked_for() {
        let port = NonZeroU16::new(8080).unwrap();
        for (text, host) in [
            ("localhost:${PORT}", "localhost:8080"),
            ("app-${PORT}.example.com", "app-8080.example.com"),
            ("api.example.com", "api.example.com"),
            ("127.0.0.1:3000", "127.0.0.1:3000"),
            ("[::1]:${PORT}", "[::1]:8080"),
            ("[::1]", "[::1]"),
        ] {
            let parsed: RequestHost = text.parse().unwrap();
            assert_eq!((parsed.at(port), parsed.to_string()), (host.to_owned(), text.to_owned()));
        }
    }

    #[test]
    fn what_is_no_host_is_refused() {
        let long = "a".repeat(HOST_BYTES_MAX + 1);
        for text in [
            "",
            ":80",
            "a:b",
            "a:0",
            "a:+1",
            "a:65536",
            "a b",
            "a/b",
            "a\r\nx: y",
            "u@a",
            "${HOST}",
            "::1",
            "[::1",
            "[a]",
            "${PORT}${PORT}:${PORT}${PORT}",
            &long,
        ] {
            assert!(text.parse::<RequestHost>().is_err(), "{text}");
        }
    }
}
