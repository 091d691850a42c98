//! What a client is answered.

use std::convert::Infallible;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use futures_util::{Stream, stream};
use serde::Serialize;
use utoipa::ToSchema;

use super::envelope;
use crate::failure::{CallError, Failure};

/// The sandbox has died in the middle of an answer: the connection breaks, by which clients know
/// it.
#[derive(Debug, thiserror::Error)]
#[error("the sandbox is gone")]
pub(crate) struct Broken;

/// The answer to a call that answers once.
pub(crate) fn answered<T: Serialize>(result: Result<T, Failure>) -> Response {
    match result {
        Ok(message) => Json(message).into_response(),
        Err(failure) => failure.into_call_response(),
    }
}

/// Says nothing but that it is done.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Empty {}

/// The last message of a stream.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct EndOfStream {
    /// Why it ends before all has been said.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    error: Option<CallError>,
}

/// One message of a stream.
pub(crate) fn message(message: &impl Serialize) -> Bytes {
    envelope::sealed(&encoded(message)).into()
}

/// Ours have nothing that JSON cannot say.
fn encoded(message: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(message).unwrap_or_default()
}

/// The end of a stream, with an error or without.
pub(crate) fn ended(result: Result<(), Failure>) -> Bytes {
    let error = result.err().map(|failure| {
        failure.log();
        failure.call_body()
    });
    envelope::last(&encoded(&EndOfStream { error })).into()
}

/// An answer of envelopes. One that fails before its first message is a success of HTTP too:
/// clients read the error in the last envelope alone.
pub(crate) fn streamed<S>(envelopes: Result<S, Failure>) -> Response
where
    S: Stream<Item = Result<Bytes, Broken>> + Send + 'static,
{
    let body = match envelopes {
        Ok(envelopes) => Body::from_stream(envelopes),
        Err(failure) => {
            let last = Ok::<_, Infallible>(ended(Err(failure)));
            Body::from_stream(stream::iter([last]))
        }
    };
    let mut response = (StatusCode::OK, body).into_response();
    let kind = HeaderValue::from_static("application/connect+json");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;
    use serde_json::json;

    use super::*;
    use crate::failure::Kind;

    #[tokio::test]
    async fn an_error_of_a_stream_is_in_its_last_envelope_and_not_in_the_status() {
        type Envelopes = stream::Empty<Result<Bytes, Broken>>;
        let failure = Failure::new(Kind::NotFound, "no such process");
        let response = streamed::<Envelopes>(Err(failure));
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()[CONTENT_TYPE], "application/connect+json");
        let bytes = to_bytes(response.into_body(), 1000).await.unwrap();
        assert_eq!(bytes[0], 2);
        let last: serde_json::Value = serde_json::from_slice(&bytes[5..]).unwrap();
        assert_eq!(last["error"]["code"], "not_found");
    }

    #[tokio::test]
    async fn a_dead_sandbox_breaks_the_answer_and_does_not_end_it() {
        let envelopes = stream::iter([Ok(message(&json!({}))), Err(Broken)]);
        let response = streamed(Ok(envelopes));
        assert!(to_bytes(response.into_body(), 1000).await.is_err());
    }
}
