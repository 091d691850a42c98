//! Holds every answer that a test is given to the OpenAPI document: its status, its media type, and
//! its body, also where that is a stream. An answer that does not fit ends the test.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use futures_util::StreamExt as _;
use serde_json::{Value, json};

use crate::connect::{Decoder, Envelope};
use crate::document::{Answered, Asked, Content, Document};
use crate::{Part, Subject};

const BODY_BYTES_MAX: usize = 64 << 20;

/// What was seen: `METHOD /path STATUS`, and `METHOD /path: FIELD` for what a message of a stream
/// was about.
#[derive(Debug, Clone, Default)]
pub(super) struct Seen(Arc<Mutex<BTreeSet<String>>>);

impl Seen {
    fn add(&self, what: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(what);
    }

    /// All of it.
    pub(super) fn all(&self) -> BTreeSet<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The same routes, whose answers are checked.
pub(super) fn checked(router: Router, seen: &Seen) -> Router {
    router.layer(from_fn_with_state(seen.clone(), check))
}

async fn check(State(seen): State<Seen>, request: Request, next: Next) -> Response {
    let (method, path) = (request.method().to_string(), request.uri().path().to_owned());
    let answer = next.run(request).await;
    let part = answer.extensions().get::<Subject>().map_or(Part::Unclear, |subject| subject.part);
    let asked = Asked { part, method, path };
    let status = answer.status().as_u16();
    let media_type = answer.headers().get(CONTENT_TYPE).map_or("", |kind| kind.to_str().unwrap());
    let is_stream = media_type == "application/connect+json";
    let media_type = media_type.split(';').next().unwrap_or_default().to_owned();
    assert!(media_type != "application/connect+json" || is_stream, "a stream has the bare type");
    let expected =
        Document::of_crate().expects(&asked, Answered { status, media_type: &media_type });
    let expected = expected.unwrap_or_else(|what| panic!("{asked:?}: {what}"));
    seen.add(format!("{} {status}", expected.operation));
    let told = format!("{}, {status}", expected.operation);
    let (parts, body) = answer.into_parts();
    let body = match expected.content {
        Content::Bytes => body,
        Content::Nothing | Content::Value(_) => {
            let bytes = to_bytes(body, BODY_BYTES_MAX).await.unwrap();
            check_whole(&told, &expected.content, status, &bytes);
            bytes.into()
        }
        Content::Envelopes(schema) => {
            let (mut decoder, mut is_over) = (Decoder::default(), false);
            piecewise(body, move |bytes| {
                decoder.feed(bytes);
                while let Some(envelope) = decoder.next().unwrap() {
                    assert!(!is_over, "{told}: something comes after its end");
                    let (message, last) = match envelope {
                        Envelope::Message(message) => (message, false),
                        Envelope::End(message) => (message, true),
                    };
                    is_over = last;
                    let end = json!({"$ref": "#/components/schemas/EndOfStream"});
                    let schema = if is_over { &end } else { &schema };
                    let message = check_text(&told, schema, &message);
                    note(&seen, &expected.operation, &message);
                }
            })
        }
        Content::Lines(schema) => {
            let mut held = Vec::new();
            piecewise(body, move |bytes| {
                held.extend(bytes);
                while let Some(end) = held.iter().position(|byte| *byte == b'\n') {
                    let line: Vec<u8> = held.drain(..=end).collect();
                    assert!(line.is_ascii(), "{told}: {}", String::from_utf8_lossy(&line));
                    let event = check_text(&told, &schema, &line);
                    seen.add(format!("{}: {}", expected.operation, event["type"]));
                }
            })
        }
    };
    Response::from_parts(parts, body)
}

/// The same body, of which each piece is looked at on its way.
fn piecewise(body: Body, mut look: impl FnMut(&Bytes) + Send + 'static) -> Body {
    let pieces = body.into_data_stream();
    Body::from_stream(pieces.inspect(move |piece| {
        if let Ok(bytes) = piece {
            look(bytes);
        }
    }))
}

fn check_whole(told: &str, content: &Content, status: u16, bytes: &Bytes) {
    let Content::Value(schema) = content else {
        assert!(bytes.is_empty(), "{told}: it says something: {bytes:?}");
        return;
    };
    let value = check_text(told, schema, bytes);
    if status >= 400 && value["code"].is_number() {
        assert_eq!(value["code"], status, "{told}: some clients read the status there");
    }
}

fn check_text(told: &str, schema: &Value, text: &[u8]) -> Value {
    let value = serde_json::from_slice(text);
    let value: Value = value.unwrap_or_else(|error| panic!("{told}: {error}: {text:?}"));
    if let Err(what) = Document::of_crate().check(schema, &value) {
        panic!("{told}: {what} in {value}");
    }
    value
}

/// Notes what a message is about.
fn note(seen: &Seen, operation: &str, message: &Value) {
    let about = message.get("event").unwrap_or(message).as_object().unwrap();
    let about: Vec<&str> = about.keys().map(String::as_str).collect();
    seen.add(format!("{operation}: {}", about.join(" ")));
}
