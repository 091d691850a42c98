//! Holds a daemon and its clients to the published contract, `openapi/v1.json`, in any test that
//! speaks HTTP.
//!
//! `document` judges a request and its answer, `proxy` stands between and shows them to it.
//!
//! Guarantees: what passes by is not changed. An answer must be one that the document names for
//! its route, or an error that any route may give; a request that the document does not allow must
//! have been refused; an error's code must belong to its status.
//!
//! Does not do: judge streams of events and raw bytes beyond their media type.

mod document;
mod proxy;

use document::{Answered, Asked, Document};
pub use proxy::ContractProxy;
