//! What a request can end with.

use forkd_api::{ErrorBody, Reason};

/// The daemon's refusal or failure, in its own words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ApiFailure {
    /// HTTP status.
    pub status: u16,
    /// Stable word of the catalogue.
    pub code: String,
    /// What happened.
    pub message: String,
    /// What to do about it.
    pub hint: String,
    /// What exactly it was, where the code does not say it.
    pub reason: Option<Reason>,
}

impl ApiFailure {
    /// From an answer's status and body.
    #[must_use]
    pub fn new(status: u16, body: ErrorBody) -> Self {
        let ErrorBody { error: message, code, hint, reason } = body;
        Self { status, code, message, hint, reason }
    }
}

/// Failure of a request.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No daemon answers there.
    #[error("no daemon answers at {target}")]
    Unreachable {
        /// Where it was expected.
        target: String,
        /// Why the connection failed.
        #[source]
        source: reqwest::Error,
    },
    /// The token or the certificates cannot be used.
    #[error("{problem}")]
    Access {
        /// What is wrong.
        problem: String,
    },
    /// The daemon refused or failed.
    #[error(transparent)]
    Api(#[from] ApiFailure),
    /// The connection broke off.
    #[error("the connection to the daemon at {target} broke off")]
    Broken {
        /// Where the daemon is.
        target: String,
        /// How.
        #[source]
        source: reqwest::Error,
    },
    /// What answers is no forkd daemon, or one of another version.
    #[error("the answer from {target} is not understood ({status}): {problem}")]
    NotUnderstood {
        /// Where it came from.
        target: String,
        /// HTTP status.
        status: u16,
        /// What is wrong with it.
        problem: String,
    },
}

impl ClientError {
    /// Whether no daemon was there to answer.
    #[must_use]
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Self::Unreachable { .. })
    }
}
