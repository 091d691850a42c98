//! Requests that a client repeats, because an answer got lost: they are done once.
//!
//! A client names a request with `Idempotency-Key`. The answer to the first one with a key is kept,
//! and is the answer to each that follows with the same body, also while the first is under way.
//! One that failed was not done: the next one with its key is a first one again.
//!
//! Does not: outlive the daemon; ask whether what was made is still there.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::http::HeaderMap;
use forkd_types::{Digest, Owner};

use crate::failure::{Failure, Kind};

const HEADER: &str = "idempotency-key";
const KEY_CHARS_MAX: usize = 255;
/// Answers that are kept at most, of all clients together.
const KEPT_MAX: usize = 4096;
/// How long an answer is kept.
const KEPT_FOR: Duration = Duration::from_secs(24 * 3600);

/// Which request, and of whom.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct RepeatKey {
    owner: Owner,
    key: String,
}

impl RepeatKey {
    /// That of a request, if it has one.
    pub(super) fn of(headers: &HeaderMap, owner: &Owner) -> Result<Option<Self>, Failure> {
        let Some(value) = headers.get(HEADER) else { return Ok(None) };
        let is_allowed =
            |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'-';
        let key = value.as_bytes();
        if !(1..=KEY_CHARS_MAX).contains(&key.len()) || !key.iter().all(is_allowed) {
            let problem = format!("must have 1 to {KEY_CHARS_MAX} of a-z, 0-9 and `-`");
            return Err(Failure::field("Idempotency-Key", &problem));
        }
        let key = String::from_utf8_lossy(key).into_owned();
        Ok(Some(Self { owner: owner.clone(), key }))
    }
}

/// What was asked and answered.
#[derive(Debug)]
struct Answered<T> {
    request: Digest,
    answer: T,
}

/// Where the answer is, or will be.
type Slot<T> = Arc<tokio::sync::Mutex<Option<Answered<T>>>>;

/// One request. Who asks first holds the lock until there is an answer.
#[derive(Debug)]
struct Place<T> {
    answered: Slot<T>,
    since: Instant,
}

/// The answers that are kept.
#[derive(Debug)]
pub(crate) struct Repeats<T>(Mutex<HashMap<RepeatKey, Place<T>>>);

impl<T> Default for Repeats<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Clone> Repeats<T> {
    /// The answer to a request with this key: the one that was given before, or that of `make`.
    ///
    /// # Errors
    /// Those of `make`; [`Kind::Conflict`] when the key was used for another request.
    pub(super) async fn once(
        &self,
        key: RepeatKey,
        request: Digest,
        make: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let place = self.place(key, Instant::now());
        let mut answered = place.lock().await;
        if let Some(answered) = &*answered {
            if answered.request == request {
                return Ok(answered.answer.clone());
            }
            let text = "the Idempotency-Key was used for another request: take a new one";
            return Err(Failure::new(Kind::Conflict, text));
        }
        let answer = make.await?;
        *answered = Some(Answered { request, answer: answer.clone() });
        Ok(answer)
    }

    /// Where the answer for a key is or will be. Forgets what is old, and the oldest if there are
    /// too many.
    fn place(&self, key: RepeatKey, now: Instant) -> Slot<T> {
        let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !places.contains_key(&key) {
            places.retain(|_, place| now.duration_since(place.since) < KEPT_FOR);
            if places.len() >= KEPT_MAX {
                let oldest = places.iter().min_by_key(|(_, place)| place.since);
                let oldest = oldest.map(|(key, _)| key.clone());
                oldest.and_then(|key| places.remove(&key));
            }
        }
        let place = places.entry(key);
        let place = place.or_insert_with(|| Place { answered: Arc::default(), since: now });
        Arc::clone(&place.answered)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use serde_json::{Value, json};

    use super::*;

    fn key(text: &str) -> RepeatKey {
        RepeatKey { owner: Owner::default(), key: text.to_owned() }
    }

    /// Counts how often something was made.
    #[derive(Default)]
    struct Maker(AtomicU32);

    impl Maker {
        async fn make(&self) -> Result<Value, Failure> {
            tokio::task::yield_now().await;
            Ok(json!(self.0.fetch_add(1, Ordering::SeqCst)))
        }
    }

    #[tokio::test]
    async fn a_request_is_done_once_also_if_it_is_repeated_while_it_is_under_way() {
        let (repeats, maker, request) =
            (Repeats::default(), Maker::default(), Digest::of(b"request"));
        let (one, two) = tokio::join!(
            repeats.once(key("a"), request, maker.make()),
            repeats.once(key("a"), request, maker.make()),
        );
        let three = repeats.once(key("a"), request, maker.make()).await;
        assert_eq!([one.unwrap(), two.unwrap(), three.unwrap()], [json!(0), json!(0), json!(0)]);
        let other = repeats.once(key("b"), request, maker.make()).await;
        assert_eq!(other.unwrap(), json!(1));
        let mut of_another = key("a");
        of_another.owner = "ann".parse().unwrap();
        assert_eq!(repeats.once(of_another, request, maker.make()).await.unwrap(), json!(2));
    }

    #[tokio::test]
    async fn a_key_is_for_one_request() {
        let (repeats, maker) = (Repeats::default(), Maker::default());
        repeats.once(key("a"), Digest::of(b"one"), maker.make()).await.unwrap();
        let refused = repeats.once(key("a"), Digest::of(b"two"), maker.make()).await;
        assert_eq!(refused.unwrap_err().kind, Kind::Conflict);
    }

    #[tokio::test]
    async fn what_failed_is_tried_again() {
        let (repeats, maker, request) = (Repeats::default(), Maker::default(), Digest::of(b"x"));
        let failing = async { Err(Failure::new(Kind::Internal, "no room")) };
        repeats.once(key("a"), request, failing).await.unwrap_err();
        assert_eq!(repeats.once(key("a"), request, maker.make()).await.unwrap(), json!(0));
    }

    #[test]
    fn answers_are_kept_for_a_day_and_not_too_many_of_them() {
        let (repeats, begun) = (Repeats::<Value>::default(), Instant::now());
        let count = || repeats.0.lock().unwrap().len();
        for number in 0..KEPT_MAX + 10 {
            let at = begun + Duration::from_millis(number as u64);
            repeats.place(key(&number.to_string()), at);
        }
        assert_eq!(count(), KEPT_MAX);
        assert!(!repeats.0.lock().unwrap().contains_key(&key("9")));
        assert!(repeats.0.lock().unwrap().contains_key(&key("10")));
        repeats.place(key("late"), begun + KEPT_FOR + Duration::from_secs(60));
        assert_eq!(count(), 1);
    }

    #[test]
    fn a_key_has_the_characters_that_clients_may_send() {
        let of = |text: &str| {
            let headers = HeaderMap::from_iter([(
                axum::http::HeaderName::from_static(HEADER),
                text.parse().unwrap(),
            )]);
            RepeatKey::of(&headers, &Owner::default())
        };
        assert_eq!(of("a-1").unwrap(), Some(key("a-1")));
        assert_eq!(RepeatKey::of(&HeaderMap::new(), &Owner::default()).unwrap(), None);
        for wrong in ["", "A", "a_b", "a b", &"x".repeat(256)] {
            assert_eq!(of(wrong).unwrap_err().kind, Kind::InvalidArgument, "{wrong}");
        }
        assert!(of(&"x".repeat(255)).is_ok());
    }
}
