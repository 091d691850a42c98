//! Whether a connection is used: a silent one is closed, so that silent ones cannot take all
//! places.
//!
//! A request is under way from the moment that its head is complete until its answer has been sent
//! or dropped. Bodies have a timer of their own.

use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;
use tokio::sync::watch;

use crate::body::watched;

/// How long a connection may be silent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// From its beginning until the head of its first request is complete: byte by byte is too slow
    /// as well.
    pub(crate) first_request: Duration,
    /// Between two requests.
    pub(crate) next_request: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        let (first_request, next_request) = (Duration::from_secs(10), Duration::from_secs(60));
        Self { first_request, next_request }
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Requests {
    begun: u64,
    under_way: usize,
}

/// The requests of one connection. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Activity(Arc<watch::Sender<Requests>>);

impl Activity {
    pub(crate) fn new() -> Self {
        Self(Arc::new(watch::Sender::default()))
    }

    /// A request is under way until what this gives is dropped.
    pub(crate) fn begin(&self) -> UnderWay {
        self.0.send_modify(|requests| {
            requests.begun += 1;
            requests.under_way += 1;
        });
        UnderWay(self.clone())
    }

    /// Returns when the connection has been silent for too long.
    pub(crate) async fn silent(&self, patience: Patience) {
        let mut changes = self.0.subscribe();
        loop {
            let now = *changes.borrow_and_update();
            let within = match now.begun {
                0 => patience.first_request,
                _ => patience.next_request,
            };
            let changed = async {
                // It cannot close: we hold the sender.
                changes.changed().await.ok();
            };
            if now.under_way > 0 {
                changed.await;
            } else if tokio::time::timeout(within, changed).await.is_err() {
                return;
            }
        }
    }
}

/// A request under way.
#[derive(Debug)]
pub(crate) struct UnderWay(Activity);

impl UnderWay {
    /// It lasts until the answer has been sent.
    pub(crate) fn until_sent(self, answer: Response) -> Response {
        answer.map(|body| {
            watched(body, move |_| {
                // Held until the body is dropped.
                let _request = &self;
                Ok(())
            })
        })
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.0.send_modify(|requests| requests.under_way -= 1);
    }
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, HttpBody as _};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_silence_counts_and_the_first_request_has_its_own_time() {
        let patience = Patience::default();
        let second = Duration::from_secs(1);
        let activity = Activity::new();
        let begun = tokio::time::Instant::now();
        activity.silent(patience).await;
        assert_eq!(begun.elapsed(), patience.first_request);
        let request = activity.begin();
        let silent = tokio::spawn({
            let activity = activity.clone();
            async move { activity.silent(patience).await }
        });
        tokio::time::sleep(1000 * second).await;
        assert!(!silent.is_finished(), "a request is under way");
        let answer = request.until_sent(Response::new(Body::from("text")));
        assert_eq!(answer.body().size_hint().exact(), Some(4), "its length is still known");
        tokio::time::sleep(patience.next_request).await;
        assert!(!silent.is_finished(), "its answer is not sent");
        drop(answer);
        tokio::time::sleep(patience.next_request - second).await;
        drop(activity.begin());
        tokio::time::sleep(patience.next_request - second).await;
        assert!(!silent.is_finished(), "however short, it was a request");
        tokio::time::sleep(2 * second).await;
        assert!(silent.is_finished());
    }
}
