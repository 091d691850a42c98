//! What a client still sends when its request is refused already.
//!
//! Many clients read the answer only when they have sent all. If the connection closed before, they
//! would say that it broke, and not why they were refused. So the rest of the body is read, within
//! limits, and thrown away.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, BodyDataStream, Bytes};
use axum::extract::Request;
use futures_util::{Stream, StreamExt as _};
use tokio::time::timeout;

/// A client that still sends more is cut off.
const BYTES_MAX: usize = 64 << 20;
/// And so is one that takes longer.
const DEADLINE: Duration = Duration::from_secs(60);

/// The body of a request, once whoever reads it has let go of it.
#[derive(Debug, Default, Clone)]
pub(super) struct Unread(Arc<Mutex<Option<BodyDataStream>>>);

impl Unread {
    /// The same request, whose body comes here when it is dropped.
    pub(super) fn of(request: Request) -> (Request, Self) {
        let unread = Self::default();
        let request = request.map(|body| {
            let body = Some(body.into_data_stream());
            Body::from_stream(Lent { body, back: unread.clone() })
        });
        (request, unread)
    }

    /// Reads what is left, if the body was let go of before its end.
    pub(super) async fn skip(self) {
        let Some(mut body) = self.take() else { return };
        let skip = async {
            let mut bytes = 0;
            while let Some(Ok(data)) = body.next().await {
                bytes += data.len();
                if bytes > BYTES_MAX {
                    return;
                }
            }
        };
        timeout(DEADLINE, skip).await.ok();
    }

    fn take(&self) -> Option<BodyDataStream> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

struct Lent {
    body: Option<BodyDataStream>,
    back: Unread,
}

impl Stream for Lent {
    type Item = Result<Bytes, axum::Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let next = body.poll_next_unpin(context);
        if matches!(next, Poll::Ready(None | Some(Err(_)))) {
            self.body = None;
        }
        next
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        *self.back.0.lock().unwrap_or_else(PoisonError::into_inner) = self.body.take();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::stream;

    use super::*;

    /// A request whose body has so many pieces, and how many of them were read.
    fn request(pieces: usize) -> (Request, Arc<AtomicUsize>) {
        let read = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&read);
        let body = stream::iter(0..pieces).map(move |_| {
            count.fetch_add(1, Ordering::Relaxed);
            Ok::<_, std::io::Error>(Bytes::from_static(&[0; 1 << 20]))
        });
        (Request::new(Body::from_stream(body)), read)
    }

    #[tokio::test]
    async fn what_nobody_has_read_is_read_up_to_a_limit() {
        for (pieces, first, expected) in [(5, 0, 5), (5, 2, 5), (5, 9, 5), (1000, 1, 66)] {
            let (sent, read) = request(pieces);
            let (sent, unread) = Unread::of(sent);
            let mut body = sent.into_body().into_data_stream();
            for _ in 0..first {
                drop(body.next().await);
            }
            drop(body);
            unread.skip().await;
            assert_eq!(read.load(Ordering::Relaxed), expected, "{pieces} {first}");
        }
    }
}
