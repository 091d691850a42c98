//! TLS for the TCP listener.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject as _};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ServerConfig};

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The certificate or the key cannot be read.
    #[error("read {what} from `{}`", path.display())]
    Pem {
        /// Which of the two.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: pem::Error,
    },
    /// They do not fit together, or are of a kind that is not supported.
    #[error(
        "the certificate `{}` cannot be used with the key `{}`",
        certificate.display(),
        key.display()
    )]
    Pair {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// What is wrong.
        #[source]
        source: rustls::Error,
    },
}

/// Accepts TLS 1.2 and 1.3 with the chain in `certificate` and the private key in `key`, both PEM.
pub(crate) fn acceptor(certificate: &Path, key: &Path) -> Result<TlsAcceptor, TlsError> {
    let unreadable = |what, path: &Path| {
        let path = path.to_owned();
        move |source| TlsError::Pem { what, path, source }
    };
    let chain = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(unreadable("the certificate", certificate))?;
    let secret = PrivateKeyDer::from_pem_file(key).map_err(unreadable("the private key", key))?;
    let pair = |source| TlsError::Pair {
        certificate: certificate.to_owned(),
        key: key.to_owned(),
        source,
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(pair)?
        .with_no_client_auth()
        .with_single_cert(chain, secret)
        .map_err(pair)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_is_not_the_certificates_and_a_file_without_one_are_refused_by_name() {
        let directory = tempfile::tempdir().unwrap();
        let [one, other] =
            [(); 2].map(|()| rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap());
        let certificate = directory.path().join("cert.pem");
        let [key, wrong, empty] =
            ["key.pem", "wrong.pem", "empty.pem"].map(|name| directory.path().join(name));
        std::fs::write(&certificate, one.cert.pem()).unwrap();
        std::fs::write(&key, one.signing_key.serialize_pem()).unwrap();
        std::fs::write(&wrong, other.signing_key.serialize_pem()).unwrap();
        std::fs::write(&empty, "").unwrap();
        assert!(acceptor(&certificate, &key).is_ok());
        let refused = |certificate, key| match acceptor(certificate, key) {
            Ok(_) => panic!("it must be refused"),
            Err(error) => error.to_string(),
        };
        assert!(refused(&certificate, &wrong).contains("wrong.pem"));
        assert!(refused(&certificate, &empty).contains("the private key"));
        assert!(refused(&empty, &key).contains("empty.pem"));
    }
}
