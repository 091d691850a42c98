//! Goal: a connection to a port is a byte stream over the Unix socket, TCP and TLS, from the first
//! byte that the client has sent; an end and a reset stay what they are; and what cannot be one is
//! refused in words.
//!
//! Method: real listeners before the routes, and a gateway whose guests listen where the test says.
//! Breaks when bytes behind the request's head are lost, when an end closes both directions, or
//! when a broken stream looks like one that has ended.

use std::io::ErrorKind;
use std::time::Duration;

use forkd_engine::Limits;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio_util::sync::CancellationToken;

use super::lab::{Lab, Things, token};
use super::tls::Tls;
use crate::connection::{Listener, serve};

const PORT: u16 = 8080;

trait Transport: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Transport for T {}

/// A daemon with three ways in, a sandbox of ann's, and a server in it.
struct Scene {
    lab: Lab,
    things: Things,
    server: UnboundedReceiver<UnixStream>,
    directory: tempfile::TempDir,
    tcp: std::net::SocketAddr,
    encrypted: std::net::SocketAddr,
    tls: Tls,
}

impl Scene {
    async fn new() -> Self {
        let lab = Lab::new(Limits::default()).await;
        let things = lab.make("ann", "t").await;
        let server = lab.ports.listen(PORT);
        let directory = tempfile::tempdir().unwrap();
        let socket = UnixListener::bind(directory.path().join("s")).unwrap();
        let [plain, encrypted] =
            [TcpListener::bind("127.0.0.1:0").await, TcpListener::bind("127.0.0.1:0").await];
        let (plain, encrypted, tls) = (plain.unwrap(), encrypted.unwrap(), Tls::new());
        let (tcp, encrypted_at) = (plain.local_addr().unwrap(), encrypted.local_addr().unwrap());
        for listener in [
            Listener::Unix(socket),
            Listener::Tcp(plain, None),
            Listener::Tcp(encrypted, Some(tls.acceptor.clone())),
        ] {
            tokio::spawn(serve(listener, lab.router.clone(), CancellationToken::new()));
        }
        Self { lab, things, server, directory, tcp, encrypted: encrypted_at, tls }
    }

    async fn connections(&self) -> [(&'static str, Box<dyn Transport>); 3] {
        let unix = UnixStream::connect(self.directory.path().join("s")).await.unwrap();
        let tcp = TcpStream::connect(self.tcp).await.unwrap();
        let encrypted = TcpStream::connect(self.encrypted).await.unwrap();
        let encrypted = self.tls.connect(encrypted).await;
        [("unix", Box::new(unix)), ("tcp", Box::new(tcp)), ("tls", Box::new(encrypted))]
    }

    fn request(&self, owner: &str, port: &str, headers: &str) -> String {
        format!(
            "GET /v1/sandboxes/{}/ports/{port} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\
             \r\n{headers}\r\n",
            self.things.sandbox,
            token(owner),
        )
    }

    fn upgrade(&self) -> String {
        self.request("ann", "8080", UPGRADE)
    }

    /// The status of an answer, its head and its body.
    async fn refused(&self, request: &str) -> (u16, String) {
        let (_, mut connection) = self.connections().await.into_iter().nth(1).unwrap();
        connection.write_all(request.as_bytes()).await.unwrap();
        let mut text = head(&mut connection).await;
        while !text.ends_with('}') {
            text.push(char::from(connection.read_u8().await.unwrap()));
        }
        (text[9..12].parse().unwrap(), text)
    }
}

const UPGRADE: &str = "connection: keep-alive, Upgrade\r\nupgrade: tcp\r\n";

/// Reads the head of an answer, byte by byte, so that what follows stays.
async fn head(connection: &mut Box<dyn Transport>) -> String {
    let mut text = Vec::new();
    while !text.ends_with(b"\r\n\r\n") {
        text.push(connection.read_u8().await.unwrap());
    }
    String::from_utf8(text).unwrap()
}

/// Longest wait; never reached when all is well.
const SOON: Duration = Duration::from_secs(60);

async fn in_time(test: impl Future<Output = ()>) {
    tokio::time::timeout(SOON, test).await.expect("nothing is waited for in vain");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_pass_both_ways_from_the_first_and_each_direction_ends_by_itself() {
    in_time(pass_bytes()).await;
}

async fn pass_bytes() {
    let mut scene = Scene::new().await;
    for (name, mut client) in scene.connections().await {
        // The first words come with the request.
        let first = format!("{}early", scene.upgrade());
        client.write_all(first.as_bytes()).await.unwrap();
        let answer = head(&mut client).await.to_ascii_lowercase();
        assert!(answer.starts_with("http/1.1 101 "), "{name}: {answer}");
        assert!(answer.contains("upgrade: tcp\r\n"), "{name}: {answer}");
        let mut server = scene.server.recv().await.unwrap();
        let mut got = vec![0; 5];
        server.read_exact(&mut got).await.unwrap();
        assert_eq!(got, b"early", "{name}");
        server.write_all(b"speaks first").await.unwrap();
        got.resize(12, 0);
        client.read_exact(&mut got).await.unwrap();
        assert_eq!(got, b"speaks first", "{name}");

        let sent: Vec<u8> = (0..1_000_000_u32).map(|at| (at % 251) as u8).collect();
        let (mut reader, mut writer) = server.into_split();
        let echo = tokio::spawn(async move {
            let mut all = Vec::new();
            reader.read_to_end(&mut all).await.unwrap();
            // The client has ended its direction, and gets the answer all the same.
            writer.write_all(&all).await.unwrap();
        });
        client.write_all(&sent).await.unwrap();
        client.shutdown().await.unwrap();
        let mut back = Vec::new();
        client.read_to_end(&mut back).await.unwrap();
        assert!(back == sent, "{name}: {} bytes", back.len());
        echo.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_sandbox_resets_is_reset_where_the_transport_can() {
    in_time(reset()).await;
}

async fn reset() {
    let mut scene = Scene::new().await;
    for (name, mut client) in scene.connections().await {
        client.write_all(scene.upgrade().as_bytes()).await.unwrap();
        head(&mut client).await;
        // Closed in both directions, though the client has ended none.
        drop(scene.server.recv().await.unwrap());
        let read = client.read(&mut [0; 8]).await;
        match name {
            "unix" => assert_eq!(read.unwrap(), 0),
            _ => assert_eq!(read.unwrap_err().kind(), ErrorKind::ConnectionReset, "{name}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_a_stream_is_refused_in_words() {
    in_time(refuse()).await;
}

async fn refuse() {
    let scene = Scene::new().await;
    for (owner, port, headers, status, word) in [
        ("ann", "8080", "", 426, "upgrade_required"),
        ("ann", "8080", "upgrade: tcp\r\n", 426, "upgrade_required"),
        ("ann", "8080", "connection: upgrade\r\nupgrade: websocket\r\n", 426, "upgrade_required"),
        ("ann", "0", UPGRADE, 400, "bad_request"),
        ("ann", "65536", UPGRADE, 400, "bad_request"),
        ("ann", "http", UPGRADE, 400, "bad_request"),
        ("ann", "9", UPGRADE, 409, "port_closed"),
        ("bob", "8080", UPGRADE, 404, "sandbox_not_found"),
        ("bob", "8080", "", 404, "sandbox_not_found"),
    ] {
        let (got, text) = scene.refused(&scene.request(owner, port, headers)).await;
        assert_eq!(got, status, "{owner} {port} {headers:?}: {text}");
        assert!(text.contains(&format!("\"code\":\"{word}\"")), "{text}");
        let told = text.to_ascii_lowercase().contains("\r\nupgrade: tcp\r\n");
        assert_eq!(told, status == 426, "the standard wants it of this status alone: {text}");
    }
    let pause = format!("/v1/sandboxes/{}/pause", scene.things.sandbox);
    let paused = scene.lab.ask("ann", "POST", &pause, None).await;
    assert_eq!(paused.status, 200, "{paused:?}");
    let (status, text) = scene.refused(&scene.upgrade()).await;
    assert!(status == 409 && text.contains("sandbox_not_running"), "{text}");
}
