//! An answer that is not a success.

use axum::Json;
use axum::http::StatusCode;
use axum::http::header::RETRY_AFTER;
use axum::response::{IntoResponse, Response};
use forkd_api::{ErrorBody, ErrorCode, FieldError, Reason};
use forkd_engine::{EngineError, describe};

use crate::mapping;

/// What a handler fails with; becomes a body of the catalogue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    code: ErrorCode,
    message: String,
    reason: Option<Reason>,
}

impl Failure {
    pub(crate) fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), reason: None }
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::BadRequest, message)
    }

    /// Its place in the catalogue.
    pub(crate) const fn code(&self) -> ErrorCode {
        self.code
    }

    /// Logs it, as an error only where somebody should look at the daemon.
    pub(crate) fn log(&self) {
        let (entry, error) = (self.code.entry(), &self.message);
        match entry.status {
            // It passes by itself, or the client asks for too much.
            503 => tracing::info!(code = entry.name, %error, "request put off"),
            500.. => tracing::error!(code = entry.name, %error, "request failed"),
            _ => tracing::debug!(code = entry.name, %error, "request refused"),
        }
    }

    /// The body, for answers that carry errors of parts.
    pub(crate) fn body(&self) -> ErrorBody {
        ErrorBody { reason: self.reason, ..ErrorBody::new(self.code, self.message.clone()) }
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        let reason = mapping::reason_of(&error);
        Self { reason, ..Self::new(mapping::code_of(&error), describe(&error)) }
    }
}

impl From<FieldError> for Failure {
    fn from(error: FieldError) -> Self {
        Self::bad_request(error.to_string())
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let entry = self.code.entry();
        let status =
            StatusCode::from_u16(entry.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        self.log();
        let mut response = (status, Json(self.body())).into_response();
        // For the metrics and the audit log.
        response.extensions_mut().insert(self.code);
        if let Some(secs) = self.code.retry_after_secs() {
            response.headers_mut().insert(RETRY_AFTER, secs.into());
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_has_the_status_of_its_code() {
        let response = Failure::new(ErrorCode::TagTaken, "t").into_response();
        assert_eq!(response.status(), StatusCode::CONFLICT);
        assert!(response.headers().get(RETRY_AFTER).is_none());
        let response = Failure::new(ErrorCode::SandboxBusy, "t").into_response();
        assert_eq!(response.headers()[RETRY_AFTER], "1");
    }
}
