//! The raw byte stream that a connection of a client becomes when it is upgraded.
//!
//! Guarantees: each direction ends by itself; whoever does not read holds up the other; what the
//! sandbox resets is reset for the client where its transport can (TCP, with TLS or not), and
//! closed otherwise. A stream keeps its connection's place among those that a listener takes.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use forkd_engine::PortStream;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use hyper_util::server::conn::auto::upgrade::downcast;
use rustix::net::sockopt::set_socket_linger;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, copy_bidirectional_with_sizes};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::OwnedSemaphorePermit;
use tokio_rustls::server::TlsStream;

/// What one direction holds.
const BUFFER_BYTES: usize = 64 << 10;

/// A connection's place among those of its listener. It is free when the last holder drops it.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    _permit: Arc<OwnedSemaphorePermit>,
}

impl From<OwnedSemaphorePermit> for Place {
    fn from(permit: OwnedSemaphorePermit) -> Self {
        Self { _permit: Arc::new(permit) }
    }
}

/// Passes bytes between a client and a port, until both directions have ended or one has failed.
pub(crate) async fn pass(client: Upgraded, port: PortStream) {
    let client = match downcast::<TokioIo<UnixStream>>(client) {
        Ok(parts) => {
            let io = parts.io.into_inner();
            return join(io, parts.read_buf, port, UnixStream::as_fd).await;
        }
        Err(client) => client,
    };
    let client = match downcast::<TokioIo<TcpStream>>(client) {
        Ok(parts) => {
            let io = parts.io.into_inner();
            return join(io, parts.read_buf, port, TcpStream::as_fd).await;
        }
        Err(client) => client,
    };
    match downcast::<TokioIo<TlsStream<TcpStream>>>(client) {
        Ok(parts) => {
            let io = parts.io.into_inner();
            join(io, parts.read_buf, port, |io| io.get_ref().0.as_fd()).await;
        }
        Err(_) => tracing::error!("a connection of a kind that no listener takes"),
    }
}

/// `early` is what the client has sent behind its request.
async fn join<S: AsyncRead + AsyncWrite + Unpin>(
    mut client: S,
    early: Bytes,
    mut port: PortStream,
    socket: impl Fn(&S) -> BorrowedFd<'_>,
) {
    let passed = async {
        port.write_all(&early).await?;
        copy_bidirectional_with_sizes(&mut client, &mut port, BUFFER_BYTES, BUFFER_BYTES).await
    };
    match passed.await {
        Ok((sent, received)) => tracing::debug!(sent, received, "a stream to a port has ended"),
        Err(error) => {
            tracing::debug!(%error, "a stream to a port broke off");
            // Nobody shall take what has come for the whole.
            set_socket_linger(socket(&client), Some(Duration::ZERO)).ok();
        }
    }
}
