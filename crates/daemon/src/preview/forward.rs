//! Passing one request on to a server in a sandbox, and its answer back.
//!
//! Every request has a connection of its own: one that the sandbox's branch, rollback or pause has
//! cut off cannot be met again.

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{
    CONNECTION, CONTENT_TYPE, HOST, HeaderName, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION,
    SET_COOKIE, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use axum::http::uri::{Scheme, Uri};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Version};
use axum::response::Response;
use forkd_engine::PortStream;
use hyper::client::conn::{http1, http2};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::copy_bidirectional;
use tracing::Instrument as _;

use super::{address, credential};
use crate::access::Peer;
use crate::header_list::{lists, words};
use crate::tunnel::Place;

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// What is said for one hop (RFC 9110, section 7.6.1).
const OF_ONE_HOP: [HeaderName; 9] = [
    CONNECTION,
    KEEP_ALIVE,
    PROXY_CONNECTION,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Passes a request on over a connection to the server. `scheme` is what clients see; `host` is
/// what the server is told in place of the host that clients see.
pub(super) async fn forward(
    mut request: Request,
    stream: PortStream,
    scheme: &Scheme,
    host: Option<String>,
) -> hyper::Result<Response> {
    let client = request.extensions_mut().remove::<OnUpgrade>();
    let place = request.extensions_mut().remove::<Place>();
    let is_rpc = is_rpc(request.headers());
    let request = towards_server(request, scheme, host, is_rpc);
    let mut answer = if is_rpc {
        over_http2(request, stream).await?
    } else {
        over_http1(request, stream).await?
    };
    if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
        let server = hyper::upgrade::on(&mut answer);
        tokio::spawn(join(client, server, place).in_current_span());
        return Ok(answer);
    }
    towards_client(answer.headers_mut());
    Ok(answer)
}

/// gRPC is spoken over HTTP/2 alone.
fn is_rpc(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

async fn over_http1(request: Request, stream: PortStream) -> hyper::Result<Response> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(
        async move {
            if let Err(error) = connection.with_upgrades().await {
                tracing::debug!(%error, "a connection of a preview broke off");
            }
        }
        .in_current_span(),
    );
    Ok(sender.send_request(request).await?.map(Body::new))
}

async fn over_http2(request: Request, stream: PortStream) -> hyper::Result<Response> {
    let executor = TokioExecutor::new();
    let (mut sender, connection) = http2::handshake(executor, TokioIo::new(stream)).await?;
    tokio::spawn(
        async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection of a preview broke off");
            }
        }
        .in_current_span(),
    );
    Ok(sender.send_request(request).await?.map(Body::new))
}

/// The request as the server is to see it: as it was sent, but for what concerns us.
fn towards_server(
    mut request: Request,
    scheme: &Scheme,
    host: Option<String>,
    is_rpc: bool,
) -> Request {
    let asked = address::authority(&request);
    let told = host.and_then(|host| host.parse().ok()).or_else(|| asked.clone());
    let upgrade = upgrade_of(request.headers());
    let peer = request.extensions().get::<Peer>().copied();
    let headers = request.headers_mut();
    address::strip(headers);
    remove_of_one_hop(headers);
    for (name, host) in [(FORWARDED_HOST, &asked), (HOST, &told)] {
        let value = host.as_ref().and_then(|host| HeaderValue::from_str(host.as_str()).ok());
        if let Some(value) = value {
            headers.insert(name, value);
        }
    }
    if let Ok(scheme) = HeaderValue::from_str(scheme.as_str()) {
        headers.insert(FORWARDED_PROTO, scheme);
    }
    if let Some(Peer::Tcp(peer)) = peer
        && let Ok(peer) = HeaderValue::from_str(&peer.ip().to_canonical().to_string())
    {
        // Behind proxies there are several.
        headers.append(FORWARDED_FOR, peer);
    }
    if let Some(upgrade) = upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, upgrade);
    }
    if is_rpc {
        headers.remove(HOST);
        headers.insert(TE, HeaderValue::from_static("trailers"));
        *request.version_mut() = Version::HTTP_2;
    } else {
        *request.version_mut() = Version::HTTP_11;
    }
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str()).to_owned();
    let mut uri = Uri::builder().path_and_query(path);
    if let Some(authority) = told.filter(|_| is_rpc) {
        uri = uri.scheme(Scheme::HTTP).authority(authority);
    }
    if let Ok(uri) = uri.build() {
        *request.uri_mut() = uri;
    }
    request
}

/// What the connection is to become, if it is.
fn upgrade_of(headers: &HeaderMap) -> Option<HeaderValue> {
    headers.get(UPGRADE).filter(|_| lists(headers, &CONNECTION, "upgrade")).cloned()
}

fn towards_client(headers: &mut HeaderMap) {
    remove_of_one_hop(headers);
    let cookies: Vec<HeaderValue> =
        headers.get_all(SET_COOKIE).iter().filter_map(credential::guests_cookie).collect();
    headers.remove(SET_COOKIE);
    for cookie in cookies {
        headers.append(SET_COOKIE, cookie);
    }
}

/// What `Connection` lists is for one hop too.
fn remove_of_one_hop(headers: &mut HeaderMap) {
    let listed: Vec<HeaderName> =
        words(headers, &CONNECTION).filter_map(|word| word.parse().ok()).collect();
    for name in OF_ONE_HOP.iter().chain(&listed) {
        headers.remove(name);
    }
}

/// Passes bytes between the two ends of an upgraded connection, until both have ended.
async fn join(client: Option<OnUpgrade>, server: OnUpgrade, place: Option<Place>) {
    let Some(client) = client else { return };
    if let (Ok(client), Ok(server)) = tokio::join!(client, server) {
        let (mut client, mut server) = (TokioIo::new(client), TokioIo::new(server));
        if let Err(error) = copy_bidirectional(&mut client, &mut server).await {
            tracing::debug!(%error, "an upgraded connection of a preview broke off");
        }
    }
    drop(place);
}
