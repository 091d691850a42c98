//! Where a daemon is.

use std::fmt;
use std::path::PathBuf;

/// Where a daemon listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A Unix socket.
    Socket(PathBuf),
    /// A base URL such as `http://127.0.0.1:8889`.
    Url(String),
}

impl Target {
    /// What an address means: `unix:/path/of/the.sock`, else a base URL.
    #[must_use]
    pub fn at(address: &str) -> Self {
        match address.strip_prefix("unix:") {
            Some(path) => Self::Socket(path.into()),
            None => Self::Url(address.to_owned()),
        }
    }

    /// What the paths of routes are appended to.
    pub(crate) fn base(&self) -> String {
        match self {
            // The host is not used to connect; HTTP demands one.
            Self::Socket(_) => "http://localhost".to_owned(),
            Self::Url(url) => url.trim_end_matches('/').to_owned(),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path) => write!(f, "{}", path.display()),
            Self::Url(url) => f.write_str(url),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_socket_or_a_url() {
        let socket = Target::Socket("/run/forkd/forkd.sock".into());
        assert_eq!(Target::at("unix:/run/forkd/forkd.sock"), socket);
        let url = "https://host:8889";
        assert_eq!(Target::at(url), Target::Url(url.to_owned()));
    }
}
