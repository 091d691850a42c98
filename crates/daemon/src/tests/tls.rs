//! Both ends of TLS, with a certificate of its own.

use std::sync::Arc;

use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::ring, pki_types};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// What a listener and its clients need.
pub(crate) struct Tls {
    pub(crate) acceptor: TlsAcceptor,
    connector: TlsConnector,
}

impl Tls {
    pub(crate) fn new() -> Self {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let [certificate, key] = ["c.pem", "k.pem"].map(|name| directory.path().join(name));
        std::fs::write(&certificate, made.cert.pem()).unwrap();
        std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        let acceptor = crate::access::acceptor(&certificate, &key).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(made.cert.der().clone()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        Self { acceptor, connector: TlsConnector::from(Arc::new(config)) }
    }

    pub(crate) async fn connect(&self, stream: TcpStream) -> TlsStream<TcpStream> {
        let name = pki_types::ServerName::try_from("localhost").unwrap();
        self.connector.connect(name, stream).await.unwrap()
    }
}
