//! Which port of which sandbox a request is for.

use std::num::NonZeroU16;

use axum::extract::Request;
use axum::http::header::HOST;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName};
use forkd_types::SandboxId;

use crate::preview_url::PreviewUrl;

/// Where a host cannot say it, these headers do; ours and those of E2B.
const SANDBOX: [HeaderName; 2] =
    [HeaderName::from_static("x-forkd-sandbox"), HeaderName::from_static("e2b-sandbox-id")];
const PORT: [HeaderName; 2] =
    [HeaderName::from_static("x-forkd-port"), HeaderName::from_static("e2b-sandbox-port")];

/// The port of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) sandbox: SandboxId,
    pub(super) port: NonZeroU16,
    pub(super) named: Named,
}

/// How a target is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Named {
    /// By a host of its own, which is an origin of its own.
    Host,
    /// By headers.
    Headers,
}

/// The port of a sandbox that a request is for. None for hosts that are not ours: a page whose
/// name was made to resolve to this machine comes under that name.
pub(super) fn target(url: &PreviewUrl, request: &Request) -> Option<Target> {
    let authority = authority(request)?;
    let host = authority.host().to_ascii_lowercase();
    let label = host.strip_suffix(url.domain()).and_then(|label| label.strip_suffix('.'));
    if let Some(label) = label {
        // The sandbox's id has a dash too.
        let (port, sandbox) = label.split_once('-')?;
        let (port, sandbox) = (port.parse().ok()?, sandbox.parse().ok()?);
        return Some(Target { sandbox, port, named: Named::Host });
    }
    let bare = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok();
    if !bare && host != "localhost" && host != url.domain() {
        return None;
    }
    let (sandbox, port) = (word(request.headers(), &SANDBOX), word(request.headers(), &PORT));
    let (sandbox, port) = (sandbox?.parse().ok()?, port?.parse().ok()?);
    Some(Target { sandbox, port, named: Named::Headers })
}

/// The host that a request is for, whatever version of HTTP says it.
pub(super) fn authority(request: &Request) -> Option<Authority> {
    if let Some(authority) = request.uri().authority() {
        return Some(authority.clone());
    }
    let mut hosts = request.headers().get_all(HOST).iter();
    match (hosts.next(), hosts.next()) {
        (Some(host), None) => host.to_str().ok()?.parse().ok(),
        _ => None,
    }
}

fn word<'a>(headers: &'a HeaderMap, names: &[HeaderName]) -> Option<&'a str> {
    names.iter().find_map(|name| headers.get(name))?.to_str().ok()
}

/// Takes out what is for us.
pub(super) fn strip(headers: &mut HeaderMap) {
    for name in SANDBOX.iter().chain(&PORT) {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;

    fn request(host: &str, headers: &[(&str, &str)]) -> Request {
        let mut request = Request::builder().uri("/x").header(HOST, host);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(Body::empty()).unwrap()
    }

    #[test]
    fn a_host_names_a_port_of_a_sandbox_below_the_domain_and_nowhere_else() {
        let url: PreviewUrl = "https://Preview.example.com".parse().unwrap();
        let sandbox: SandboxId = "sb-0123456789ab".parse().unwrap();
        let port = NonZeroU16::new(8080).unwrap();
        let host = url.host(&sandbox, port);
        assert_eq!(host, "8080-sb-0123456789ab.preview.example.com");
        let expected = Target { sandbox, port, named: Named::Host };
        for host in [&host, &host.to_uppercase(), &format!("{host}:8890")] {
            assert_eq!(target(&url, &request(host, &[])), Some(expected.clone()), "{host}");
        }
        for foreign in [
            "8080-sb-0123456789ab.example.com",
            "8080-sb-0123456789abpreview.example.com",
            "8080-sb-0123456789ab.preview.example.com.evil.example",
            "0-sb-0123456789ab.preview.example.com",
            "65536-sb-0123456789ab.preview.example.com",
            "8080-sb-0123456789.preview.example.com",
            "a.8080-sb-0123456789ab.preview.example.com",
            ".preview.example.com",
            "preview.example.com",
            "evil.example",
            "",
        ] {
            assert_eq!(target(&url, &request(foreign, &[])), None, "{foreign}");
        }
    }

    #[test]
    fn headers_name_it_where_a_host_cannot() {
        let url = PreviewUrl::local(8890);
        let ours = [("x-forkd-sandbox", "sb-0123456789ab"), ("x-forkd-port", "80")];
        let e2b = [("e2b-sandbox-id", "sb-0123456789ab"), ("E2B-Sandbox-Port", "80")];
        for headers in [&ours, &e2b] {
            for host in ["127.0.0.1:8890", "[::1]:8890", "localhost:8890", "localhost"] {
                let target = target(&url, &request(host, headers)).unwrap();
                assert_eq!((target.port.get(), target.named), (80, Named::Headers), "{host}");
            }
            assert_eq!(target(&url, &request("evil.example", headers)), None);
        }
        assert_eq!(target(&url, &request("127.0.0.1", &ours[..1])), None);
        let two = Request::builder().header(HOST, "127.0.0.1").header(HOST, "localhost");
        assert_eq!(target(&url, &two.body(Body::empty()).unwrap()), None);
    }
}
