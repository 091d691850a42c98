//! What happens, as server-sent events.
//!
//! A reader that does not read costs a position in a ring; it is told what it missed when it reads
//! again. Nothing waits for it.

use std::convert::Infallible;
use std::time::Duration;

use axum::http::HeaderMap;
use axum::response::Sse;
use axum::response::sse::Event;
use forkd_api::{ErrorBody, LostEvents};
use forkd_engine::{Change, EventReader, Next};
use forkd_types::{EventType, Owner, SandboxId, SnapshotTag, TagName};
use futures_util::stream::{self, Stream};
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;

use crate::app::App;
use crate::extract::Query;
use crate::failure::Failure;
use crate::handler::sse::{KEEP_ALIVE, LAST_EVENT_ID};

/// Which events.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct EventsQuery {
    /// Only those whose type begins so: `sandbox.`, `operation.ended`.
    #[serde(default, rename = "type")]
    kind: Option<String>,
    /// Only those of this sandbox, of snapshots branched from it and of operations on it.
    #[serde(default)]
    sandbox: Option<String>,
    /// Only those of this snapshot, of sandboxes started from it and of operations on it.
    #[serde(default)]
    snapshot: Option<String>,
}

/// Which events a client wants.
#[derive(Debug, Default)]
struct Filter {
    kind: String,
    sandbox: Option<SandboxId>,
    snapshot: Option<SnapshotTag>,
}

impl Filter {
    /// What `reader` means by the query.
    fn of(query: EventsQuery, reader: &Owner) -> Result<Self, Failure> {
        let field = |name: &str, error: &dyn std::fmt::Display| {
            Failure::bad_request(format!("{name}: {error}"))
        };
        let sandbox = query.sandbox.map(|text| text.parse::<SandboxId>()).transpose();
        let snapshot = query.snapshot.map(|text| text.parse::<TagName>()).transpose();
        let snapshot = snapshot.map_err(|error| field("snapshot", &error))?;
        Ok(Self {
            kind: query.kind.unwrap_or_default(),
            sandbox: sandbox.map_err(|error| field("sandbox", &error))?,
            snapshot: snapshot.map(|name| name.said_by(reader)),
        })
    }

    fn wants(&self, change: &Change) -> bool {
        let sandbox = self.sandbox.as_ref().is_none_or(|id| change.sandbox() == Some(id));
        let snapshot = self.snapshot.as_ref().is_none_or(|tag| change.snapshot() == Some(tag));
        sandbox && snapshot && change.name().starts_with(&self.kind)
    }
}

/// Follows what happens, as server-sent events.
///
/// The types are those of `EventType`. The data is the
/// `Sandbox`, `Snapshot` or `Operation` as it was right after the change. Without the header
/// `Last-Event-ID` the stream begins with what happens from now on; with it, after that event. The
/// last 4096 events are kept: a reader that was away or slow for longer gets the type `lost`, whose
/// data is `LostEvents`, and then all that are kept. The ids are numbers that ascend, from one
/// start of the daemon to the next too. The stream ends with the daemon.
#[utoipa::path(get, path = "/v1/events", tag = "events",
    params(EventsQuery,
        ("last-event-id" = Option<u64>, Header, description = "The event to go on after")),
    responses((status = 200, body = String, content_type = "text/event-stream"),
        (status = 400, body = ErrorBody, description = "A field is wrong; the error names it")))]
pub(crate) async fn follow(
    app: App,
    headers: HeaderMap,
    Query(query): Query<EventsQuery>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Failure> {
    let filter = Filter::of(query, app.engine.caller().owner())?;
    let reader = app.engine.events(last_event(&headers)?);
    let events = stream::unfold((app, reader, filter), |(app, mut reader, filter)| async move {
        let event = next(&app, &mut reader, &filter, KEEP_ALIVE).await?;
        Some((Ok(event), (app, reader, filter)))
    });
    Ok(Sse::new(events))
}

fn last_event(headers: &HeaderMap) -> Result<Option<u64>, Failure> {
    let Some(value) = headers.get(LAST_EVENT_ID) else { return Ok(None) };
    let number = value.to_str().ok().and_then(|text| text.trim().parse::<u64>().ok());
    // The largest number has no successor.
    match number.filter(|number| *number < u64::MAX) {
        Some(number) => Ok(Some(number)),
        None => Err(Failure::bad_request("Last-Event-ID: is not the id of an event")),
    }
}

/// The next event that the client wants, or a sign of life. It carries an id too, so that a client
/// that connects again does not go through what it did not want.
async fn next(
    app: &App,
    reader: &mut EventReader,
    filter: &Filter,
    keep_alive: Duration,
) -> Option<Event> {
    let alive = tokio::time::sleep(keep_alive);
    tokio::pin!(alive);
    loop {
        let next = tokio::select! {
            biased;
            next = reader.next() => next?,
            () = &mut alive => return Some(sign_of_life(reader)),
        };
        let id = reader.last().to_string();
        match next {
            Next::Lost { events } => {
                let lost = Event::default().id(id).event(EventType::Lost.name());
                return Some(event(lost, &LostEvents { events }));
            }
            Next::Event(change) if filter.wants(&change) => {
                return Some(shown(app, Event::default().id(id).event(change.name()), &change));
            }
            Next::Event(_) => {}
        }
    }
}

fn sign_of_life(reader: &EventReader) -> Event {
    Event::default().id(reader.last().to_string()).comment("")
}

fn shown(app: &App, to: Event, change: &Change) -> Event {
    match change {
        Change::Sandbox(_, sandbox) => event(to, &app.sandbox((**sandbox).clone())),
        Change::Snapshot(_, snapshot) => event(to, &app.snapshot((**snapshot).clone())),
        Change::Operation(_, operation) => event(to, &app.operation((**operation).clone())),
    }
}

fn event(to: Event, data: &impl Serialize) -> Event {
    match serde_json::to_string(data) {
        // JSON has no line breaks of its own.
        Ok(text) => to.data(text),
        Err(error) => {
            tracing::error!(%error, "an event cannot be written");
            to.comment("an event cannot be written")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(last: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(LAST_EVENT_ID, last.parse().unwrap());
        headers
    }

    #[test]
    fn an_id_that_no_event_has_is_refused_by_the_name_of_the_header() {
        assert_eq!(last_event(&HeaderMap::new()).unwrap(), None);
        assert_eq!(last_event(&headers(" 17 ")).unwrap(), Some(17));
        for bad in ["", "x", "-1", "18446744073709551615", "99999999999999999999"] {
            let refusal = last_event(&headers(bad)).unwrap_err().body().error;
            assert!(refusal.starts_with("Last-Event-ID: "), "{refusal}");
        }
    }

    #[test]
    fn a_filter_names_the_field_that_is_wrong() {
        let refused = |query| Filter::of(query, &Owner::default()).unwrap_err().body().error;
        let sandbox = EventsQuery { sandbox: Some("x".into()), ..EventsQuery::default() };
        assert!(refused(sandbox).starts_with("sandbox: "));
        let snapshot = EventsQuery { snapshot: Some("a b".into()), ..EventsQuery::default() };
        assert!(refused(snapshot).starts_with("snapshot: "));
    }
}
