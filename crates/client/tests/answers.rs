//! The client against a socket that speaks prepared HTTP: what comes back as what.

#![expect(clippy::unwrap_used, reason = "a test ends where its set-up fails")]

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::Duration;

use forkd_api::{BuildEvent, CreateSnapshot};
use forkd_client::{Client, ClientError, Dependents, ImportArtifact, Target};

/// Answers one request with `answer` and gives back what was asked.
fn answer_once(socket: &Path, answer: &'static str) -> JoinHandle<String> {
    let listener = UnixListener::bind(socket).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = Vec::new();
        let mut buffer = [0; 4096];
        while !request.windows(4).any(|four| four == b"\r\n\r\n") {
            let got = stream.read(&mut buffer).unwrap();
            request.extend_from_slice(&buffer[..got]);
        }
        stream.write_all(answer.as_bytes()).unwrap();
        String::from_utf8_lossy(&request).into_owned()
    })
}

fn client(socket: &Path) -> Client {
    Client::new(Target::Socket(socket.to_owned())).unwrap()
}

#[tokio::test]
async fn an_error_body_becomes_a_typed_error() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("s");
    let server = answer_once(
        &socket,
        "HTTP/1.1 409 Conflict\r\nconnection: close\r\n\r\n\
         {\"error\":\"needed by x\",\"code\":\"snapshot_in_use\",\"hint\":\"remove x\"}",
    );
    let error = client(&socket).delete_snapshot("py", Dependents::Remove).await.unwrap_err();
    let ClientError::Api(failure) = error else { panic!("{error:?}") };
    assert_eq!((failure.status, failure.code.as_str()), (409, "snapshot_in_use"));
    assert_eq!((failure.message.as_str(), failure.hint.as_str()), ("needed by x", "remove x"));
    let request = server.join().unwrap();
    assert!(request.starts_with("DELETE /v1/snapshots/py?cascade=true HTTP/1.1\r\n"), "{request}");
}

#[tokio::test]
async fn an_absent_daemon_is_unreachable_and_a_stranger_is_not_understood() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("s");
    let error = client(&socket).health().await.unwrap_err();
    assert!(error.is_unreachable(), "{error:?}");
    let server = answer_once(&socket, "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n<html>");
    let error = client(&socket).health().await.unwrap_err();
    assert!(matches!(error, ClientError::NotUnderstood { status: 200, .. }), "{error:?}");
    server.join().unwrap();
}

#[tokio::test]
async fn a_build_gives_its_steps_and_then_its_end() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("s");
    let server = answer_once(
        &socket,
        "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{\"step\":\"boot\"}\n\
         {\"error\":{\"error\":\"no\",\"code\":\"boot_failed\",\"hint\":\"h\"}}\n",
    );
    let mut build =
        client(&socket).build_snapshot(&CreateSnapshot::new("py", "python")).await.unwrap();
    assert_eq!(build.next().await.unwrap(), Some(BuildEvent::Step("boot".to_owned())));
    assert!(matches!(build.next().await.unwrap(), Some(BuildEvent::Error(_))));
    assert_eq!(build.next().await.unwrap(), None);
    assert!(server.join().unwrap().to_ascii_lowercase().contains("accept: application/x-ndjson"));
}

#[tokio::test]
async fn the_headers_of_an_import_are_sent_before_there_is_anything_to_read() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("s");
    let server = answer_once(
        &socket,
        "HTTP/1.1 409 Conflict\r\nconnection: close\r\n\r\n\
         {\"error\":\"it is there\",\"code\":\"snapshot_exists\",\"hint\":\"h\"}",
    );
    // Nothing is ever written to it, and it does not end.
    let (silent, open) = std::io::pipe().unwrap();
    let (client, how) = (client(&socket), ImportArtifact::default());
    let imported = client.import_snapshot(&how, (silent, None), |_| {});
    let imported = tokio::time::timeout(Duration::from_secs(30), imported).await;
    let error = imported.expect("it waits for something to read").unwrap_err();
    assert!(matches!(error, ClientError::Api(_)), "{error:?}");
    assert!(server.join().unwrap().starts_with("POST /v1/artifacts HTTP/1.1\r\n"));
    drop(open);
}
