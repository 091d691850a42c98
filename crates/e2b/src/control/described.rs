//! What is said of each route.

use serde_json::{Value, json};

use super::create::NewSandbox;
use super::fork::{Fork, ForkResult};
use super::life::{Connect, Pause, Refresh, Resume, Sample, Timeout};
use super::network::NetworkWish;
use super::shown::{Detail, Listed};
use super::snapshots::{NewSnapshot, SnapshotShown, TemplateName};
use crate::document::operation::{Operation, Schemas, parameter};
use crate::failure::ErrorBody;
use crate::handed_out::HandedOut;

/// What may become of every request.
const ANY: [u16; 3] = [400, 401, 500];
/// And of one that starts or changes something.
const CHANGE: [u16; 6] = [404, 409, 429, 502, 503, 507];

const NEXT: &str = "Where the next page begins, as `nextToken`. Absent on the last one.";

pub(crate) fn operations(schemas: &mut Schemas) -> Vec<Operation> {
    let error = schemas.of::<ErrorBody>();
    let mut all = sandboxes(schemas, &error);
    all.extend(lives(schemas, &error));
    all.extend(snapshots(schemas, &error));
    let with_key = |it: Operation| it.fails(&error, &ANY).opens_to(&["key"]);
    let mut all: Vec<Operation> = all.into_iter().map(with_key).collect();
    all.push(
        Operation::new("GET", "/health", "Whether the daemon is there.")
            .says(200, "It is.")
            .opens_to(&[""]),
    );
    all
}

fn pages() -> [Value; 2] {
    let limit = json!({"type": "integer", "minimum": 1, "maximum": 100, "default": 100});
    [
        parameter("limit", "The most of a page.", limit),
        parameter("nextToken", "Where the page begins.", json!({"type": "string"})),
    ]
}

fn sandboxes(schemas: &mut Schemas, error: &Value) -> Vec<Operation> {
    let text = || json!({"type": "string"});
    let [new, handed_out] = [schemas.of::<NewSandbox>(), schemas.of::<HandedOut>()];
    let [listed, detail] = [schemas.list::<Listed>(), schemas.of::<Detail>()];
    let key = json!({
        "in": "header", "name": "Idempotency-Key",
        "description": "The same request with the same key is done once.",
        "schema": {"type": "string", "pattern": "^[a-z0-9-]{1,255}$"},
    });
    let create = |path| {
        Operation::new("POST", path, "Starts a sandbox.")
            .with([key.clone()])
            .takes(&new)
            .gives(201, "It runs.", &handed_out)
            .fails(error, &CHANGE)
    };
    let list = |path| {
        let wanted = [
            parameter("metadata", "Pairs that they have, escaped as in a query and again.", text()),
            parameter("state", "`running`, `paused`, or both with a comma.", text()),
            parameter(
                "order",
                "By their start; newest first by itself.",
                json!({
                    "type": "string", "enum": ["asc", "desc"],
                }),
            ),
            parameter(
                "startedAfter",
                "Then or later.",
                json!({
                    "type": "string", "format": "date-time",
                }),
            ),
            parameter("template", "What they were started from.", text()),
        ];
        Operation::new("GET", path, "Lists sandboxes.")
            .with(wanted.into_iter().chain(pages()))
            .gives(200, "A page of them.", &listed)
            .with_header("X-Next-Token", NEXT)
    };
    vec![
        create("/sandboxes"),
        create("/v2/sandboxes"),
        list("/sandboxes"),
        list("/v2/sandboxes"),
        Operation::new("GET", "/sandboxes/{id}", "Shows a sandbox.")
            .gives(200, "It runs, or is paused.", &detail)
            .fails(error, &[404]),
        Operation::new("DELETE", "/sandboxes/{id}", "Ends a sandbox.")
            .says(204, "It is gone.")
            .fails(error, &[404, 409, 503]),
    ]
}

fn lives(schemas: &mut Schemas, error: &Value) -> Vec<Operation> {
    let [timeout, refresh, connect] =
        [schemas.of::<Timeout>(), schemas.of::<Refresh>(), schemas.of::<Connect>()];
    let [handed_out, pause, network] =
        [schemas.of::<HandedOut>(), schemas.of::<Pause>(), schemas.of::<NetworkWish>()];
    let samples = schemas.list::<Sample>();
    let second = |name: &str| {
        parameter(name, "In seconds since 1970, and included.", json!({"type": "integer"}))
    };
    let connected = |path| {
        let summary = "Comes back to a sandbox: it lives on, or goes on if it is paused.";
        Operation::new("POST", path, summary)
            .takes(&connect)
            .gives(200, "It was running.", &handed_out)
            .gives(201, "It was paused.", &handed_out)
            .fails(error, &CHANGE)
    };
    let change = |method, path, summary, body: &Value| {
        let change = Operation::new(method, path, summary).takes(body);
        change.says(204, "It is done.").fails(error, &CHANGE)
    };
    vec![
        change("POST", "/sandboxes/{id}/timeout", "Says when a sandbox ends.", &timeout),
        change("POST", "/sandboxes/{id}/refreshes", "Makes a sandbox live longer.", &refresh),
        connected("/sandboxes/{id}/connect"),
        connected("/v2/sandboxes/{id}/connect"),
        Operation::new("POST", "/sandboxes/{id}/resume", "The same, for clients of before.")
            .takes(&schemas.of::<Resume>())
            .gives(201, "It runs.", &handed_out)
            .fails(error, &CHANGE),
        change("POST", "/sandboxes/{id}/pause", "Pauses a sandbox.", &pause),
        change("PUT", "/sandboxes/{id}/network", "Says what a sandbox may reach.", &network),
        Operation::new("GET", "/sandboxes/{id}/metrics", "What the programs of a sandbox use.")
            .with([second("start"), second("end")])
            .gives(200, "One sample of now, if it is asked for.", &samples)
            .fails(error, &[404, 409, 413, 429, 501, 502]),
    ]
}

fn snapshots(schemas: &mut Schemas, error: &Value) -> Vec<Operation> {
    let text = || json!({"type": "string"});
    let [fork, forks] = [schemas.of::<Fork>(), schemas.list::<ForkResult>()];
    let [new, snapshot] = [schemas.of::<NewSnapshot>(), schemas.of::<SnapshotShown>()];
    let [list, template] = [schemas.list::<SnapshotShown>(), schemas.of::<TemplateName>()];
    let wanted = [
        parameter("sandboxID", "The sandbox that they were made of.", text()),
        parameter("name", "Their name.", text()),
    ];
    vec![
        Operation::new("POST", "/sandboxes/{id}/fork", "Forks a sandbox that runs.")
            .takes(&fork)
            .gives(201, "What became of each.", &forks)
            .fails(error, &CHANGE),
        Operation::new("POST", "/sandboxes/{id}/snapshots", "Keeps a snapshot of a sandbox.")
            .takes(&new)
            .gives(201, "It is kept.", &snapshot)
            .fails(error, &CHANGE),
        Operation::new("GET", "/snapshots", "Lists snapshots of sandboxes, newest first.")
            .with(wanted.into_iter().chain(pages()))
            .gives(200, "A page of them.", &list)
            .with_header("X-Next-Token", NEXT),
        Operation::new("DELETE", "/templates/{id}", "Removes a snapshot of a sandbox.")
            .says(204, "It is gone.")
            .fails(error, &[403, 404, 409, 501, 503]),
        Operation::new("GET", "/templates/aliases/{id}", "Whether there is such a template.")
            .gives(200, "There is.", &template)
            .fails(error, &[404]),
    ]
}
