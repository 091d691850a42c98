//! Makes programs in a template trust the gateway's certificates, before any of them runs: a
//! program that runs has read what it trusts before it is forked.
//!
//! The gateway's certificate is added to the image's bundle, and variables that name the bundle are
//! set for every program that the guest agent starts, because clients differ in what they read. An
//! image without a bundle gets this host's, so that programs which bring their own lose nothing by
//! the variables.

use std::fmt::Write as _;
use std::fs;
use std::time::Duration;

use forkd_protocol::GATEWAY_ENVIRONMENT;

use super::Lifecycle;
use crate::guest::{FileWrite, GuestAgent, GuestError};

/// Where distributions keep certificates of authorities, in one file. The first one is Debian's.
const BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
/// From here Debian makes its bundle again.
const LOCAL: &str = "/usr/local/share/ca-certificates/forkd-gateway.crt";
/// The certificate alone.
const CERTIFICATE: &str = "/etc/forkd/gateway-ca.pem";
/// Read by OpenSSL, Python's requests, curl, git, pip, cargo and the AWS clients.
const NAMING_BUNDLE: [&str; 7] = [
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "PIP_CERT",
    "CARGO_HTTP_CAINFO",
    "AWS_CA_BUNDLE",
];
/// Read by Node, beside its own.
const NAMING_CERTIFICATE: &str = "NODE_EXTRA_CA_CERTS";

const DEADLINE: Duration = Duration::from_secs(30);

impl Lifecycle {
    /// Gives the fingerprint of the certificate that the guest trusts from now on; none if that
    /// could not be done, which the log tells.
    pub(super) async fn make_trusted(&self, agent: &GuestAgent) -> Option<String> {
        let authority = &self.networks.authority;
        match add(agent, authority.certificate()).await {
            Ok(()) => Some(authority.fingerprint().to_owned()),
            Err(error) => {
                tracing::warn!(%error, "the template does not trust the network gateway");
                None
            }
        }
    }
}

async fn add(agent: &GuestAgent, certificate: &str) -> Result<(), GuestError> {
    let mut found = None;
    for path in BUNDLES {
        match agent.read_file(path, DEADLINE).await {
            Ok(bundle) => {
                found = Some((path, bundle));
                break;
            }
            Err(GuestError::Remote { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    let of_host = || BUNDLES.iter().find_map(|path| fs::read(path).ok());
    let (path, mut bundle) = found.unwrap_or_else(|| (BUNDLES[0], of_host().unwrap_or_default()));
    if bundle.last().is_some_and(|last| *last != b'\n') {
        bundle.push(b'\n');
    }
    bundle.extend_from_slice(certificate.as_bytes());
    let mut variables = String::new();
    for name in NAMING_BUNDLE {
        writeln!(variables, "{name}={path}").ok();
    }
    writeln!(variables, "{NAMING_CERTIFICATE}={CERTIFICATE}").ok();
    for (path, content) in [
        (CERTIFICATE, certificate.as_bytes().to_vec()),
        (LOCAL, certificate.as_bytes().to_vec()),
        (path, bundle),
        (GATEWAY_ENVIRONMENT, variables.into_bytes()),
    ] {
        let file = FileWrite { create_parents: true, mode: Some(0o644), ..FileWrite::new(path) };
        agent.write_file(file, content, DEADLINE).await?;
    }
    Ok(())
}
