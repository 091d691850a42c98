//! One connection, from the guest's first byte to its end.

use std::future::Future;
use std::io;
use std::os::fd::AsFd as _;
use std::pin::pin;
use std::sync::{Arc, PoisonError};

use forkd_types::network::DomainName;
use hyper::client::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustix::net::Shutdown;
use rustls::pki_types::ServerName;
use rustls::server::Acceptor;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::{LazyConfigAcceptor, TlsConnector, client, server};

use super::context::Context;
use super::credentials::Tls;
use super::forward::{Forward, Problem, Server};
use super::request::Refused;
use crate::gate::Ended;
use crate::limit::{
    HANDSHAKE_DEADLINE, HEAD_BYTES_MAX, HEAD_DEADLINE, LINGER_BYTES_MAX, LINGER_DEADLINE,
    STREAM_WINDOW_BYTES, STREAMS_MAX,
};

const HTTP_1: &[u8] = b"http/1.1";
const HTTP_2: &[u8] = b"h2";

/// Serves the guest until either side ends. What the guest still sends then is read, so that
/// nothing which was sent to it is lost.
pub(super) async fn serve(ended: Ended, guest: UnixStream, server: TcpStream, context: Context) {
    let same = guest.as_fd().try_clone_to_owned().map(std::os::unix::net::UnixStream::from);
    serve_requests(ended, guest, server, context).await;
    let Ok(same) = same.and_then(UnixStream::from_std) else { return };
    rustix::net::shutdown(&same, Shutdown::Write).ok();
    let (mut same, mut rest) = (same.take(LINGER_BYTES_MAX), tokio::io::sink());
    timeout(LINGER_DEADLINE, tokio::io::copy(&mut same, &mut rest)).await.ok();
}

async fn serve_requests(ended: Ended, guest: UnixStream, server: TcpStream, context: Context) {
    let Ended { name, tls } = ended;
    let served = if tls {
        serve_tls(name, guest, server, context).await
    } else {
        let refused = Server::None(Refused::Plain(name.clone()));
        let forward = Forward::new(name, context, refused);
        serve_http1(guest, &forward, std::future::pending()).await
    };
    if let Err(error) = served {
        tracing::debug!(%error, "a connection to a host with rules broke");
    }
}

async fn serve_tls(
    name: DomainName,
    guest: UnixStream,
    server: TcpStream,
    context: Context,
) -> Result<(), Problem> {
    let tls = context.credentials.tls().ok_or("the daemon has handed over no authority")?;
    let hello = LazyConfigAcceptor::new(Acceptor::default(), guest);
    let hello = timeout(HANDSHAKE_DEADLINE, hello).await??;
    let offered: Option<Vec<Vec<u8>>> =
        hello.client_hello().alpn().map(|offered| offered.map(<[u8]>::to_vec).collect());
    let (speaks_http, offered) = match offered {
        None => (true, Vec::new()),
        Some(mut offered) => {
            offered.retain(|protocol| protocol == HTTP_1 || protocol == HTTP_2);
            (!offered.is_empty(), offered)
        }
    };
    if !speaks_http {
        (context.refused)(format!("`{name}` has header rules, and this is not HTTP"));
        // The handshake tells the guest so.
        let config = tls.certificates.server(&name, vec![HTTP_1.to_vec()])?;
        timeout(HANDSHAKE_DEADLINE, hello.into_stream(Arc::new(config))).await??;
        return Ok(());
    }
    let connected = connect(&tls, &name, server, offered.clone()).await;
    let spoken = match &connected {
        Ok(server) => server.get_ref().1.alpn_protocol().map(<[u8]>::to_vec),
        Err(_) => None,
    };
    // What the server speaks; without a word of it, it is HTTP/1.1.
    let protocols = match spoken {
        Some(spoken) => vec![spoken],
        None if connected.is_err() || offered.iter().all(|offered| offered != HTTP_1) => offered,
        None => vec![HTTP_1.to_vec()],
    };
    let config = tls.certificates.server(&name, protocols)?;
    let guest = timeout(HANDSHAKE_DEADLINE, hello.into_stream(Arc::new(config))).await??;
    let is_http2 = guest.get_ref().1.alpn_protocol() == Some(HTTP_2);
    match connected {
        Ok(server) if is_http2 => join_http2(name, guest, server, context).await,
        Ok(server) => join_http1(name, guest, server, context).await,
        Err(error) => {
            let why = error.to_string();
            let refused = Refused::Server { host: name.clone(), why };
            let forward = Forward::new(name, context, Server::None(refused));
            if is_http2 {
                serve_http2(guest, &forward, std::future::pending()).await
            } else {
                serve_http1(guest, &forward, std::future::pending()).await
            }
        }
    }
}

async fn connect(
    tls: &Tls,
    name: &DomainName,
    server: TcpStream,
    protocols: Vec<Vec<u8>>,
) -> io::Result<client::TlsStream<TcpStream>> {
    let config = tls.client(protocols).map_err(io::Error::other)?;
    let server_name = ServerName::try_from(name.to_string()).map_err(io::Error::other)?;
    let connecting = TlsConnector::from(Arc::new(config)).connect(server_name, server);
    timeout(HANDSHAKE_DEADLINE, connecting).await?
}

type GuestStream = server::TlsStream<UnixStream>;
type ServerStream = client::TlsStream<TcpStream>;

async fn join_http1(
    name: DomainName,
    guest: GuestStream,
    server: ServerStream,
    context: Context,
) -> Result<(), Problem> {
    let mut builder = http1::Builder::new();
    builder.max_buf_size(HEAD_BYTES_MAX).preserve_header_case(true);
    let (sender, connection) = builder.handshake(TokioIo::new(server)).await?;
    let server = Server::Http1(Arc::new(tokio::sync::Mutex::new(sender)));
    let forward = Forward::new(name, context, server);
    let connection = async {
        connection.with_upgrades().await.ok();
    };
    serve_http1(guest, &forward, connection).await
}

async fn join_http2(
    name: DomainName,
    guest: GuestStream,
    server: ServerStream,
    context: Context,
) -> Result<(), Problem> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(4 * STREAM_WINDOW_BYTES)
        .max_header_list_size(header_list_bytes());
    let (sender, connection) = builder.handshake(TokioIo::new(server)).await?;
    let forward = Forward::new(name, context, Server::Http2(sender));
    let connection = async {
        connection.await.ok();
    };
    serve_http2(guest, &forward, connection).await
}

/// Serves requests until the guest ends, or the server's side, `server`.
async fn serve_http1(
    guest: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    forward: &Arc<Forward>,
    server: impl Future<Output = ()>,
) -> Result<(), Problem> {
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder
        .max_buf_size(HEAD_BYTES_MAX)
        .preserve_header_case(true)
        .half_close(true)
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_DEADLINE);
    let answers = Arc::clone(forward);
    let service = service_fn(move |request| answers.answer(request));
    let connection = builder.serve_connection(TokioIo::new(guest), service).with_upgrades();
    let (mut connection, mut server) = (pin!(connection), pin!(server));
    let mut server_ended = false;
    let served = loop {
        tokio::select! {
            served = &mut connection => break served,
            () = &mut server, if !server_ended => {
                server_ended = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    };
    let upgrade = forward.upgrade.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some((guest, upgraded)) = upgrade {
        // The server's side is given up by what drives it.
        let driven = async {
            if !server_ended {
                server.await;
            }
        };
        let (both, ()) = tokio::join!(async { tokio::try_join!(guest, upgraded) }, driven);
        let (guest, server) = both?;
        let (mut guest, mut server) = (TokioIo::new(guest), TokioIo::new(server));
        tokio::io::copy_bidirectional(&mut guest, &mut server).await?;
    }
    Ok(served?)
}

/// As [`serve_http1`].
async fn serve_http2(
    guest: GuestStream,
    forward: &Arc<Forward>,
    server: impl Future<Output = ()>,
) -> Result<(), Problem> {
    let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    builder
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(4 * STREAM_WINDOW_BYTES)
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(header_list_bytes())
        .max_send_buf_size(usize::try_from(STREAM_WINDOW_BYTES).unwrap_or(usize::MAX));
    let answers = Arc::clone(forward);
    let service = service_fn(move |request| answers.answer(request));
    let connection = builder.serve_connection(TokioIo::new(guest), service);
    let (mut connection, mut server) = (pin!(connection), pin!(server));
    let mut server_ended = false;
    loop {
        tokio::select! {
            served = &mut connection => return Ok(served?),
            () = &mut server, if !server_ended => {
                server_ended = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

fn header_list_bytes() -> u32 {
    u32::try_from(HEAD_BYTES_MAX).unwrap_or(u32::MAX)
}
