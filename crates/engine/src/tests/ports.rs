//! Connections to ports of a sandbox: who gets one, by which way, and how each failure is told.
//! What passes is the gateway's and the guest agent's business.

use std::io::ErrorKind;

use forkd_netd_protocol::Failure;
use forkd_protocol::code;
use forkd_types::SandboxState;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::sync::mpsc::UnboundedReceiver;

use super::fixture::Fixture;
use crate::guest::GuestError;
use crate::{Caller, EngineError, PortStream, Role, Sandbox};

const PORT: u16 = 8080;

/// A connection, and the server's end of it.
async fn joined(
    lab: &Fixture,
    sandbox: &Sandbox,
    server: &mut UnboundedReceiver<UnixStream>,
) -> (PortStream, UnixStream) {
    let near = lab.engine.dial(&sandbox.id, PORT).await.unwrap();
    (near, server.recv().await.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_carries_both_directions_and_tells_an_end_from_a_reset() {
    let lab = Fixture::new().await;
    let child = lab.child().await;
    let mut server = lab.ports.listen(PORT);
    let (mut near, mut far) = joined(&lab, &child, &mut server).await;
    near.write_all(b"question").await.unwrap();
    near.shutdown().await.unwrap();
    let mut text = String::new();
    far.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "question");
    far.write_all(b"answer").await.unwrap();
    drop(far);
    text.clear();
    near.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "answer", "both have ended in order");

    let (mut near, mut far) = joined(&lab, &child, &mut server).await;
    far.write_all(b"part").await.unwrap();
    far.shutdown().await.unwrap();
    text.clear();
    near.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "part", "the guest has ended its direction and reads on");

    let (mut near, mut far) = joined(&lab, &child, &mut server).await;
    far.write_all(b"part").await.unwrap();
    drop(far);
    text.clear();
    let error = near.read_to_string(&mut text).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_on_the_loopback_address_is_reached_through_the_guest_agent() {
    let lab = Fixture::new().await;
    let child = lab.child().await;
    lab.guests.loopback.lock().unwrap().insert(PORT, 40_000);
    let mut relay = lab.ports.listen(40_000);
    let mut near = lab.engine.dial(&child.id, PORT).await.unwrap();
    relay.recv().await.unwrap().write_all(b"hello").await.unwrap();
    let mut word = [0; 5];
    near.read_exact(&mut word).await.unwrap();
    assert_eq!(&word, b"hello");
    // What listens on the guest's own address is reached without it.
    let mut direct = lab.ports.listen(PORT);
    lab.engine.dial(&child.id, PORT).await.unwrap();
    assert!(direct.try_recv().is_ok() && relay.try_recv().is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_way_to_fail_is_told_from_the_others() {
    let lab = Fixture::new().await;
    let child = lab.child().await;
    let dial = async |port| lab.engine.dial(&child.id, port).await.unwrap_err();
    let closed = dial(PORT).await;
    assert!(matches!(closed, EngineError::PortClosed { port: PORT, .. }), "{closed}");
    lab.ports.fail(1, Failure::PortSilent(1));
    let silent = dial(1).await;
    assert!(matches!(silent, EngineError::PortSilent { port: 1, .. }), "{silent}");
    lab.ports.fail(2, Failure::Full(child.id.clone()));
    let full = dial(2).await;
    assert!(matches!(full, EngineError::TooManyConnections { .. }), "{full}");
    lab.ports.fail(3, Failure::NoLink(child.id.clone()));
    let lost = dial(3).await;
    assert!(matches!(lost, EngineError::NetworkUnavailable(_)), "{lost}");
    // The guest agent names a port on which nothing listens.
    lab.guests.loopback.lock().unwrap().insert(PORT, 40_000);
    let closed = dial(PORT).await;
    assert!(matches!(closed, EngineError::PortClosed { .. }), "{closed}");
    let refuse = |word| *lab.guests.refuse_ports.lock().unwrap() = Some(word);
    refuse(code::BUSY);
    let full = dial(PORT).await;
    assert!(matches!(full, EngineError::TooManyConnections { .. }), "{full}");
    refuse(code::UNSUPPORTED);
    let old = dial(PORT).await;
    assert!(matches!(&old, EngineError::Guest(GuestError::Remote { .. })), "{old}");
    assert!(old.to_string().contains("build the template again"), "{old}");

    lab.engine.pause_sandbox(&child.id).await.unwrap();
    let _server = lab.ports.listen(PORT);
    for refused in [dial(PORT).await, lab.engine.ports(&child.id).await.unwrap_err()] {
        let is_paused =
            matches!(refused, EngineError::SandboxNotRunning { state: SandboxState::Paused, .. });
        assert!(is_paused, "{refused}");
    }
    lab.engine.resume_sandbox(&child.id).await.unwrap();
    let bob = lab.engine.seen_by(Caller::new("bob".parse().unwrap(), Role::User));
    let unknown = bob.dial(&child.id, PORT).await.unwrap_err();
    assert!(matches!(unknown, EngineError::UnknownSandbox { .. }), "{unknown}");
    lab.engine.dial(&child.id, PORT).await.unwrap();
}
