//! A guest agent that says yes to what a template and a start need, and no more. What is written to
//! its files is forgotten.

use std::collections::{BTreeMap, HashMap};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use forkd_protocol::{
    FrameDecoder, INPUT_WINDOW_BYTES, PROTOCOL_MAX, Reply, Request, code, credit_cost,
    decode_request, encode_reply,
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

fn converse(guests: &Guests, mut stream: UnixStream) {
    let mut decoder = FrameDecoder::new();
    let mut written = HashMap::new();
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        let mut replies = Vec::new();
        decoder.feed(&buffer[..count], |frame| {
            let Ok(frame) = frame else { return };
            if let Ok(request) = decode_request(frame.message) {
                let bytes = written.entry(frame.request_id).or_default();
                let reply = answer(guests, request, bytes);
                encode_reply(frame.request_id, &reply, &mut replies).ok();
            }
        });
        if guests.hang_up.load(Ordering::Relaxed) || stream.write_all(&replies).is_err() {
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
