//! What a daemon that is reached over the network demands.

use std::path::PathBuf;
use std::sync::Arc;

use reqwest::ClientBuilder;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::ClientError;

/// A token, and whom to trust. Neither is needed for a Unix socket.
#[derive(Clone, Default)]
pub struct Access {
    /// Sent as `Authorization: Bearer`.
    pub token: Option<String>,
    /// Certificates that sign the daemon's, PEM; those of the system when absent.
    pub roots: Option<PathBuf>,
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Access").field("roots", &self.roots).finish_non_exhaustive()
    }
}

impl Access {
    /// Sets up requests accordingly.
    pub(crate) fn apply(&self, builder: ClientBuilder) -> Result<ClientBuilder, ClientError> {
        let builder = builder.tls_backend_preconfigured(self.tls()?);
        let Some(token) = &self.token else { return Ok(builder) };
        let value = HeaderValue::try_from(format!("Bearer {}", token.trim()));
        let mut value = value.map_err(|_| ClientError::Access {
            problem: "the token has characters that no header can have".to_owned(),
        })?;
        value.set_sensitive(true);
        Ok(builder.default_headers(HeaderMap::from_iter([(AUTHORIZATION, value)])))
    }

    fn tls(&self) -> Result<ClientConfig, ClientError> {
        let access = |problem: String| ClientError::Access { problem };
        let mut roots = RootCertStore::empty();
        match &self.roots {
            Some(path) => {
                let unreadable = |error: &dyn std::fmt::Display| {
                    access(format!("no certificates in `{}`: {error}", path.display()))
                };
                let certificates = CertificateDer::pem_file_iter(path)
                    .and_then(Iterator::collect::<Result<Vec<_>, _>>)
                    .map_err(|error| unreadable(&error))?;
                for certificate in certificates {
                    roots.add(certificate).map_err(|error| unreadable(&error))?;
                }
                if roots.is_empty() {
                    return Err(unreadable(&"the file has none"));
                }
            }
            // One that cannot be read is one that is not trusted.
            None => {
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            }
        }
        config(roots)
    }
}

/// For a Unix socket: TLS is not used there, and the system's certificates take time to read.
pub(crate) fn trust_nobody(builder: ClientBuilder) -> Result<ClientBuilder, ClientError> {
    Ok(builder.tls_backend_preconfigured(config(RootCertStore::empty())?))
}

fn config(roots: RootCertStore) -> Result<ClientConfig, ClientError> {
    Ok(ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| ClientError::Access { problem: error.to_string() })?
        .with_root_certificates(roots)
        .with_no_client_auth())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roots_without_a_certificate_and_a_token_of_two_lines_are_refused() {
        let empty = tempfile::NamedTempFile::new().unwrap();
        let access = Access { token: None, roots: Some(empty.path().to_owned()) };
        let error = access.apply(reqwest::Client::builder()).unwrap_err().to_string();
        assert!(error.contains("no certificates"), "{error}");
        let access = Access { token: Some("a\nb".to_owned()), roots: None };
        let error = access.apply(reqwest::Client::builder()).unwrap_err().to_string();
        assert!(error.contains("token"), "{error}");
        let shown = format!("{:?}", Access { token: Some("secret".to_owned()), roots: None });
        assert!(!shown.contains("secret"), "{shown}");
    }
}
