//! The OpenAPI document of E2B's interfaces, `openapi/e2b.json`.
//!
//! Each part has a table of its routes, by which it answers, and a description of each of them in
//! its file `described.rs`. Bodies are described by the types that are read and written.
//!
//! Guarantees: a route without a description, and a description without a route, fail a test.
//!
//! Does not do: exist in the daemon. It is made by a test, and tests hold answers to it.

mod judge;
pub(crate) mod operation;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

pub(crate) use self::judge::{Answered, Asked, Content, Document};
use self::operation::{Operation, Schemas};
use crate::connect::EndOfStream;
use crate::failure::NoServer;
use crate::{control, envd, interpreter};

/// What a part of the interface is called, and how a request gets there.
const TAGS: [(&str, &str); 3] = [
    (CONTROL, "Sandboxes and snapshots as a whole. Asks for a key, as `X-API-KEY`."),
    (
        AGENT,
        "Programs and files of one sandbox: port 49983 of it. `E2b-Sandbox-Id` and \
         `E2b-Sandbox-Port` say that, or a host `49983-ID.DOMAIN`, or the signature of a file's \
         address.",
    ),
    (
        INTERPRETER,
        "Python code in one sandbox: port 49999 of it. An image's own server goes first.",
    ),
];
pub(crate) const CONTROL: &str = "control";
pub(crate) const AGENT: &str = "agent";
pub(crate) const INTERPRETER: &str = "interpreter";

const TEXT: &str = "E2B's interface, as forkd speaks it. What is not here is refused with 501, or \
    by the interpreter with 404. A request for a sandbox that does not run, or for a port that \
    nobody serves, is answered 502 with a body of `NoServer`; one without the token that a port \
    asks for, 403 with the same; one that does not say its sandbox and port clearly, 400 with an \
    `Error`.";

/// All operations, those of one path and method by their parts.
fn operations(schemas: &mut Schemas) -> Vec<Operation> {
    let control = (CONTROL, control::described::operations(schemas));
    let agent = (AGENT, envd::described::operations(schemas));
    let interpreter = (INTERPRETER, interpreter::described::operations(schemas));
    let parts = [control, agent, interpreter];
    let all = parts.into_iter().flat_map(|(part, all)| all.into_iter().map(move |it| it.of(part)));
    all.collect()
}

/// The document.
pub(crate) fn document() -> Value {
    let mut schemas = Schemas::default();
    // They are the body of no operation alone.
    schemas.of::<NoServer>();
    schemas.of::<EndOfStream>();
    let mut paths: BTreeMap<&str, BTreeMap<String, Value>> = BTreeMap::new();
    let operations = operations(&mut schemas);
    for operation in &operations {
        let methods = paths.entry(operation.path).or_default();
        let shown = operation.shown();
        match methods.get_mut(&operation.method.to_lowercase()) {
            Some(known) => merge(known, &shown),
            None => drop(methods.insert(operation.method.to_lowercase(), shown)),
        }
    }
    let tags = TAGS.map(|(name, description)| json!({"name": name, "description": description}));
    let key = |name: &str| json!({"type": "apiKey", "in": "header", "name": name});
    sorted(json!({
        "openapi": "3.1.0",
        "info": {
            "title": "E2B's interface of forkd",
            "description": TEXT,
            "version": crate::shared::ENVD_VERSION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "tags": tags,
        "paths": paths,
        "components": {
            "schemas": schemas.shown(),
            "securitySchemes": {
                "key": key("X-API-KEY"),
                "token": key("X-Access-Token"),
                "signature": {"type": "apiKey", "in": "query", "name": "signature"},
                "traffic": key("E2B-Traffic-Access-Token"),
            },
        },
    }))
}

/// Several parts have this operation: it is described once, with the answers of all.
fn merge(known: &mut Value, other: &Value) {
    let list = |value: &Value, name: &str| value[name].as_array().cloned().unwrap_or_default();
    known["tags"] = [list(known, "tags"), list(other, "tags")].concat().into();
    known["security"] = [list(known, "security"), list(other, "security")].concat().into();
    let summaries = [&known["summary"], &other["summary"]].map(|it| it.as_str().unwrap());
    known["summary"] = summaries.join(" ").into();
    for (status, response) in other["responses"].as_object().unwrap() {
        match known["responses"].get(status) {
            Some(same) => assert_eq!(same, response, "{status}: of which part?"),
            None => known["responses"][status] = response.clone(),
        }
    }
}

/// Objects in order, whatever order they were made in.
fn sorted(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields: BTreeMap<String, Value> =
                fields.into_iter().map(|(name, value)| (name, sorted(value))).collect();
            Value::Object(fields.into_iter().collect::<Map<_, _>>())
        }
        Value::Array(items) => items.into_iter().map(sorted).collect(),
        other => other,
    }
}

/// Methods and paths that parts of the interface answer.
fn routes() -> BTreeSet<(&'static str, &'static str, &'static str)> {
    let control = control::ROUTES.iter().map(|route| (CONTROL, route.method, route.path));
    let agent = envd::ROUTES.iter().map(|route| (AGENT, route.method, route.path));
    let interpreter =
        interpreter::ROUTES.iter().map(|route| (INTERPRETER, route.method, route.path));
    control.chain(agent).chain(interpreter).collect()
}

/// The committed document is what the crate says. `FORKD_UPDATE=1` writes it anew.
#[test]
fn the_committed_document_of_e2b_is_current() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../openapi/e2b.json");
    let current = serde_json::to_string_pretty(&document()).unwrap() + "\n";
    if std::env::var_os("FORKD_UPDATE").is_some() {
        std::fs::write(&path, &current).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(committed == current, "run `make generate` and commit the change");
}

#[test]
fn what_is_answered_is_described_and_what_is_described_is_answered() {
    let operations = operations(&mut Schemas::default());
    let described: BTreeSet<_> =
        operations.iter().map(|it| (it.part, it.method, it.path)).collect();
    assert_eq!(described.len(), operations.len(), "each is described once");
    let routes = routes();
    let nobody = BTreeSet::new();
    let without: BTreeSet<_> = routes.difference(&described).collect();
    assert_eq!(without, nobody, "they have no description");
    let without: BTreeSet<_> = described.difference(&routes).collect();
    assert_eq!(without, nobody, "nothing answers them");
}
