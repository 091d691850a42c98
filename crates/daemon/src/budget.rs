//! How much of requests' bodies is held in memory at once, of all requests together.
//!
//! A body pays for each piece when it comes, so a client that only announces a large one keeps
//! nobody out; when there is no more, the request is refused, because those that wait for each
//! other's memory would wait for ever. It pays until its request is done, or what it brought.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Body;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::body::watched;

/// What there is for all. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct BodyBudget(Arc<Semaphore>);

impl BodyBudget {
    pub(crate) fn new(bytes: usize) -> Self {
        Self(Arc::new(Semaphore::new(bytes)))
    }

    /// The account of one request.
    pub(crate) fn account(&self) -> BodyAccount {
        let (held, refused) = (Mutex::default(), AtomicBool::new(false));
        BodyAccount(Arc::new(Account { budget: Arc::clone(&self.0), held, refused }))
    }
}

#[derive(Debug)]
struct Account {
    budget: Arc<Semaphore>,
    held: Mutex<Option<OwnedSemaphorePermit>>,
    refused: AtomicBool,
}

/// What one request has taken. It is given back with the last clone.
#[derive(Debug, Clone)]
pub(crate) struct BodyAccount(Arc<Account>);

impl BodyAccount {
    /// Pays for `bytes` more.
    pub(crate) fn pay(&self, bytes: usize) -> Result<(), axum::Error> {
        let count = u32::try_from(bytes).unwrap_or(u32::MAX);
        let Ok(more) = Arc::clone(&self.0.budget).try_acquire_many_owned(count) else {
            self.0.refused.store(true, Ordering::Relaxed);
            return Err(axum::Error::new("other requests hold all memory for bodies"));
        };
        let mut held = self.0.held.lock().unwrap_or_else(PoisonError::into_inner);
        match held.as_mut() {
            Some(held) => held.merge(more),
            None => *held = Some(more),
        }
        Ok(())
    }

    /// Whether a piece was refused.
    pub(crate) fn was_refused(&self) -> bool {
        self.0.refused.load(Ordering::Relaxed)
    }

    /// A body that pays here.
    pub(crate) fn charge(&self, body: Body) -> Body {
        let account = self.clone();
        watched(body, move |frame| match frame.data_ref() {
            Some(data) => account.pay(data.len()),
            None => Ok(()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn bodies_share_what_there_is_and_give_it_back() {
        let budget = BodyBudget::new(10);
        let read = async |account: &BodyAccount, text: &'static str| {
            axum::body::to_bytes(account.charge(Body::from(text)), 100).await
        };
        let (first, second) = (budget.account(), budget.account());
        assert!(read(&first, "1234567").await.is_ok() && !first.was_refused());
        assert!(read(&second, "1234").await.is_err() && second.was_refused());
        assert!(read(&first, "123").await.is_ok(), "to the last byte");
        drop(first);
        assert!(read(&budget.account(), "1234567890").await.is_ok());
    }
}
