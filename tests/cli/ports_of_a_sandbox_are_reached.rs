//! Goal: what listens in a sandbox is reached by its owner, on whatever address it listens, without
//! any way out for the sandbox. Every byte comes through; children serve their own pages on the
//! same port; a connection goes on in the source of a branch and is reset in the child.
//!
//! Method: `forkd port` in front of servers that Python runs in the guest: one for HTTP, and one
//! that speaks first and sends back what it gets. Breaks when an address is not tried, when bytes
//! are lost or doubled, and when a child's server believes in its source's connection.

use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::process::{Child, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::forkd::Forkd;
use crate::pages::PAGE;
use crate::processes::wait_until;

const BYTES: usize = 8 << 20;

/// Longest wait for a byte; never reached when all is well.
const SOON: Duration = Duration::from_secs(120);

/// Each server's address, its port for HTTP and its port for the echo, and the peer that it sees.
const SERVERS: [(&str, u16, u16, &str); 3] = [
    ("0.0.0.0", 8000, 9000, "10.42.0.1"),
    ("127.0.0.1", 8001, 9001, "127.0.0.1"),
    ("::1", 8002, 9002, "::1"),
];

const GUEST: &str = r#"
import socket
page, ended = 'source', []

class Own(Page):
    def text(self):
        return f'{page} {self.client_address[0]}'

class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

def echo(connection):
    try:
        connection.sendall(b'hello')
        while data := connection.recv(1 << 16):
            connection.sendall(data)
        connection.close()
    except OSError as error:
        ended.append(type(error).__name__)

def accept(listener):
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=echo, args=(connection,), daemon=True).start()

def serve(address, http_port, echo_port):
    family = socket.AF_INET6 if ':' in address else socket.AF_INET
    kind = type('Server', (Server,), {'address_family': family})
    page_server = kind((address, http_port), Own)
    threading.Thread(target=page_server.serve_forever, daemon=True).start()
    listener = socket.create_server((address, echo_port), family=family)
    threading.Thread(target=accept, args=(listener,), daemon=True).start()
"#;

/// A port of a sandbox as a port of this machine, until it is dropped.
struct Forward {
    process: Child,
    address: SocketAddr,
    errors: mpsc::Receiver<String>,
}

impl Forward {
    fn to(forkd: &Forkd, sandbox: &str, port: u16) -> Self {
        let mut process = forkd
            .command(&["port", sandbox, &port.to_string(), "--local", "0"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().parse().unwrap_or_else(|_| panic!("no address: {line:?}"));
        let (told, errors) = mpsc::channel();
        let lines = BufReader::new(process.stderr.take().unwrap()).lines();
        thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| told.send(line)));
        Self { process, address, errors }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream
    }

    /// A connection to the echo, which has greeted.
    fn greeted(&self) -> TcpStream {
        let mut stream = self.connect();
        let mut word = [0; 5];
        stream.read_exact(&mut word).unwrap();
        assert_eq!(&word, b"hello");
        stream
    }

    /// The page that is served there.
    fn page(&self) -> String {
        let mut stream = self.connect();
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text.rsplit("\r\n\r\n").next().unwrap().to_owned()
    }

    /// A connection that cannot be served is reset. What is said about it.
    fn refusal(&self) -> String {
        let read = self.connect().read(&mut [0; 1]);
        assert_eq!(read.unwrap_err().kind(), ErrorKind::ConnectionReset);
        self.errors.recv_timeout(SOON).unwrap()
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

fn speak(stream: &mut TcpStream, word: &[u8]) {
    stream.write_all(word).unwrap();
    let mut back = vec![0; word.len()];
    stream.read_exact(&mut back).unwrap();
    assert_eq!(back, word);
}

#[test]
fn ports_of_a_sandbox_are_reached() {
    let forkd = Forkd::new();
    forkd.template("python", "py", 256);
    let source = forkd.ok(&["fork", "py", "--no-internet"]);
    forkd.ok(&["eval", &source, &format!("{PAGE}{GUEST}")]);
    for (address, http, echo, _) in SERVERS {
        forkd.ok(&["eval", &source, &format!("serve('{address}', {http}, {echo})")]);
    }
    assert_listed(&forkd, &source);
    for (address, http, echo, peer) in SERVERS {
        assert_eq!(Forward::to(&forkd, &source, http).page(), format!("source {peer}"));
        assert_every_byte_comes_through(&Forward::to(&forkd, &source, echo), address);
    }
    assert_refusals_are_told(&forkd, &source);
    assert_branches_part(&forkd, &source);
    assert_end_is_told(&forkd, &source);
}

fn assert_listed(forkd: &Forkd, sandbox: &str) {
    let ports = forkd.json(&["ports", sandbox]);
    let ports = ports.as_array().unwrap();
    for (address, http, echo, _) in SERVERS {
        for port in [http, echo] {
            let found = ports.iter().find(|found| found["port"] == port);
            let found = found.unwrap_or_else(|| panic!("{port} is not listed: {ports:?}"));
            assert_eq!(found["address"], address);
            assert_eq!(found["program"], "python3", "{found}");
        }
    }
    let quiet = forkd.ok(&["ports", sandbox, "-q"]);
    assert_eq!(quiet.lines().collect::<Vec<_>>(), ["8000", "8001", "8002", "9000", "9001", "9002"]);
}

/// What the server says first is heard, and what is sent comes back.
#[expect(clippy::print_stderr, reason = "figures, for whoever reads them")]
fn assert_every_byte_comes_through(forward: &Forward, address: &str) {
    let begun = Instant::now();
    let mut stream = forward.greeted();
    let first = begun.elapsed();
    let sent: Vec<u8> =
        (0..BYTES).map(|at| (at ^ (at >> 8) ^ (at >> 16)).to_le_bytes()[0]).collect();
    let mut writer = stream.try_clone().unwrap();
    let begun = Instant::now();
    let back = thread::scope(|scope| {
        scope.spawn(|| {
            writer.write_all(&sent).unwrap();
            writer.shutdown(Shutdown::Write).unwrap();
        });
        let mut back = Vec::with_capacity(BYTES);
        stream.read_to_end(&mut back).unwrap();
        back
    });
    let took = begun.elapsed();
    assert!(back == sent, "{address}: {} bytes, or others", back.len());
    let rate = 8.0 / took.as_secs_f64();
    eprintln!("{address}: first byte after {first:?}, 8 MiB each way at {rate:.1} MiB/s");
}

fn assert_refusals_are_told(forkd: &Forkd, sandbox: &str) {
    let closed = Forward::to(forkd, sandbox, 7);
    let said = closed.refusal();
    assert!(said.contains("listens on port 7"), "{said}");
    let open = Forward::to(forkd, sandbox, SERVERS[0].1);
    let forward = Forward::to(forkd, sandbox, SERVERS[1].2);
    let mut held = forward.greeted();
    forkd.ok(&["pause", sandbox]);
    let said = open.refusal();
    assert!(said.contains("is paused"), "{said}");
    held.write_all(b"waits").unwrap();
    forkd.ok(&["resume", sandbox]);
    let mut back = [0; 5];
    held.read_exact(&mut back).unwrap();
    assert_eq!(&back, b"waits");
    assert_eq!(open.page(), "source 10.42.0.1");
}

/// A held connection goes on in the source. In each child it is reset, and the child serves its own
/// page on the same ports.
fn assert_branches_part(forkd: &Forkd, source: &str) {
    let forwards: Vec<_> = SERVERS.map(|server| Forward::to(forkd, source, server.2)).into();
    let mut held: Vec<TcpStream> = forwards.iter().map(Forward::greeted).collect();
    let branch = forkd.json(&["branch", source, "-n", "3", "--tag", "b"]);
    held.iter_mut().for_each(|stream| speak(stream, b"still here"));
    let children: Vec<String> = (0..3)
        .map(|at| branch["children"][at]["sandbox"]["id"].as_str().unwrap().to_owned())
        .collect();
    for (number, child) in children.iter().enumerate() {
        let resets = || forkd.ok(&["eval", child, "ended == ['ConnectionResetError'] * 3"]);
        wait_until("the child's server sees resets", || resets() == "True");
        forkd.ok(&["eval", child, &format!("page = 'child {number}'")]);
    }
    for (_, http, _, peer) in SERVERS {
        let of = |child: &String| Forward::to(forkd, child, http);
        let all: Vec<Forward> = children.iter().map(of).collect();
        thread::scope(|scope| {
            for (number, forward) in all.into_iter().enumerate() {
                scope.spawn(move || assert_eq!(forward.page(), format!("child {number} {peer}")));
            }
        });
    }
    held.iter_mut().for_each(|stream| speak(stream, b"and now"));
    assert_eq!(forkd.ok(&["eval", source, "(page, ended)"]), "('source', [])");
}

/// When the sandbox is no more, there is nothing to forward to.
fn assert_end_is_told(forkd: &Forkd, sandbox: &str) {
    let mut forward = Forward::to(forkd, sandbox, SERVERS[0].1);
    forkd.ok(&["rm", sandbox]);
    let said = forward.refusal();
    assert!(said.starts_with("error:") && said.contains(sandbox), "{said}");
    assert_eq!(forward.process.wait().unwrap().code(), Some(1));
    let (error, _) = forkd.refused(&["port", sandbox, "80"]);
    assert!(error.contains(sandbox), "it is said at once: {error}");
}
