//! Servers that speak TLS, and clients of guests.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fs::File;
use std::io::{Seek as _, Write as _};
use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex};

use forkd_netd_protocol::{AUTHORITY_NAME, Secret, SecretValue, Secrets};
use forkd_types::Owner;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::header::HeaderMap;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::Notify;
use tokio_rustls::{TlsAcceptor, TlsConnector, client};

use crate::guest::Stream;
use crate::world::World;

pub(crate) type Tls = client::TlsStream<tokio::net::UnixStream>;
pub(crate) type Body = BoxBody<Bytes, hyper::Error>;

/// A certificate authority.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
    key: String,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { key: key.serialize_pem(), issuer: Issuer::new(params, key), pem }
    }

    fn server(&self, name: &str, protocols: &[&str]) -> Arc<ServerConfig> {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider);
        let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        let chain = vec![certificate.der().clone()];
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let mut config = config.with_single_cert(chain, key).unwrap();
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        Arc::new(config)
    }

    fn client(&self, protocols: &[&str]) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.pem.as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider);
        let config = config.with_safe_default_protocol_versions().unwrap();
        let mut config = config.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        Arc::new(config)
    }
}

/// Who signs what.
pub(crate) struct Trust {
    /// For servers of the internet.
    pub(crate) internet: Authority,
    /// For the gateway.
    pub(crate) gateway: Authority,
}

/// A request as a server has seen it.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) version: hyper::Version,
    pub(crate) headers: HeaderMap,
}

/// What servers have seen, and what holds one back.
#[derive(Default)]
pub(crate) struct Asks {
    pub(crate) all: Mutex<Vec<Asked>>,
    /// A stream of `/events` goes on.
    pub(crate) go_on: Notify,
}

impl World {
    /// Hands secrets to the gateway, with an authority for guests. Servers of the internet are
    /// trusted.
    pub(crate) fn set_secrets(&self, trust: &Trust, secrets: &[(&str, &str)]) {
        self.set_secrets_of(trust, Owner::default(), secrets);
    }

    pub(crate) fn set_secrets_of(&self, trust: &Trust, owner: Owner, secrets: &[(&str, &str)]) {
        let secret = |value: &str| Secret {
            value: SecretValue::try_from(value.to_owned()).unwrap(),
            set_at_unix: 0,
        };
        let secrets: BTreeMap<_, _> =
            secrets.iter().map(|(name, value)| (name.parse().unwrap(), secret(value))).collect();
        let secrets = Secrets([(owner, secrets)].into());
        let secrets = file(&secrets.to_bytes().unwrap());
        let key = file(trust.gateway.key.as_bytes());
        let roots = file(trust.internet.pem.as_bytes());
        let files = [secrets.as_fd(), key.as_fd(), roots.as_fd()];
        self.ask(self.client.set_credentials(files)).unwrap();
    }

    /// An authority for guests and one for servers, with secrets.
    pub(crate) fn trust(&self, secrets: &[(&str, &str)]) -> Trust {
        let internet = Authority::new("internet");
        let trust = Trust { internet, gateway: Authority::new(AUTHORITY_NAME) };
        self.set_secrets(&trust, secrets);
        trust
    }

    /// A server of HTTP with a certificate for `name`, at a port of every address.
    pub(crate) fn serve_https(
        &self,
        port: u16,
        authority: &Authority,
        name: &str,
        protocols: &[&str],
    ) -> Arc<Asks> {
        let asks = Arc::new(Asks::default());
        let acceptor = TlsAcceptor::from(authority.server(name, protocols));
        let seen = asks.clone();
        self.serve(port, move |stream| {
            let (acceptor, seen) = (acceptor.clone(), seen.clone());
            async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let service = service_fn(move |request| answer(request, seen.clone()));
                auto::Builder::new(TokioExecutor::new())
                    .serve_connection_with_upgrades(TokioIo::new(stream), service)
                    .await
                    .ok();
            }
        });
        asks
    }

    /// TLS over a connection of a guest that trusts `authority`.
    pub(crate) fn secure(
        &self,
        stream: Stream,
        authority: &Authority,
        name: &str,
        protocols: &[&str],
    ) -> Result<Tls, std::io::Error> {
        let socket = stream.into_socket();
        socket.set_nonblocking(true).unwrap();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let connector = TlsConnector::from(authority.client(protocols));
        self.ask(async move {
            let socket = tokio::net::UnixStream::from_std(socket).unwrap();
            connector.connect(name, socket).await
        })
    }
}

fn file(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    // Where a descriptor stands must not matter.
    file.seek(std::io::SeekFrom::End(0)).unwrap();
    file
}

pub(crate) fn full(text: impl Into<Bytes>) -> Body {
    Full::new(text.into()).map_err(|never: Infallible| match never {}).boxed()
}

async fn answer(
    mut request: Request<Incoming>,
    asks: Arc<Asks>,
) -> Result<Response<Body>, Infallible> {
    let asked = Asked { version: request.version(), headers: request.headers().clone() };
    asks.all.lock().unwrap().push(asked);
    let body = match request.uri().path() {
        "/echo" => request.into_body().boxed(),
        "/sum" => {
            let collected = request.into_body().collect().await.unwrap();
            let trailer = collected.trailers().and_then(|all| all.get("x-sum")).cloned();
            let bytes = collected.to_bytes().len();
            full(format!(
                "{bytes} {}",
                trailer.map_or("none".into(), |v| v.to_str().unwrap().to_owned())
            ))
        }
        "/events" => events(asks),
        "/socket" => {
            let upgraded = hyper::upgrade::on(&mut request);
            tokio::spawn(async move {
                let mut stream = TokioIo::new(upgraded.await.unwrap());
                let mut buffer = [0; 100];
                while let Ok(bytes @ 1..) = stream.read(&mut buffer).await {
                    buffer[..bytes].reverse();
                    stream.write_all(&buffer[..bytes]).await.unwrap();
                }
                stream.shutdown().await.unwrap();
            });
            let mut response = Response::new(full(""));
            *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            for name in ["connection", "upgrade"] {
                let value = request.headers()[name].clone();
                response.headers_mut().insert(name, value);
            }
            return Ok(response);
        }
        _ => full("page"),
    };
    Ok(Response::builder().header("trailer", "x-end").body(body).unwrap())
}

/// Two events; the second one only when the first one has been seen. A trailer ends them.
fn events(asks: Arc<Asks>) -> Body {
    let (sender, mut frames) = tokio::sync::mpsc::channel(1);
    tokio::spawn(async move {
        sender.send(Frame::data(Bytes::from("data: 1\n\n"))).await.ok();
        asks.go_on.notified().await;
        sender.send(Frame::data(Bytes::from("data: 2\n\n"))).await.ok();
        let trailers = HeaderMap::from_iter([("x-end".parse().unwrap(), "yes".parse().unwrap())]);
        sender.send(Frame::trailers(trailers)).await.ok();
    });
    let stream = futures_util::stream::poll_fn(move |context| {
        frames.poll_recv(context).map(|frame| frame.map(Ok::<_, hyper::Error>))
    });
    http_body_util::BodyExt::boxed(StreamBody::new(stream))
}
