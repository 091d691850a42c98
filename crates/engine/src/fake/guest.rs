//! A guest agent that says yes to what a start needs, and no more.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forkd_protocol::{FrameDecoder, PROTOCOL_MAX, Reply, Request, decode_request, encode_reply};

/// How guests behave.
#[derive(Debug, Default)]
pub struct Guests {
    /// Greeted, they close the connection.
    pub hang_up: AtomicBool,
    /// They confirm the identity of another sandbox.
    pub confuse_identities: AtomicBool,
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
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        let mut replies = Vec::new();
        decoder.feed(&buffer[..count], |frame| {
            let Ok(frame) = frame else { return };
            if let Ok(request) = decode_request(frame.message) {
                encode_reply(frame.request_id, &answer(guests, request), &mut replies).ok();
            }
        });
        if guests.hang_up.load(Ordering::Relaxed) || stream.write_all(&replies).is_err() {
            return;
        }
    }
}

fn answer(guests: &Guests, request: Request) -> Reply {
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
        },
        Request::Ping {} => {
            Reply::Pong { uptime_ns: 1, epoch: 1, requests_running: 0, frames_rejected: 0 }
        }
        Request::Renew { instance_id, .. } => {
            let other = guests.confuse_identities.load(Ordering::Relaxed);
            let instance_id = if other { "sb-000000000000".to_owned() } else { instance_id };
            Reply::Renewed { instance_id, clock_step_ns: 0, hooks: Vec::new() }
        }
        other => Reply::Error {
            code: "refused".to_owned(),
            message: format!("no test asks for {other:?}"),
        },
    }
}
