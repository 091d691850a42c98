//! Bodies whose pieces are looked at as they pass.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};

/// `body`, which ends with an error where `look` gives one. `look` is dropped with the body.
pub(crate) fn watched(
    body: Body,
    look: impl FnMut(&Frame<Bytes>) -> Result<(), axum::Error> + Send + Unpin + 'static,
) -> Body {
    Body::new(Watched { body, look })
}

struct Watched<F> {
    body: Body,
    look: F,
}

impl<F> HttpBody for Watched<F>
where
    F: FnMut(&Frame<Bytes>) -> Result<(), axum::Error> + Unpin,
{
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Err(error) = (self.look)(frame)
        {
            return Poll::Ready(Some(Err(error)));
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
