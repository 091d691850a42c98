//! Certificates with which the gateway speaks to guests as the server that they have asked for.
//!
//! Guarantees: they are valid since yesterday, because the clock of a child may stand before it is
//! set; one is made again before it ends.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use forkd_netd_protocol::AUTHORITY_NAME;
use forkd_types::network::DomainName;
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair, KeyUsagePurpose};
use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::sign::any_ecdsa_type;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::ResolvesServerCert;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use zeroize::Zeroizing;

use crate::limit::CERTIFICATES_MAX;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// From a day before it is made.
const LIFE: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// How long one is used for new connections.
const USED_FOR: Duration = DAY;

/// Makes certificates and keeps them.
pub(super) struct Certificates {
    authority: Issuer<'static, KeyPair>,
    /// PEM of the authority's key.
    pem: Zeroizing<Vec<u8>>,
    /// One for all: what it proves, this process can prove of any name.
    key: KeyPair,
    made: Mutex<HashMap<DomainName, (Instant, Arc<CertifiedKey>)>>,
}

impl Certificates {
    /// Signed with a key, in PEM.
    pub(super) fn new(pem: &[u8]) -> io::Result<Self> {
        let unusable = |_| io::Error::new(io::ErrorKind::InvalidData, "it is no private key");
        let text = std::str::from_utf8(pem).map_err(|_| io::ErrorKind::InvalidData)?;
        let authority = KeyPair::from_pem(text).map_err(unusable)?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, AUTHORITY_NAME);
        Ok(Self {
            authority: Issuer::new(params, authority),
            pem: Zeroizing::new(pem.to_vec()),
            key: KeyPair::generate().map_err(io::Error::other)?,
            made: Mutex::default(),
        })
    }

    pub(super) fn are_signed_by(&self, pem: &[u8]) -> bool {
        *self.pem == pem
    }

    /// For a connection of a guest that asks for `name` and may speak these protocols.
    pub(super) fn server(
        &self,
        name: &DomainName,
        protocols: Vec<Vec<u8>>,
    ) -> io::Result<ServerConfig> {
        let certified = self.certified(name)?;
        let resolver: Arc<dyn ResolvesServerCert> =
            Arc::new(SingleCertAndKey::from(CertifiedKey::clone(&certified)));
        let config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?;
        let mut config = config.with_no_client_auth().with_cert_resolver(resolver);
        config.alpn_protocols = protocols;
        Ok(config)
    }

    fn certified(&self, name: &DomainName) -> io::Result<Arc<CertifiedKey>> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((since, certified)) = made.get(name)
            && since.elapsed() < USED_FOR
        {
            return Ok(certified.clone());
        }
        let certified = Arc::new(self.make(name).map_err(io::Error::other)?);
        if made.len() >= CERTIFICATES_MAX {
            made.clear();
        }
        made.insert(name.clone(), (Instant::now(), certified.clone()));
        Ok(certified)
    }

    fn make(
        &self,
        name: &DomainName,
    ) -> Result<CertifiedKey, Box<dyn std::error::Error + Send + Sync>> {
        let mut params = CertificateParams::new([name.to_string()])?;
        // What reads it reads the alternative name; a common name has 64 bytes at most.
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.not_before = (SystemTime::now() - DAY).into();
        params.not_after = (SystemTime::now() - DAY + LIFE).into();
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&self.key, &self.authority)?;
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(self.key.serialize_der()));
        Ok(CertifiedKey::new(vec![certificate.der().clone()], any_ecdsa_type(&key)?))
    }
}

pub(super) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}
