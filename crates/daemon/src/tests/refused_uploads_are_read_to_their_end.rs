//! Goal: a client whose upload the guest refuses hears why, however slowly it sends.
//!
//! Method: a body whose second half comes when the guest has refused long ago. Breaks when the
//! answer comes before all of it was read: a client that still sends then sees a connection that
//! broke, and nothing of the answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::Request;
use forkd_engine::Limits;
use futures_util::stream;
use tower::ServiceExt as _;

use super::lab::{Lab, read, token};
use crate::access::Peer;

const PIECES: usize = 5;
/// A fake guest refuses what is below `/refused` at once.
const BETWEEN: Duration = Duration::from_millis(100);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_answer_to_an_upload_that_is_refused_comes_when_all_was_read() {
    let lab = Lab::new(Limits::default()).await;
    let sandbox = lab.make("ann", "t").await.sandbox;
    let sent = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&sent);
    let pieces = stream::unfold(0, move |number| {
        let count = Arc::clone(&count);
        async move {
            tokio::time::sleep(BETWEEN).await;
            count.fetch_add(1, Ordering::Relaxed);
            let piece = Ok::<_, std::io::Error>(Bytes::from_static(b"piece"));
            (number < PIECES).then_some((piece, number + 1))
        }
    });
    let request = Request::put(format!("/v1/sandboxes/{sandbox}/files?path=/refused/file"))
        .header("authorization", format!("Bearer {}", token("ann")))
        .extension(Peer::Tcp("10.1.2.3:4".parse().unwrap()));
    let request = request.body(Body::from_stream(pieces)).unwrap();
    let answer = read(lab.router.clone().oneshot(request).await.unwrap()).await;
    assert_eq!(answer.status, 422, "{answer:?}");
    assert_eq!(sent.load(Ordering::Relaxed), PIECES + 1, "to its end");
}
