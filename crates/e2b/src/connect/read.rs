//! What a client asks.

use axum::body::{Body, to_bytes};
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use serde::de::DeserializeOwned;

use super::envelope::{Decoder, Envelope, MESSAGE_BYTES_MAX};
use crate::failure::{Failure, Kind};

/// The message in these bytes.
pub(crate) fn json_of<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Failure> {
    let bytes = if bytes.is_empty() { b"{}" } else { bytes };
    serde_json::from_slice(bytes).map_err(|error| {
        Failure::new(Kind::InvalidArgument, format!("the message is not understood: {error}"))
    })
}

/// The one message of a call, in an envelope if the call's answer is a stream.
pub(crate) async fn question<T: DeserializeOwned>(
    headers: &HeaderMap,
    body: Body,
) -> Result<T, Failure> {
    let bytes = to_bytes(body, MESSAGE_BYTES_MAX + 5).await.map_err(|error| {
        Failure::new(Kind::InvalidArgument, format!("the message was not received: {error}"))
    })?;
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if !matches!(text(CONTENT_ENCODING), "" | "identity") {
        return Err(Failure::new(Kind::Unimplemented, "compressed messages are not read"));
    }
    match text(CONTENT_TYPE).split(';').next().unwrap_or_default().trim() {
        "application/json" => json_of(&bytes),
        "application/connect+json" => {
            let mut decoder = Decoder::default();
            decoder.feed(&bytes);
            match decoder.next()? {
                Some(Envelope::Message(message)) => json_of(&message),
                _ => Err(Failure::new(Kind::InvalidArgument, "the call has no message")),
            }
        }
        _ => Err(Failure::new(Kind::Unimplemented, "only messages in JSON are read")),
    }
}
