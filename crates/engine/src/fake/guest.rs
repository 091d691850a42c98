//! A guest agent that says yes to what a template and a start need, and to little more. What is
//! written to its files is forgotten with the connection, and at once if it is long. What is no
//! such file is a directory, or a symbolic link: `NAME.link`, to `NAME` if that was written.

use std::collections::{BTreeMap, HashMap};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use forkd_protocol::{
    Attributes, ChangeDetail, ChangedEntry, DATA_BYTES_MAX, FrameDecoder, INPUT_WINDOW_BYTES,
    LinkTarget, PROTOCOL_MAX, Reply, Request, code, credit_cost, decode_request, encode_reply,
};

/// Longer files are forgotten. One is read within a request's first credit.
const FILE_BYTES_MAX: usize = 256 * 1024;
/// Nothing is written below it.
const REFUSED: &str = "/refused/";

/// How guests behave.
#[derive(Debug, Default)]
pub struct Guests {
    /// Greeted, they close the connection.
    pub hang_up: AtomicBool,
    /// They confirm the identity of another sandbox.
    pub confuse_identities: AtomicBool,
    /// They refuse to write files.
    pub refuse_files: AtomicBool,
    /// Ports of their loopback address, and through which port of their own each is reached.
    pub loopback: Mutex<BTreeMap<u16, u16>>,
    /// Asked for a port, they refuse with this word instead.
    pub refuse_ports: Mutex<Option<&'static str>>,
}

/// Serves connections until the port is closed.
pub fn serve(guests: &Arc<Guests>, port: &UnixListener) {
    while let Ok((stream, _)) = port.accept() {
        let guests = Arc::clone(guests);
        std::thread::spawn(move || converse(&guests, stream));
    }
}

/// What a connection has heard.
#[derive(Default)]
struct Heard {
    /// Files that are being written, by request.
    written: HashMap<u64, Written>,
    /// Those that were, by their paths.
    files: BTreeMap<String, Written>,
    watches: BTreeMap<String, Watch>,
}

/// A file.
#[derive(Debug, Default, Clone)]
struct Written {
    path: String,
    bytes: u64,
    /// None once it is too long.
    content: Option<Vec<u8>>,
    attributes: Attributes,
}

impl Written {
    fn add(&mut self, data: &[u8]) {
        self.bytes += data.len() as u64;
        if let Some(mut content) = self.content.take() {
            content.extend(data);
            self.content = Some(content).filter(|content| content.len() <= FILE_BYTES_MAX);
        }
    }
}

struct Watch {
    record: String,
    root: String,
    seen: Vec<Reply>,
}

impl Heard {
    /// Answers requests about watches.
    fn of_watches(&mut self, request: &Request) -> Option<Vec<Reply>> {
        let none = || {
            let message = "a test has not made it".to_owned();
            vec![Reply::Error { code: code::NOT_KEPT.to_owned(), message }]
        };
        match request {
            Request::KeepWatch { keep, path, .. } => {
                let (record, root) = (keep.record.clone(), path.clone());
                self.watches.insert(keep.name.clone(), Watch { record, root, seen: Vec::new() });
                Some(vec![Reply::Done {}])
            }
            Request::TakeChanges { name, .. } => {
                let Some(watch) = self.watches.get_mut(name) else { return Some(none()) };
                let mut replies = vec![Reply::KeptWatch { record: watch.record.clone() }];
                replies.append(&mut watch.seen);
                replies.push(Reply::Done {});
                Some(replies)
            }
            Request::EndWatch { name } => {
                Some(self.watches.remove(name).map_or_else(none, |_| vec![Reply::Done {}]))
            }
            _ => None,
        }
    }

    /// Answers requests about what is there.
    fn of_files(&self, request: &Request) -> Option<Vec<Reply>> {
        match request {
            Request::StatFile { path, links, .. } => Some(vec![self.entry(path, *links)]),
            Request::ReadFile { path, offset, length, .. } => {
                let path = path.strip_suffix(".link").unwrap_or(path);
                let content = self.files.get(path)?.content.as_ref()?;
                let whole = content.len();
                let from = usize::try_from(*offset).unwrap_or(whole).min(whole);
                let most = length.and_then(|most| usize::try_from(most).ok()).unwrap_or(whole);
                let part = &content[from..from.saturating_add(most).min(whole)];
                let piece = |data: &[u8]| Reply::FileData { data: data.to_vec() };
                let end = Reply::FileEnd { bytes: part.len() as u64 };
                Some(part.chunks(DATA_BYTES_MAX).map(piece).chain([end]).collect())
            }
            Request::Credit { .. } => Some(Vec::new()),
            _ => None,
        }
    }

    fn entry(&self, path: &str, links: bool) -> Reply {
        let file = |path: &str| self.files.get(path);
        let of_file = |file: &Written| ("file", file.bytes, 0o644);
        let target = path.strip_suffix(".link").map(|to| (to, file(to)));
        let (kind, bytes, mode) = match target {
            Some(_) => ("symlink", 1, 0o777),
            None => file(path).map_or(("directory", 0, 0o755), of_file),
        };
        let link = target.filter(|_| links).map(|(to, file)| {
            let (kind, bytes, mode) = file.map_or(("", 0, 0), of_file);
            let path = file.map(|_| to.to_owned()).unwrap_or_default();
            LinkTarget { path, kind: kind.to_owned(), bytes, mode }
        });
        Reply::Entry {
            name: path.to_owned(),
            kind: kind.to_owned(),
            bytes,
            mode,
            modified_unix_s: 0,
            owner: None,
            group: None,
            attributes: file(path).map(|file| file.attributes.clone()).unwrap_or_default(),
            link,
        }
    }

    /// A file is in place.
    fn see(&mut self, id: u64) {
        let Some(written) = self.written.remove(&id) else { return };
        let (path, bytes) = (written.path.clone(), written.bytes);
        let detail = match self.files.insert(path.clone(), written) {
            None => ChangeDetail::Put,
            Some(_) => ChangeDetail::Replaced,
        };
        let kind = "file".to_owned();
        let entry = Some(ChangedEntry { kind, bytes, mode: 0o644, modified_unix_s: 0 });
        for watch in self.watches.values_mut().filter(|watch| path.starts_with(&watch.root)) {
            let (kind, path, entry) = ("created".to_owned(), path.clone(), entry.clone());
            watch.seen.push(Reply::Change { kind, path, from: None, entry, detail });
        }
    }
}

fn converse(guests: &Guests, mut stream: UnixStream) {
    let mut decoder = FrameDecoder::new();
    let mut heard = Heard::default();
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        let mut sent = Vec::new();
        decoder.feed(&buffer[..count], |frame| {
            let Ok(frame) = frame else { return };
            let id = frame.request_id;
            let Ok(request) = decode_request(frame.message) else { return };
            let known = heard.of_watches(&request).or_else(|| heard.of_files(&request));
            let replies = known.unwrap_or_else(|| {
                let written = heard.written.entry(id).or_default();
                if let Request::WriteFile { path, attributes, .. } = &request {
                    let (path, attributes) = (path.clone(), attributes.clone());
                    *written = Written { path, bytes: 0, content: Some(Vec::new()), attributes };
                }
                let reply = answer(guests, request, written);
                if matches!(reply, Reply::Written { .. }) {
                    heard.see(id);
                }
                vec![reply]
            });
            for reply in replies {
                encode_reply(id, &reply, &mut sent).ok();
            }
        });
        if guests.hang_up.load(Ordering::Relaxed) || stream.write_all(&sent).is_err() {
            return;
        }
    }
}

/// The answer to a request that may go on with a file.
fn answer(guests: &Guests, request: Request, written: &mut Written) -> Reply {
    match request {
        Request::Hello { nonce, .. } => Reply::Welcome {
            protocol: PROTOCOL_MAX,
            nonce,
            agent_version: "test".to_owned(),
            kernel_release: "test".to_owned(),
            boot_id: "test".to_owned(),
            has_root_disk: false,
            python: false,
            is_init: true,
            epoch: 1,
            users: true,
            contexts: true,
            kept: Some(0),
        },
        Request::Ping {} => {
            Reply::Pong { uptime_ns: 1, epoch: 1, requests_running: 0, frames_rejected: 0 }
        }
        Request::Renew { instance_id, .. } => {
            let other = guests.confuse_identities.load(Ordering::Relaxed);
            let instance_id = if other { "sb-000000000000".to_owned() } else { instance_id };
            Reply::Renewed { instance_id, clock_step_ns: 0, hooks: Vec::new() }
        }
        Request::WriteFile { path, .. }
            if !guests.refuse_files.load(Ordering::Relaxed) && !path.starts_with(REFUSED) =>
        {
            Reply::Credit { bytes: INPUT_WINDOW_BYTES }
        }
        Request::Input { data, eof } => {
            written.add(&data);
            if !eof {
                return Reply::Credit { bytes: credit_cost(data.len()) };
            }
            Reply::Written { bytes: written.bytes }
        }
        Request::ListPorts { .. } | Request::SetClock { .. } => Reply::Done {},
        Request::OpenPort { port } => open_port(guests, port),
        Request::AskUsage {} => Reply::Usage {
            cpus: 2,
            cpu_permille: 125,
            memory: 1 << 30,
            memory_used: 1 << 28,
            memory_cached: 1 << 27,
            disk: 1 << 33,
            disk_used: 1 << 32,
        },
        other => Reply::Error {
            code: "refused".to_owned(),
            message: format!("no test asks for {other:?}"),
        },
    }
}

fn open_port(guests: &Guests, port: u16) -> Reply {
    let refusal = *guests.refuse_ports.lock().unwrap_or_else(PoisonError::into_inner);
    let loopback = guests.loopback.lock().unwrap_or_else(PoisonError::into_inner);
    match (refusal, loopback.get(&port)) {
        (None, Some(&port)) => Reply::PortOpened { port },
        (refusal, _) => Reply::Error {
            code: refusal.unwrap_or(code::PORT_CLOSED).to_owned(),
            message: "a test wants it so".to_owned(),
        },
    }
}
