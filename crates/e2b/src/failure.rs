//! An answer that is not a success, in the two forms that clients of E2B read: `{code, message}`
//! of the control interface and of files, and a word of Connect for calls.
//!
//! Guarantees: 429 and 503 are answered only when nothing has been done, because clients ask again
//! by themselves; what asking again cannot help says so.

use axum::Json;
use axum::http::header::{CONTENT_RANGE, VARY};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use forkd_engine::guest::{GuestError, ProcessError};
use forkd_engine::{EngineError, describe};
use serde::Serialize;
use utoipa::ToSchema;

const SHOULD_RETRY: HeaderName = HeaderName::from_static("should-retry");

/// What went wrong, as far as clients tell it apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    InvalidArgument,
    Unauthenticated,
    PermissionDenied,
    NotFound,
    Conflict,
    AlreadyExists,
    TooLarge,
    /// It is there, in no form that the client takes.
    NotAcceptable,
    /// The part is beyond the file's end.
    NoSuchRange {
        /// Length of the file.
        bytes: u64,
    },
    /// A limit; nothing has been done.
    LimitReached,
    /// It passes by itself; nothing has been done.
    Busy,
    NoSpace,
    Unimplemented,
    DeadlineExceeded,
    Internal,
    /// Something of what was asked for is gone for good.
    Missed,
    /// The sandbox does not run: on the side of sandboxes that is as good as none.
    Gone,
}

/// Words of Connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = CallErrorCode)]
pub(crate) enum Word {
    InvalidArgument,
    Unauthenticated,
    PermissionDenied,
    NotFound,
    FailedPrecondition,
    AlreadyExists,
    ResourceExhausted,
    Unavailable,
    Unimplemented,
    DeadlineExceeded,
    Internal,
    DataLoss,
    OutOfRange,
}

/// An error of the control interface, and of addresses of files.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Error)]
pub(crate) struct ErrorBody {
    /// The status. Some clients look here, and not at that of the answer.
    code: u16,
    /// What is wrong, for people.
    message: String,
}

/// An error of a call.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CallError {
    /// Clients raise their error by it.
    code: Word,
    /// What is wrong, for people.
    message: String,
}

/// The answer in place of a sandbox, or of a server in it.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NoServer {
    /// The sandbox, as the client has said it.
    pub(crate) sandbox_id: String,
    /// Clients look for `was not found` and `port is not open` in it.
    pub(crate) message: String,
    /// The status.
    pub(crate) code: u16,
    /// The port, where the sandbox runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) port: Option<u16>,
}

/// Why a request is not done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Failure {
    pub(crate) kind: Kind,
    message: String,
}

impl Failure {
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// A field that is wrong.
    pub(crate) fn field(name: &str, problem: &str) -> Self {
        Self::new(Kind::InvalidArgument, format!("{name}: {problem}"))
    }

    /// A field for what forkd does not do. It is never passed over.
    pub(crate) fn not_done(name: &str) -> Self {
        Self::field(name, "forkd does not do this; leave it out")
    }

    pub(crate) fn no_sandbox(said: &str) -> Self {
        let said: String = said.chars().take(80).collect();
        Self::new(Kind::NotFound, format!("sandbox \"{said}\" doesn't exist"))
    }

    /// Its word in Connect.
    pub(crate) const fn word(&self) -> Word {
        match self.kind {
            Kind::InvalidArgument | Kind::TooLarge | Kind::NotAcceptable => Word::InvalidArgument,
            Kind::NoSuchRange { .. } => Word::OutOfRange,
            Kind::Unauthenticated => Word::Unauthenticated,
            Kind::PermissionDenied => Word::PermissionDenied,
            Kind::NotFound => Word::NotFound,
            Kind::Conflict => Word::FailedPrecondition,
            Kind::AlreadyExists => Word::AlreadyExists,
            Kind::LimitReached | Kind::NoSpace => Word::ResourceExhausted,
            Kind::Busy | Kind::Gone => Word::Unavailable,
            Kind::Unimplemented => Word::Unimplemented,
            Kind::DeadlineExceeded => Word::DeadlineExceeded,
            Kind::Internal => Word::Internal,
            Kind::Missed => Word::DataLoss,
        }
    }

    pub(crate) const fn status(&self) -> StatusCode {
        match self.kind {
            Kind::InvalidArgument => StatusCode::BAD_REQUEST,
            Kind::Unauthenticated => StatusCode::UNAUTHORIZED,
            Kind::PermissionDenied => StatusCode::FORBIDDEN,
            Kind::NotFound => StatusCode::NOT_FOUND,
            Kind::Conflict | Kind::AlreadyExists => StatusCode::CONFLICT,
            Kind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Kind::NotAcceptable => StatusCode::NOT_ACCEPTABLE,
            Kind::NoSuchRange { .. } => StatusCode::RANGE_NOT_SATISFIABLE,
            Kind::LimitReached => StatusCode::TOO_MANY_REQUESTS,
            Kind::Busy => StatusCode::SERVICE_UNAVAILABLE,
            Kind::NoSpace => StatusCode::INSUFFICIENT_STORAGE,
            Kind::Unimplemented => StatusCode::NOT_IMPLEMENTED,
            Kind::DeadlineExceeded | Kind::Internal | Kind::Missed => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
            Kind::Gone => StatusCode::BAD_GATEWAY,
        }
    }

    /// The status of a call that answers once.
    const fn call_status(&self) -> StatusCode {
        match self.kind {
            // What a limit refuses is tried again by nobody here.
            Kind::LimitReached | Kind::NoSpace => StatusCode::TOO_MANY_REQUESTS,
            Kind::Conflict | Kind::TooLarge | Kind::NotAcceptable | Kind::NoSuchRange { .. } => {
                StatusCode::BAD_REQUEST
            }
            Kind::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
            Kind::Gone => StatusCode::SERVICE_UNAVAILABLE,
            _ => self.status(),
        }
    }

    /// As an error of the control interface inside an answer.
    pub(crate) fn body(&self) -> ErrorBody {
        ErrorBody { code: self.status().as_u16(), message: self.message.clone() }
    }

    /// As an error of Connect.
    pub(crate) fn call_body(&self) -> CallError {
        CallError { code: self.word(), message: self.message.clone() }
    }

    /// As the answer to a call that answers once.
    pub(crate) fn into_call_response(self) -> Response {
        self.log();
        (self.call_status(), Json(self.call_body())).into_response()
    }

    /// Logs it, as an error only where somebody should look at the daemon.
    pub(crate) fn log(&self) {
        match self.kind {
            Kind::Internal => tracing::error!(error = %self.message, "request failed"),
            _ => tracing::debug!(error = %self.message, "request refused"),
        }
    }
}

impl Failure {
    /// As the answer to a request for a sandbox, which the client calls so. One that has ended
    /// meanwhile is answered as one that is not there.
    pub(crate) fn into_response_of(self, said: &str) -> Response {
        match self.kind {
            Kind::Gone => {
                self.log();
                bad_gateway(said, None)
            }
            _ => self.into_response(),
        }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        self.log();
        let mut response = (self.status(), Json(self.body())).into_response();
        let headers = response.headers_mut();
        if self.kind != Kind::Busy {
            headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
        }
        if self.kind == Kind::NotAcceptable {
            headers.insert(VARY, HeaderValue::from_static("Accept-Encoding"));
        }
        if let Kind::NoSuchRange { bytes } = self.kind
            && let Ok(length) = HeaderValue::try_from(format!("bytes */{bytes}"))
        {
            headers.insert(CONTENT_RANGE, length);
        }
        response
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        Self::new(kind_of(&error), describe(&error))
    }
}

/// Clients look for these words, and tell by them whether the sandbox or its server is missing.
pub(crate) fn bad_gateway(said: &str, port: Option<u16>) -> Response {
    let message = match port {
        None => "The sandbox was not found",
        Some(_) => "The sandbox is running but port is not open",
    };
    let body = NoServer {
        sandbox_id: said.chars().take(80).collect(),
        message: message.to_owned(),
        code: StatusCode::BAD_GATEWAY.as_u16(),
        port,
    };
    let mut response = (StatusCode::BAD_GATEWAY, Json(body)).into_response();
    response.headers_mut().insert(SHOULD_RETRY, HeaderValue::from_static("false"));
    response
}

/// No arm catches the rest: a new error of the engine has to be given a kind before it compiles.
fn kind_of(error: &EngineError) -> Kind {
    match error {
        EngineError::UnknownSnapshot { .. }
        | EngineError::UnknownSandbox { .. }
        | EngineError::UnknownImage { .. }
        | EngineError::UnknownOperation { .. }
        | EngineError::UnknownKey { .. }
        | EngineError::UnknownSecret { .. }
        | EngineError::UnknownNetwork { .. }
        | EngineError::NotMember { .. } => Kind::NotFound,
        EngineError::TagTaken { .. }
        | EngineError::NetworkTaken { .. }
        | EngineError::SnapshotNotReady { .. }
        | EngineError::SnapshotInUse { .. }
        | EngineError::SandboxNotRunning { .. }
        | EngineError::NotCancellable { .. }
        | EngineError::Cancelled { .. }
        | EngineError::ChainTooDeep { .. }
        | EngineError::Incompatible { .. }
        | EngineError::MemoryLimitUnavailable { .. }
        | EngineError::LimitUnavailable { .. }
        | EngineError::OwnNetworkUnavailable { .. }
        | EngineError::LiveUnavailable(_)
        | EngineError::ArtifactUnfit { .. }
        | EngineError::GatewayNotTrusted { .. } => Kind::Conflict,
        EngineError::NotYours { .. }
        | EngineError::AdminOnly { .. }
        | EngineError::SnapshotPrivate { .. }
        | EngineError::KeyNotTrusted { .. } => Kind::PermissionDenied,
        EngineError::BadRequest { .. }
        | EngineError::NetworkNotPermitted(_)
        | EngineError::NoNetworkDevice { .. }
        | EngineError::ArtifactRefused { .. }
        | EngineError::WarmFailed { .. }
        | EngineError::MemoryLimitReached(_) => Kind::InvalidArgument,
        EngineError::NoSpace { .. } => Kind::NoSpace,
        EngineError::LimitReached { .. }
        | EngineError::DiskQuotaReached { .. }
        | EngineError::TooManyPortTokens { .. }
        | EngineError::TooManyConnections { .. } => Kind::LimitReached,
        EngineError::SandboxBusy { .. } => Kind::Busy,
        EngineError::Guest(error) => kind_of_guest(error),
        EngineError::Process(error) => kind_of_process(error),
        EngineError::SnapshotDamaged { .. }
        | EngineError::ImageUnavailable { .. }
        | EngineError::RegistryFailed { .. }
        | EngineError::RenewalNotConfirmed { .. }
        | EngineError::BootFailed { .. }
        | EngineError::PortClosed { .. }
        | EngineError::PortSilent { .. }
        | EngineError::NetworkUnavailable(_)
        | EngineError::Vmm(_)
        | EngineError::Capture(_)
        | EngineError::Store(_)
        | EngineError::NoKvm { .. }
        | EngineError::Internal(_) => Kind::Internal,
    }
}

/// The word of a refusal comes from the guest: it can choose among these kinds, and none of them
/// blames the daemon.
fn kind_of_guest(error: &GuestError) -> Kind {
    match error {
        GuestError::Timeout { .. } | GuestError::NotReading { .. } => Kind::DeadlineExceeded,
        GuestError::Closed { .. } => Kind::Gone,
        GuestError::Remote { code, .. } => match code.as_str() {
            "file_not_found" | "not_kept" => Kind::NotFound,
            "user_not_found" => Kind::Unauthenticated,
            "busy" => Kind::LimitReached,
            "unsupported" => Kind::Unimplemented,
            _ => Kind::InvalidArgument,
        },
        GuestError::OutputTooLarge { .. }
        | GuestError::FileTooLarge { .. }
        | GuestError::OutputsTooLarge { .. }
        | GuestError::RequestTooLarge { .. } => Kind::TooLarge,
        GuestError::Protocol { .. } | GuestError::HookFailed { .. } => Kind::InvalidArgument,
        GuestError::Entropy { .. } => Kind::Internal,
    }
}

fn kind_of_process(error: &ProcessError) -> Kind {
    match error {
        ProcessError::Unknown { .. } | ProcessError::Ended { .. } => Kind::NotFound,
        ProcessError::TooMany { .. } => Kind::LimitReached,
        // E2B's word for input that nobody takes; clients know it by that.
        ProcessError::NoInput { .. }
        | ProcessError::NoTerminal { .. }
        | ProcessError::PastTheEnd { .. } => Kind::Conflict,
        ProcessError::InputWaits { .. } => Kind::DeadlineExceeded,
        ProcessError::Guest(error) => kind_of_guest(error),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const ALL: [Kind; 17] = [
        Kind::InvalidArgument,
        Kind::Unauthenticated,
        Kind::PermissionDenied,
        Kind::NotFound,
        Kind::Conflict,
        Kind::AlreadyExists,
        Kind::TooLarge,
        Kind::NotAcceptable,
        Kind::NoSuchRange { bytes: 1 },
        Kind::LimitReached,
        Kind::Busy,
        Kind::NoSpace,
        Kind::Unimplemented,
        Kind::DeadlineExceeded,
        Kind::Internal,
        Kind::Missed,
        Kind::Gone,
    ];

    #[test]
    fn a_client_asks_again_only_when_nothing_was_done_and_waiting_helps() {
        for kind in ALL {
            let response = Failure::new(kind, "m").into_response();
            let repeats = [429, 502, 503, 504].contains(&response.status().as_u16());
            let told_not_to = response.headers().contains_key("should-retry");
            assert_eq!(repeats && !told_not_to, kind == Kind::Busy, "{kind:?}");
        }
    }

    #[test]
    fn a_guest_cannot_blame_the_daemon() {
        for word in ["internal", "", "file_not_found", "no_such_word", "user_not_found"] {
            let error = GuestError::Remote { code: word.to_owned(), message: String::new() };
            assert!(!matches!(kind_of_guest(&error), Kind::Internal | Kind::Gone), "{word}");
        }
    }

    #[tokio::test]
    async fn a_sandbox_that_ends_under_a_request_is_answered_as_one_that_is_not_there() {
        let gone = Failure::new(Kind::Gone, "the connection is closed").into_response_of("sb0");
        assert_eq!(gone.status(), 502);
        let body = axum::body::to_bytes(gone.into_body(), 1000).await.unwrap();
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        let expected =
            json!({"sandboxId": "sb0", "message": "The sandbox was not found", "code": 502});
        assert_eq!(body, expected);
        let other = Failure::new(Kind::NotFound, "no file").into_response_of("sb0");
        assert_eq!(other.status(), 404);
    }

    #[test]
    fn an_error_has_the_form_that_its_reader_understands() {
        let failure = Failure::field("timeout", "must be at least 1");
        let body = json!({"code": 400, "message": "timeout: must be at least 1"});
        assert_eq!(json!(failure.body()), body);
        assert_eq!(json!(failure.call_body())["code"], "invalid_argument");
    }
}
