//! What the proxies of all links share: secrets, certificates for guests, and whom servers'
//! certificates are believed from.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use forkd_netd_protocol::{Failure, SecretValue, Secrets, read_credential};
use forkd_types::Owner;
use forkd_types::network::SecretName;
use rustls::client::Resumption;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};

use super::certificates::{Certificates, provider};

/// What the daemon has handed over last.
#[derive(Default)]
pub(crate) struct Credentials {
    secrets: RwLock<Secrets>,
    tls: RwLock<Option<Arc<Tls>>>,
}

/// Both sides of a proxy.
pub(super) struct Tls {
    /// For the guest's side.
    pub(super) certificates: Certificates,
    /// PEM; may be empty.
    roots: Vec<u8>,
    /// For the server's side. The roots are read when they are first needed.
    client: OnceLock<Arc<ClientConfig>>,
}

impl Credentials {
    /// Takes descriptors of files: secrets, the authority's key, certificates of roots.
    pub(crate) fn replace(&self, files: Vec<OwnedFd>) -> Result<(), Failure> {
        let bad = |what: &str| {
            let what = what.to_owned();
            move |error: io::Error| Failure::BadCredential { what, why: error.to_string() }
        };
        let Ok([secrets, key, roots]) = <[OwnedFd; 3]>::try_from(files) else {
            return Err(Failure::BadRequest("three descriptors must come along".to_owned()));
        };
        let secrets = read_credential(secrets.as_fd()).and_then(|bytes| {
            if bytes.is_empty() { Ok(Secrets::default()) } else { Secrets::from_bytes(&bytes) }
        });
        let secrets = secrets.map_err(bad("secrets"))?;
        let key = read_credential(key.as_fd()).map_err(bad("authority's key"))?;
        let roots = read_credential(roots.as_fd()).map_err(bad("certificates of roots"))?;
        let changed = self
            .tls()
            .is_none_or(|tls| !tls.certificates.are_signed_by(&key) || tls.roots != *roots);
        if changed {
            let certificates = Certificates::new(&key).map_err(bad("authority's key"))?;
            let roots = roots.to_vec();
            let tls = Tls { certificates, roots, client: OnceLock::new() };
            *self.tls.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(tls));
        }
        *self.secrets.write().unwrap_or_else(PoisonError::into_inner) = secrets;
        Ok(())
    }

    /// Puts a value after what is in `text`, or says that there is none.
    pub(super) fn append(&self, text: &mut Vec<u8>, owner: &Owner, name: &SecretName) -> bool {
        let secrets = self.secrets.read().unwrap_or_else(PoisonError::into_inner);
        let value = secrets.get(owner, name).map(SecretValue::expose);
        text.extend_from_slice(value.unwrap_or_default().as_bytes());
        value.is_some()
    }

    /// None before the daemon has handed anything over.
    pub(super) fn tls(&self) -> Option<Arc<Tls>> {
        self.tls.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Tls {
    /// For a connection to a server, with these protocols.
    pub(super) fn client(&self, protocols: Vec<Vec<u8>>) -> Result<ClientConfig, rustls::Error> {
        let config = match self.client.get() {
            Some(config) => config,
            None => {
                let made = Arc::new(client_config(&self.roots)?);
                self.client.get_or_init(|| made)
            }
        };
        let mut config = ClientConfig::clone(config);
        config.alpn_protocols = protocols;
        Ok(config)
    }
}

fn client_config(trusted: &[u8]) -> Result<ClientConfig, rustls::Error> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(CertificateDer::pem_slice_iter(trusted).flatten());
    let config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    let mut config = config.with_no_client_auth();
    // A server could tell that two sandboxes belong together.
    config.resumption = Resumption::disabled();
    Ok(config)
}
