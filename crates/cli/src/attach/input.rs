//! What the program gets to read.

use std::future::Future;
use std::io::{self, Read as _};
use std::thread;

use forkd_client::{ClientError, InputEnd};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::escape::{Escape, Typed};
use super::joined::{Input, Joined};
use crate::console::report;

/// Largest piece that is sent at once.
const PIECE_BYTES: usize = 64 << 10;

/// Keys that wait for a program which does not read; more are dropped.
const KEYS_WAITING: usize = 1024;

/// Sends input until it is dropped.
pub(super) struct Feed(Option<JoinHandle<()>>);

impl Drop for Feed {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

impl Feed {
    /// Begins to read standard input if the process shall have it. The second part is there once
    /// the person at the terminal wants to leave.
    pub(super) fn start(joined: &Joined) -> (Self, impl Future<Output = ()> + use<>) {
        let (leave, left) = oneshot::channel();
        let pieces = match joined.input {
            Input::None => None,
            Input::Stream => Some(stream()),
            Input::Keys => Some(keys(leave)),
        };
        let task = pieces.map(|pieces| tokio::spawn(feed(joined.clone(), pieces)));
        let left = async move {
            // Nobody can leave where no keys are read.
            if left.await.is_err() {
                std::future::pending().await
            }
        };
        (Self(task), left)
    }
}

/// Calls `take` with what standard input has, until it has no more or `take` gives false.
fn read(mut take: impl FnMut(&[u8]) -> bool) {
    let mut buffer = vec![0; PIECE_BYTES];
    let mut stdin = io::stdin().lock();
    loop {
        match stdin.read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // What cannot be read has ended.
            Ok(0) | Err(_) => return,
            Ok(count) if take(&buffer[..count]) => {}
            Ok(_) => return,
        }
    }
}

/// Standard input piece by piece; it waits for the program. A thread reads it, for as long as this
/// program runs.
fn stream() -> mpsc::Receiver<Vec<u8>> {
    let (send, pieces) = mpsc::channel(1);
    thread::spawn(move || read(|piece| send.blocking_send(piece.to_vec()).is_ok()));
    pieces
}

/// Keys as they are typed. They are looked at even where the program takes none, so that a person
/// can always leave.
fn keys(leave: oneshot::Sender<()>) -> mpsc::Receiver<Vec<u8>> {
    let (send, pieces) = mpsc::channel(KEYS_WAITING);
    thread::spawn(move || {
        let mut escape = Escape::default();
        read(|typed| {
            let Typed { bytes, leaves } = escape.typed(typed);
            if !bytes.is_empty() {
                send.try_send(bytes).ok();
            }
            !leaves
        });
        // Or the terminal is gone.
        leave.send(()).ok();
    });
    pieces
}

async fn feed(joined: Joined, mut pieces: mpsc::Receiver<Vec<u8>>) {
    while let Some(piece) = pieces.recv().await {
        if !send(&joined, piece, InputEnd::Open).await {
            return;
        }
    }
    // A terminal has no end of input but the key for it.
    if joined.input == Input::Stream {
        send(&joined, Vec::new(), InputEnd::Eof).await;
    }
}

/// Whether the program may take more.
async fn send(joined: &Joined, data: Vec<u8>, end: InputEnd) -> bool {
    loop {
        let sent = joined.client.send_stdin(&joined.sandbox, &joined.process, data.clone(), end);
        match sent.await {
            Ok(()) => return true,
            Err(ClientError::Api(failure)) => match failure.code.as_str() {
                // It does not read; a pipe would wait as well.
                "input_waits" => {}
                // Its output tells how it ended.
                "process_ended" | "process_not_found" | "sandbox_not_found" | "no_input" => {
                    return false;
                }
                _ => {
                    report::note(&format!("error: input: {}", report::printable(&failure.message)));
                    return false;
                }
            },
            Err(_) => return false,
        }
    }
}
