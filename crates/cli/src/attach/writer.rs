//! A thread that writes what a program wrote: a terminal or a pipe may take nothing for a while,
//! and nothing else shall stand still then.

use std::io::{self, Write as _};
use std::sync::PoisonError;
use std::thread;

use anyhow::Context as _;
use tokio::sync::{mpsc, oneshot};

use super::joined::Sink;

/// Pieces that wait to be written; more hold the program back.
const PIECES: usize = 4;

/// A piece and the stream that it is for.
enum Piece {
    Stdout(Vec<u8>),
    Stderr(Vec<u8>),
}

pub(super) struct Writer {
    pieces: mpsc::Sender<Piece>,
    done: oneshot::Receiver<io::Result<()>>,
}

impl Writer {
    pub(super) fn start(sink: Sink) -> Self {
        let (pieces, mut received) = mpsc::channel(PIECES);
        let (tell, done) = oneshot::channel();
        thread::spawn(move || {
            let mut written = Ok(());
            while let Some(piece) = received.blocking_recv() {
                written = write(&sink, piece);
                if written.is_err() {
                    break;
                }
            }
            // Nobody listens when we are interrupted.
            tell.send(written).ok();
        });
        Self { pieces, done }
    }

    /// Whether somebody takes it.
    pub(super) async fn stdout(&self, bytes: Vec<u8>) -> bool {
        self.pieces.send(Piece::Stdout(bytes)).await.is_ok()
    }

    /// Whether somebody takes what goes to standard output; standard error may be closed.
    pub(super) async fn stderr(&self, bytes: Vec<u8>) -> bool {
        self.pieces.send(Piece::Stderr(bytes)).await.is_ok()
    }

    /// Waits until all is written. A reader that has seen enough is no failure.
    pub(super) async fn finish(self) -> anyhow::Result<()> {
        drop(self.pieces);
        match self.done.await {
            Ok(Err(error)) if error.kind() != io::ErrorKind::BrokenPipe => {
                Err(error).context("write to standard output")
            }
            _ => Ok(()),
        }
    }
}

/// Goes to the beginning of a line of the terminal, which is in raw mode.
pub(super) fn line_end() {
    io::stderr().write_all(b"\r\n").ok();
}

fn write(sink: &Sink, piece: Piece) -> io::Result<()> {
    match (sink, piece) {
        (Sink::Streams, Piece::Stdout(bytes)) => {
            let mut stdout = io::stdout().lock();
            stdout.write_all(&bytes)?;
            stdout.flush()?;
        }
        (Sink::Streams, Piece::Stderr(bytes)) => {
            io::stderr().write_all(&bytes).ok();
        }
        (Sink::Memory(collected), piece) => {
            let mut collected = collected.lock().unwrap_or_else(PoisonError::into_inner);
            match piece {
                Piece::Stdout(bytes) => collected.stdout.extend(bytes),
                Piece::Stderr(bytes) => collected.stderr.extend(bytes),
            }
        }
    }
    Ok(())
}
