//! To what a request goes: to the control interface, or to a port of a sandbox.
//!
//! ```text
//! both headers ............... that sandbox, that port
//! one of them ................ refused
//! host `<port>-<id>.domain` .. that sandbox, that port
//! /files with signature ...... the sandbox whose token gave the signature
//! else ....................... the control interface
//! ```
//!
//! Pure: looks at the head of a request and nothing else. Does not say whether the sandbox exists.

use std::num::NonZeroU16;

use axum::http::header::HOST;
use axum::http::{HeaderMap, Uri};
use forkd_types::SandboxId;

use crate::domain::Domain;
use crate::id;

/// The port that E2B's agent in the guest listens on. We answer in its place.
pub(crate) const ENVD_PORT: NonZeroU16 = NonZeroU16::new(49_983).unwrap();

const SANDBOX_ID: &str = "e2b-sandbox-id";
const SANDBOX_PORT: &str = "e2b-sandbox-port";

/// To what a request goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// The control interface.
    Control,
    /// A port of the sandbox that the client calls so.
    Port {
        /// As the client says it: an answer repeats it.
        said: String,
        /// The sandbox, if that is an id.
        id: Option<SandboxId>,
        /// The port.
        port: NonZeroU16,
    },
    /// The sandbox whose token has signed the query.
    Signed,
    /// Nothing: the client says half of it, or what is no port.
    Unclear(&'static str),
}

/// To what a request with this head goes.
pub(crate) fn of(uri: &Uri, headers: &HeaderMap, domain: &Domain) -> Target {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    match (text(SANDBOX_ID), text(SANDBOX_PORT)) {
        (Some(said), Some(port)) => return port_of(said, port),
        (Some(_), None) => return Target::Unclear("E2b-Sandbox-Port is missing"),
        (None, Some(_)) => return Target::Unclear("E2b-Sandbox-Id is missing"),
        (None, None) => {}
    }
    let host = text(HOST.as_str()).or_else(|| uri.host()).unwrap_or_default();
    if let Some((port, said)) = domain.label(host).and_then(parts) {
        return port_of(said, port);
    }
    match uri.path() == "/files" && is_signed(uri) {
        true => Target::Signed,
        false => Target::Control,
    }
}

fn port_of(said: &str, port: &str) -> Target {
    match port.parse() {
        Err(_) => Target::Unclear("E2b-Sandbox-Port is no port"),
        Ok(port) => Target::Port { said: said.to_owned(), id: id::said(said), port },
    }
}

/// In `49983-sb0123456789ab`, the port and the id.
fn parts(label: &str) -> Option<(&str, &str)> {
    let (port, said) = label.split_once('-')?;
    let is_port = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
    (is_port && id::said(said).is_some()).then_some((port, said))
}

fn is_signed(uri: &Uri) -> bool {
    let query = uri.query().unwrap_or_default();
    form_urlencoded::parse(query.as_bytes()).any(|(name, _)| name == "signature")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "sb0123456789ab";

    fn target(uri: &str, headers: &[(&'static str, &str)]) -> Target {
        let headers = headers.iter().map(|(name, value)| {
            (axum::http::HeaderName::from_static(name), value.parse().unwrap())
        });
        let domain = "e2b.test:8443".parse().unwrap();
        of(&uri.parse().unwrap(), &headers.collect(), &domain)
    }

    fn port(port: u16) -> Target {
        let id = Some("sb-0123456789ab".parse().unwrap());
        Target::Port { said: ID.to_owned(), id, port: NonZeroU16::new(port).unwrap() }
    }

    #[test]
    fn headers_decide_before_the_path_and_the_host() {
        let headers =
            [(SANDBOX_ID, ID), (SANDBOX_PORT, "49983"), ("host", "3000-sbffffffffffff.e2b.test")];
        for path in ["/health", "/sandboxes", "/files?signature=v1_x"] {
            assert_eq!(target(path, &headers), port(ENVD_PORT.get()), "{path}");
        }
    }

    #[test]
    fn half_of_the_headers_is_refused_and_not_guessed() {
        for headers in [[(SANDBOX_ID, ID)], [(SANDBOX_PORT, "49983")]] {
            assert!(matches!(target("/health", &headers), Target::Unclear(_)));
        }
        for bad in ["0", "x", "65536", "-1"] {
            let headers = [(SANDBOX_ID, ID), (SANDBOX_PORT, bad)];
            assert!(matches!(target("/", &headers), Target::Unclear(_)), "{bad}");
        }
    }

    #[test]
    fn an_id_that_is_none_of_ours_still_goes_to_the_side_of_sandboxes() {
        let headers = [(SANDBOX_ID, "nobody"), (SANDBOX_PORT, "1")];
        let port = NonZeroU16::MIN;
        let expected = Target::Port { said: "nobody".to_owned(), id: None, port };
        assert_eq!(target("/v2/sandboxes", &headers), expected);
    }

    #[test]
    fn a_host_label_names_port_and_sandbox_and_other_hosts_do_not() {
        let host = |host| target("/x", &[("host", host)]);
        assert_eq!(host("3000-sb0123456789ab.e2b.test:8443"), port(3000));
        for other in [
            "localhost",
            "127.0.0.1:3000",
            "api.e2b.test",
            "a-sb0123456789ab.e2b.test",
            "3000-sb0123456789ab.other.test",
        ] {
            assert_eq!(host(other), Target::Control, "{other}");
        }
    }

    #[test]
    fn only_files_with_a_signature_are_looked_up_by_it() {
        assert_eq!(target("/files?path=a&signature=v1_b", &[]), Target::Signed);
        for path in ["/files", "/files?path=signature", "/sandboxes?signature=v1_b"] {
            assert_eq!(target(path, &[]), Target::Control, "{path}");
        }
    }
}
