//! A server with TLS, whose certificate an authority of the test has signed, and a daemon that
//! trusts it.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tempfile::TempDir;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::{ServerConfig, ServerConnection, StreamOwned, crypto};

use crate::forkd::Forkd;

/// The server's name.
pub(crate) const NAME: &str = "api.example";

/// A daemon whose gateway trusts the servers with this configuration, as long as the folder is
/// there.
pub(crate) fn trusting() -> (Forkd, TempDir, Arc<ServerConfig>) {
    let (pem, config) = authority();
    let folder = tempfile::tempdir().unwrap();
    let roots = folder.path().join("roots.pem");
    std::fs::write(&roots, pem).unwrap();
    // It lives as long as the test's program.
    let roots: &'static str = Box::leak(roots.display().to_string().into_boxed_str());
    (Forkd::with_variables(&[("FORKD_UPSTREAM_CA", roots)]), folder, config)
}

/// An authority's certificate, and what a server for [`NAME`] needs.
fn authority() -> (String, Arc<ServerConfig>) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let pem = params.self_signed(&key).unwrap().pem();
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new([NAME.to_owned()]).unwrap();
    let chain = vec![params.signed_by(&key, &issuer).unwrap().der().clone()];
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()));
    let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    (pem, Arc::new(config.with_single_cert(chain, key).unwrap()))
}

/// The one request of a connection.
pub(crate) struct Request {
    pub(crate) head: String,
    stream: StreamOwned<ServerConnection, TcpStream>,
}

impl Request {
    /// None where the client ends the connection first.
    pub(crate) fn read(stream: TcpStream, config: Arc<ServerConfig>) -> Option<Self> {
        let mut stream = StreamOwned::new(ServerConnection::new(config).unwrap(), stream);
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") {
            match stream.read(&mut byte) {
                Ok(1) => head.push(byte[0]),
                _ => return None,
            }
        }
        Some(Self { head: String::from_utf8(head).unwrap(), stream })
    }

    pub(crate) fn answer(mut self, status: &str, kind: &str, page: &[u8]) {
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\
             Connection: close\r\n\r\n",
            page.len()
        );
        // The client may have gone.
        self.stream.write_all(&[head.as_bytes(), page].concat()).ok();
        self.stream.conn.send_close_notify();
        self.stream.flush().ok();
    }
}
