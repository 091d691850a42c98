//! Connections: accept, encrypt, and the limits that hold before a request is one.
//!
//! A client that is slow, silent or many costs one waiting task each, up to a limit; others are
//! served meanwhile. One that stays silent is closed, so its place is free again after a bounded
//! time. Handlers see requests only once their headers are complete.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use crate::access::Peer;
use crate::activity::{Activity, Patience};
use crate::tunnel::Place;

/// Connections of one listener at a time; more wait to be accepted.
const CONNECTIONS_MAX: usize = 1024;
/// For a TLS handshake.
const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(10);
/// For the headers of a request to be complete, from the end of the one before.
const HEADERS_DEADLINE: Duration = Duration::from_secs(30);
/// Between two questions of HTTP/2 whether the other end is there, and for the answer.
const PING_INTERVAL: Duration = Duration::from_secs(20);
const PING_DEADLINE: Duration = Duration::from_secs(10);
/// Most bytes of a request's headers.
const HEADERS_BYTES_MAX: usize = 64 << 10;
/// Pause after a failed accept: mostly the process has too many files open.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Where connections come from.
pub(crate) enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener, Option<TlsAcceptor>),
}

/// A new connection.
enum Stream {
    Unix(tokio::net::UnixStream),
    Tcp(tokio::net::TcpStream, Option<TlsAcceptor>),
}

impl Listener {
    async fn accept(&self) -> io::Result<(Stream, Peer)> {
        match self {
            Self::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                let credentials = stream.peer_cred()?;
                let peer = Peer::Unix { uid: credentials.uid(), pid: credentials.pid() };
                Ok((Stream::Unix(stream), peer))
            }
            Self::Tcp(listener, tls) => {
                let (stream, address) = listener.accept().await?;
                // Answers are written whole; waiting to fill a packet only delays them.
                stream.set_nodelay(true)?;
                Ok((Stream::Tcp(stream, tls.clone()), Peer::Tcp(address)))
            }
        }
    }
}

/// Serves until `stopping`, then answers what is under way and ends.
pub(crate) async fn serve(listener: Listener, router: Router, stopping: CancellationToken) {
    serve_with(Patience::default(), listener, router, stopping).await;
}

async fn serve_with(
    patience: Patience,
    listener: Listener,
    router: Router,
    stopping: CancellationToken,
) {
    let graceful = GracefulShutdown::new();
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let accepted = async {
            // Closed never: it lives as long as we do.
            let place = Arc::clone(&places).acquire_owned().await.ok();
            (listener.accept().await, place.map(Place::from))
        };
        let (accepted, place) = tokio::select! {
            accepted = accepted => accepted,
            () = stopping.cancelled() => break,
        };
        match accepted {
            Ok((stream, peer)) => {
                let (router, watcher) = (router.clone(), graceful.watcher());
                let client = Client { peer, place };
                tokio::spawn(run(stream, client, router, watcher, patience));
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    graceful.shutdown().await;
}

/// Who has connected, and the place that the connection takes.
struct Client {
    peer: Peer,
    place: Option<Place>,
}

async fn run(stream: Stream, client: Client, router: Router, watcher: Watcher, patience: Patience) {
    let peer = client.peer;
    match stream {
        Stream::Unix(stream) => converse(stream, client, router, watcher, patience).await,
        Stream::Tcp(stream, None) => converse(stream, client, router, watcher, patience).await,
        Stream::Tcp(stream, Some(tls)) => {
            match tokio::time::timeout(HANDSHAKE_DEADLINE, tls.accept(stream)).await {
                Ok(Ok(stream)) => converse(stream, client, router, watcher, patience).await,
                Ok(Err(error)) => tracing::debug!(?peer, %error, "no TLS"),
                Err(_) => tracing::debug!(?peer, "a TLS handshake took too long"),
            }
        }
    }
}

/// Answers the requests of one connection.
async fn converse<S>(
    stream: S,
    client: Client,
    router: Router,
    watcher: Watcher,
    patience: Patience,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let Client { peer, place } = client;
    let activity = Activity::new();
    let requests = activity.clone();
    let service = tower::service_fn(move |request: Request<hyper::body::Incoming>| {
        let under_way = requests.begin();
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(peer);
        if let Some(place) = &place {
            // An upgraded connection keeps it.
            request.extensions_mut().insert(place.clone());
        }
        let answer = router.clone().oneshot(request);
        async move {
            let answer = answer.await.unwrap_or_else(|never| match never {});
            Ok::<_, Infallible>(under_way.until_sent(answer))
        }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS_DEADLINE)
        .max_buf_size(HEADERS_BYTES_MAX);
    let header_list = u32::try_from(HEADERS_BYTES_MAX).unwrap_or(u32::MAX);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_DEADLINE)
        .max_header_list_size(header_list);
    let service = TowerToHyperService::new(service);
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
    let connection = connection.into_owned();
    tokio::select! {
        ended = watcher.watch(connection) => {
            if let Err(error) = ended {
                tracing::debug!(?peer, %error, "a connection ended early");
            }
        }
        () = activity.silent(patience) => tracing::debug!(?peer, "a silent connection is closed"),
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpStream, UnixStream};

    use super::*;
    use crate::tests::tls::Tls;

    fn router() -> Router {
        let who =
            |request: Request| async move { format!("{:?}", request.extensions().get::<Peer>()) };
        let slow = || async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            "late"
        };
        Router::new().route("/who", get(who)).route("/slow", get(slow))
    }

    async fn answer(mut stream: impl AsyncRead + AsyncWrite + Unpin, request: &str) -> String {
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut text = Vec::new();
        stream.read_to_end(&mut text).await.unwrap();
        String::from_utf8_lossy(&text).into_owned()
    }

    fn get_request(path: &str) -> String {
        format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
    }

    #[tokio::test]
    async fn a_handler_sees_the_peer_as_the_kernel_tells_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let listener = Listener::Unix(UnixListener::bind(&path).unwrap());
        let stopping = CancellationToken::new();
        let served = tokio::spawn(serve(listener, router(), stopping.clone()));
        let text = answer(UnixStream::connect(&path).await.unwrap(), &get_request("/who")).await;
        let uid = rustix::process::geteuid().as_raw();
        let expected = format!("uid: {uid}, pid: Some({})", std::process::id());
        assert!(text.contains(&expected), "{text}");
        stopping.cancel();
        served.await.unwrap();
    }

    #[tokio::test]
    async fn at_the_end_what_is_under_way_is_answered_and_nothing_new_accepted() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stopping = CancellationToken::new();
        let served = tokio::spawn(serve(Listener::Tcp(listener, None), router(), stopping.clone()));
        let stream = TcpStream::connect(address).await.unwrap();
        let slow = tokio::spawn(async move { answer(stream, &get_request("/slow")).await });
        tokio::time::sleep(Duration::from_millis(100)).await;
        stopping.cancel();
        assert!(slow.await.unwrap().ends_with("late"));
        served.await.unwrap();
        assert!(TcpStream::connect(address).await.is_err());
    }

    /// Each end of a connection is a descriptor of this process.
    fn allow_descriptors(count: u64) {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        assert!(maximum.is_none_or(|most| most >= count), "this needs {count} descriptors");
        if current.is_some_and(|now| now < count) {
            setrlimit(Resource::Nofile, Rlimit { current: Some(count), maximum }).unwrap();
        }
    }

    #[tokio::test]
    async fn a_client_is_served_soon_although_silent_ones_have_taken_all_places() {
        allow_descriptors(3 * CONNECTIONS_MAX as u64);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let first_request = Duration::from_secs(1);
        let patience = Patience { first_request, ..Patience::default() };
        let (listener, stopping) = (Listener::Tcp(listener, None), CancellationToken::new());
        tokio::spawn(serve_with(patience, listener, router(), stopping));
        let mut silent = Vec::new();
        for number in 0..CONNECTIONS_MAX {
            let mut stream = TcpStream::connect(address).await.unwrap();
            // Some say what may become HTTP/2, some half a head of HTTP/1.
            let said: &[u8] = match number % 3 {
                0 => b"",
                1 => b"PRI * HTT",
                _ => b"GET /who HTTP/1.1\r\nhost: loc",
            };
            stream.write_all(said).await.unwrap();
            silent.push(stream);
        }
        let stream = TcpStream::connect(address).await.unwrap();
        let soon = first_request + Duration::from_secs(20);
        let answered = tokio::time::timeout(soon, answer(stream, &get_request("/who"))).await;
        assert!(answered.expect("it is served").contains("200 OK"));
        let mut closed = Vec::new();
        let end = silent[0].read_to_end(&mut closed);
        tokio::time::timeout(soon, end).await.expect("the silent ones are closed").ok();
    }

    #[tokio::test]
    async fn headers_that_are_too_large_are_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stopping = CancellationToken::new();
        tokio::spawn(serve(Listener::Tcp(listener, None), router(), stopping));
        let long = "x".repeat(HEADERS_BYTES_MAX);
        let request = format!("GET /who HTTP/1.1\r\nhost: localhost\r\nx-long: {long}\r\n\r\n");
        let mut stream = TcpStream::connect(address).await.unwrap();
        // The other end may hang up before it has read all.
        stream.write_all(request.as_bytes()).await.ok();
        let mut start = [0; 12];
        stream.read_exact(&mut start).await.unwrap();
        assert_eq!(&start, b"HTTP/1.1 431");
    }

    #[tokio::test]
    async fn a_silent_client_does_not_keep_others_from_a_tls_handshake() {
        let tls = Tls::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stopping = CancellationToken::new();
        tokio::spawn(serve(
            Listener::Tcp(listener, Some(tls.acceptor.clone())),
            router(),
            stopping,
        ));
        let _silent = TcpStream::connect(address).await.unwrap();
        let stream = TcpStream::connect(address).await.unwrap();
        let text = answer(tls.connect(stream).await, &get_request("/who")).await;
        assert!(text.contains("200 OK") && text.contains("Tcp(127.0.0.1"), "{text}");
    }

    /// What has become of a connection over HTTP/2 with a request that is never answered.
    #[derive(Debug, Default)]
    struct Http2 {
        pings: u32,
        closed_after: Option<Duration>,
    }

    const SETTINGS: u8 = 4;
    const PING: u8 = 6;
    const ACK: u8 = 1;

    fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
        let length = u8::try_from(payload.len()).unwrap();
        [&[0, 0, length, kind, flags, 0, 0, 0, stream][..], payload].concat()
    }

    /// Asks, and then reads all that comes; pings are answered only if `answers` says so.
    async fn ask_over_http2(mut stream: tokio::io::DuplexStream, answers: bool) -> Http2 {
        let begun = tokio::time::Instant::now();
        // GET /never of localhost, by indexes of HPACK.
        let head = b"\x82\x86\x04\x06/never\x01\x09localhost";
        let said = [
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
            frame(SETTINGS, 0, 0, &[]),
            frame(1, 0x5, 1, head),
        ];
        stream.write_all(&said.concat()).await.unwrap();
        let mut seen = Http2::default();
        while begun.elapsed() < 20 * (PING_INTERVAL + PING_DEADLINE) {
            let mut head = [0; 9];
            let next = tokio::time::timeout(PING_INTERVAL, stream.read_exact(&mut head));
            match next.await {
                // Nothing is said for a while.
                Err(_) => continue,
                Ok(Err(_)) => {
                    seen.closed_after = Some(begun.elapsed());
                    break;
                }
                Ok(Ok(_)) => {}
            }
            let mut payload = vec![0; usize::from(head[2])];
            stream.read_exact(&mut payload).await.unwrap();
            let (kind, is_answer) = (head[3], head[4] & ACK != 0);
            seen.pings += u32::from(kind == PING && !is_answer);
            if !is_answer && (kind == SETTINGS || kind == PING && answers) {
                let payload = if kind == PING { payload.as_slice() } else { &[] };
                stream.write_all(&frame(kind, ACK, 0, payload)).await.unwrap();
            }
        }
        seen
    }

    /// On a clock that stands still while anybody works.
    async fn serve_over_http2(answers: bool) -> Http2 {
        let (ours, theirs) = tokio::io::duplex(64 << 10);
        let router = Router::new().route("/never", get(std::future::pending::<&'static str>));
        let (graceful, address) = (GracefulShutdown::new(), ([127, 0, 0, 1], 1).into());
        let client = Client { peer: Peer::Tcp(address), place: None };
        let served = converse(ours, client, router, graceful.watcher(), Patience::default());
        let served = tokio::spawn(served);
        let seen = ask_over_http2(theirs, answers).await;
        served.await.unwrap();
        seen
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_of_http2_that_does_not_answer_pings_is_closed_although_it_waits() {
        let deaf = serve_over_http2(false).await;
        let closed = deaf.closed_after.expect("it is closed");
        let bound = PING_INTERVAL + PING_DEADLINE;
        assert!(closed >= bound && closed < 2 * bound, "{deaf:?}");
        assert_eq!(deaf.pings, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_of_http2_that_answers_pings_stays_for_as_long_as_it_waits() {
        let awake = serve_over_http2(true).await;
        assert_eq!(awake.closed_after, None, "{awake:?}");
        assert!(awake.pings >= 20, "{awake:?}");
    }
}
