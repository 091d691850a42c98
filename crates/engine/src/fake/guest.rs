//! A guest agent that says yes to what a template and a start need, and to little more. What is
//! written to its files is forgotten, but for watches that it keeps. Every path is a directory.

use std::collections::{BTreeMap, HashMap};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use forkd_protocol::{
    Attributes, ChangedEntry, FrameDecoder, INPUT_WINDOW_BYTES, PROTOCOL_MAX, Reply, Request, code,
    credit_cost, decode_request, encode_reply,
};

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
    /// Bytes of files, by request.
    written: HashMap<u64, u64>,
    /// Where they go.
    paths: HashMap<u64, String>,
    watches: BTreeMap<String, Watch>,
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

    /// A file is in place.
    fn see(&mut self, id: u64) {
        let Some(path) = self.paths.remove(&id) else { return };
        let (kind, bytes) = ("file".to_owned(), self.written.get(&id).copied().unwrap_or(0));
        let entry = Some(ChangedEntry { kind, bytes, mode: 0o644, modified_unix_s: 0 });
        for watch in self.watches.values_mut().filter(|watch| path.starts_with(&watch.root)) {
            let (kind, path, entry) = ("created".to_owned(), path.clone(), entry.clone());
            watch.seen.push(Reply::Change { kind, path, from: None, entry });
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
            let replies = heard.of_watches(&request).unwrap_or_else(|| {
                if let Request::WriteFile { path, .. } = &request {
                    heard.paths.insert(id, path.clone());
                }
                let reply = answer(guests, request, heard.written.entry(id).or_default());
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

/// The answer to a request that has written so many bytes of a file.
fn answer(guests: &Guests, request: Request, written: &mut u64) -> Reply {
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
        Request::WriteFile { .. } if !guests.refuse_files.load(Ordering::Relaxed) => {
            Reply::Credit { bytes: INPUT_WINDOW_BYTES }
        }
        Request::Input { data, eof } => {
            *written += data.len() as u64;
            if !eof {
                return Reply::Credit { bytes: credit_cost(data.len()) };
            }
            Reply::Written { bytes: *written }
        }
        Request::ListPorts { .. } | Request::SetClock { .. } => Reply::Done {},
        Request::OpenPort { port } => open_port(guests, port),
        Request::StatFile { path, .. } => Reply::Entry {
            name: path,
            kind: "directory".to_owned(),
            bytes: 0,
            mode: 0o755,
            modified_unix_s: 0,
            owner: None,
            group: None,
            attributes: Attributes::new(),
        },
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
