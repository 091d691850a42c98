//! Where previews are, as clients see it.

use std::fmt::Display;
use std::num::NonZeroU16;
use std::str::FromStr;

use axum::http::uri::{Scheme, Uri};
use forkd_types::SandboxId;

/// The token, in the query of an address that is opened first.
pub(crate) const TOKEN_PARAMETER: &str = "forkd_token";

/// Where previews are: each has a host below this one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreviewUrl {
    scheme: Scheme,
    domain: String,
    port: Option<u16>,
}

/// The text names no place for previews.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("write a scheme and a host, with a port if you like, such as https://preview.example.com")]
pub struct PreviewUrlError;

impl FromStr for PreviewUrl {
    type Err = PreviewUrlError;

    fn from_str(text: &str) -> Result<Self, PreviewUrlError> {
        let uri: Uri = text.parse().map_err(|_| PreviewUrlError)?;
        let bare = uri.path_and_query().is_none_or(|path| path.as_str() == "/");
        let scheme = uri.scheme().filter(|it| **it == Scheme::HTTP || **it == Scheme::HTTPS);
        let (Some(scheme), Some(authority), true) = (scheme, uri.authority(), bare) else {
            return Err(PreviewUrlError);
        };
        let domain = authority.host().to_ascii_lowercase();
        let mut words = domain.split('.');
        let is_name = words.clone().all(is_label)
            && words
                .next_back()
                .is_some_and(|word| word.contains(|c: char| c.is_ascii_alphabetic()));
        if !is_name || authority.as_str().contains('@') {
            return Err(PreviewUrlError);
        }
        Ok(Self { scheme: scheme.clone(), domain, port: authority.port_u16() })
    }
}

fn is_label(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

impl PreviewUrl {
    /// On this machine, at a port.
    #[must_use]
    pub fn local(port: u16) -> Self {
        Self { scheme: Scheme::HTTP, domain: "localhost".to_owned(), port: Some(port) }
    }

    pub(crate) fn scheme(&self) -> &Scheme {
        &self.scheme
    }

    pub(crate) fn is_https(&self) -> bool {
        self.scheme == Scheme::HTTPS
    }

    /// The host of a port, with the port of previews.
    pub(crate) fn host(&self, sandbox: &SandboxId, port: impl Display) -> String {
        format!("{port}-{sandbox}.{}", self.authority())
    }

    /// The address of a sandbox's ports, with `{port}` in place of a port.
    pub(crate) fn template(&self, sandbox: &SandboxId) -> String {
        format!("{}://{}", self.scheme, self.host(sandbox, "{port}"))
    }

    /// The address of a port, with a token.
    pub(crate) fn url(&self, sandbox: &SandboxId, port: NonZeroU16, token: &str) -> String {
        format!("{}://{}/?{TOKEN_PARAMETER}={token}", self.scheme, self.host(sandbox, port))
    }

    /// The host.
    pub(crate) fn domain(&self) -> &str {
        &self.domain
    }

    fn authority(&self) -> String {
        match self.port {
            Some(port) => format!("{}:{port}", self.domain),
            None => self.domain.clone(),
        }
    }
}

impl Display for PreviewUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}://{}", self.scheme, self.authority())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_for_previews_is_a_scheme_and_a_name() {
        for good in ["http://localhost:8890", "https://p.example.com", "http://a-b.c/"] {
            let url: PreviewUrl = good.parse().unwrap();
            assert_eq!(url.to_string(), good.trim_end_matches('/'));
        }
        for bad in [
            "localhost:8890",
            "ftp://p.example.com",
            "https://p.example.com/x",
            "https://127.0.0.1",
            "https://[::1]",
            "https://u@p.example.com",
            "https://",
            "",
        ] {
            assert_eq!(bad.parse::<PreviewUrl>(), Err(PreviewUrlError), "{bad}");
        }
    }
}
