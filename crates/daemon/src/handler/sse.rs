//! Answers that are streams of server-sent events.

use std::convert::Infallible;
use std::time::Duration;

use axum::http::HeaderMap;
use axum::http::header::X_CONTENT_TYPE_OPTIONS;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse as _, Response};
use futures_util::{Stream, StreamExt as _};
use serde::Serialize;

use crate::failure::Failure;

/// Between two comments that keep the connection, and show the daemon that the client is there.
pub(super) const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Under this name a client that comes back tells the id of the last event that it has.
pub(super) const LAST_EVENT_ID: &str = "last-event-id";

/// Answers with the events as they come; the answer ends with them.
pub(super) fn answer(events: impl Stream<Item = Event> + Send + 'static) -> Response {
    let events = events.map(Ok::<_, Infallible>);
    let sse = Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE));
    ([(X_CONTENT_TYPE_OPTIONS, "nosniff")], sse).into_response()
}

/// An event of the wire: its kind as the name, its fields as the data.
pub(super) fn event(content: &impl Serialize) -> Event {
    // Every type of event is an enum with named kinds, and can be serialised.
    let value = serde_json::to_value(content).unwrap_or_default();
    let name = value["event"].as_str().unwrap_or_default();
    Event::default().event(name).data(value["data"].to_string())
}

/// The id of the last event that a client has which comes back.
pub(super) fn last_event_id(headers: &HeaderMap) -> Result<Option<u64>, Failure> {
    let Some(value) = headers.get(LAST_EVENT_ID) else { return Ok(None) };
    let number = value.to_str().ok().and_then(|text| text.trim().parse().ok());
    let refuse = || Failure::bad_request("Last-Event-ID: is not the id of an event");
    number.map(Some).ok_or_else(refuse)
}
