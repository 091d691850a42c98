//! Goal: whatever route of the control interface is asked for something of another owner, the
//! answer is 404 and the same, word for word, as for something that was never there.
//!
//! Method: every route of the router's source is asked with ann's key for a sandbox or a snapshot
//! of the daemon's user, and for one that nobody has. Its owner asks the same and is not answered
//! 404, so nothing passes because the request was refused for another reason. Servers and the agent
//! of a sandbox are not asked here: they ask for its token, whoever comes.

use axum::body::Body;
use serde_json::{Value, json};

use super::{ANN, Lab};

const SOURCE: &str = include_str!("../control/mod.rs");
const NEVER: &str = "sb00000000dead";

/// Methods and paths of all routes.
pub(super) fn routes() -> Vec<(&'static str, &'static str)> {
    let mut routes = Vec::new();
    for line in SOURCE.lines().filter_map(|line| line.trim().strip_prefix(".route(\"")) {
        let (path, handlers) = line.split_once('"').unwrap();
        let known = [("get(", "GET"), ("post(", "POST"), ("put(", "PUT"), ("delete(", "DELETE")];
        let created = [("listing", "GET"), ("create()", "POST")];
        let methods = known.into_iter().chain(created);
        let before = routes.len();
        routes.extend(methods.filter(|(word, _)| handlers.contains(word)).map(|(_, m)| (m, path)));
        assert!(routes.len() > before, "{line}: with which method?");
    }
    assert!(routes.len() > 18, "{routes:?}");
    routes
}

/// What ann is answered, without the name that she has said.
async fn told(lab: &Lab, what: &str, body: Value, name: &str) -> (u16, String) {
    let body = if body.is_null() { Body::empty() } else { body.to_string().into() };
    let answer = lab.ask(&what.replace("{id}", name), &[("x-api-key", ANN)], body).await;
    let headers: Vec<_> =
        answer.headers.iter().filter(|(name, _)| *name != "content-length").collect();
    let text = format!("{headers:?} {}", answer.body);
    (answer.status, text.replace(&name.replace("%2F", "/"), "NAME"))
}

#[tokio::test]
async fn every_route_answers_for_what_is_anothers_as_for_what_is_not_there() {
    let lab = Lab::new().await;
    let owner = lab.engine.caller().owner().clone();
    for (number, (method, path)) in routes().into_iter().enumerate() {
        let what = format!("{method} {path}");
        let body = match path.rsplit('/').next().unwrap() {
            "timeout" => json!({"timeout": 30}),
            _ if method == "GET" || method == "DELETE" => Value::Null,
            _ => json!({}),
        };
        // New for each: its owner's request may end it.
        let (id, _) = lab.sandbox(json!({})).await;
        let (mine, never) = (format!("mine-{number:02}"), format!("none-{number:02}"));
        let keep = format!("POST /sandboxes/{id}/snapshots");
        assert_eq!(lab.control(&keep, json!({"name": mine})).await.status, 201);
        let pairs = match path {
            _ if path.starts_with("/templates/") => vec![
                (mine.clone(), never.clone()),
                (format!("{owner}%2F{mine}"), format!("{owner}%2F{never}")),
            ],
            _ if path.contains("{id}") => vec![(id.clone(), NEVER.to_owned())],
            _ => Vec::new(),
        };
        for (foreign, never) in &pairs {
            let [foreign, never] = [
                told(&lab, &what, body.clone(), foreign).await,
                told(&lab, &what, body.clone(), never).await,
            ];
            assert_eq!(foreign, never, "{what}");
            assert_eq!(foreign.0, 404, "{what}: {}", foreign.1);
        }
        if let Some((own, _)) = pairs.first() {
            let own = lab.control(&what.replace("{id}", own), body).await;
            assert_ne!(own.status, 404, "{what} of one's own: {}", own.body);
        } else if method == "GET" {
            let (status, text) = told(&lab, &what, Value::Null, "").await;
            assert_eq!(status, 200, "{what}");
            assert!(!text.contains(&id) && !text.contains(&mine), "{what}: {text}");
        } else {
            assert!(["/sandboxes", "/v2/sandboxes"].contains(&path), "{what}: ask for what?");
            let [foreign, never] = [&mine, &never].map(|name| json!({"templateID": name}));
            let foreign = told(&lab, &what, foreign, &mine).await;
            let never = told(&lab, &what, never, &format!("none-{number:02}")).await;
            assert_eq!(foreign, never, "{what}");
            assert_eq!(foreign.0, 404, "{what}: {}", foreign.1);
        }
        lab.control(&format!("DELETE /sandboxes/{id}"), Value::Null).await;
    }
}
