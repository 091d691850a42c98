//! Goal: whatever route is asked for something of another owner, the answer is 404 and the same,
//! word for word, as for something that was never there; lists and events leave it out.
//!
//! Method: every route of the committed document is asked by bob. In each place where a request
//! names a sandbox, a snapshot or an operation, in its path or its body, it names one of ann's, and
//! then one that nobody has. Ann asks the same and must not get that answer, so nothing passes
//! because the request was refused for another reason. A route, a parameter or a body that this
//! test does not know fails it: teach it how to ask.

use forkd_engine::Limits;
use futures_util::StreamExt as _;
use serde_json::{Value, json};

use super::lab::{Lab, Things, read};

/// Routes that name nothing that belongs to anybody; what they answer is tested one by one.
const NAME_NOTHING: [&str; 20] = [
    "get /healthz",
    "get /version",
    "get /metrics",
    "get /v1/images",
    "get /v1/sandboxes",
    "get /v1/snapshots",
    "post /v1/snapshots",
    "post /v1/artifacts",
    "post /v1/pulls",
    "get /v1/hub/snapshot",
    "get /v1/hub/snapshots",
    "get /v1/keys",
    "put /v1/keys/{name}",
    "delete /v1/keys/{name}",
    "get /v1/secrets",
    "put /v1/secrets/{name}",
    "get /v1/networks",
    "post /v1/networks",
    "get /v1/operations",
    "get /v1/events",
];

/// A process that nobody has.
const PROCESS: &str = "pr-0123456789ab";

/// Where a request can name something of somebody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Sandbox,
    Snapshot,
    Operation,
    SnapshotInBody,
    Secret,
    Network,
}

impl Place {
    /// The code for one that is not there.
    const fn not_found(self) -> &'static str {
        match self {
            Self::Sandbox => "sandbox_not_found",
            Self::Snapshot | Self::SnapshotInBody => "snapshot_not_found",
            Self::Operation => "operation_not_found",
            Self::Secret => "secret_not_found",
            Self::Network => "network_not_found",
        }
    }
}

/// What a request names in each place.
#[derive(Debug, Clone)]
struct Names {
    path: Things,
    snapshot_in_body: String,
}

impl Names {
    fn of(things: &Things) -> Self {
        Self { path: things.clone(), snapshot_in_body: things.snapshot.clone() }
    }

    fn put(&mut self, place: Place, from: &Self) {
        match place {
            Place::Sandbox => self.path.sandbox.clone_from(&from.path.sandbox),
            Place::Snapshot => self.path.snapshot.clone_from(&from.path.snapshot),
            Place::Operation => self.path.operation.clone_from(&from.path.operation),
            Place::Secret => self.path.secret.clone_from(&from.path.secret),
            Place::Network => self.path.network.clone_from(&from.path.network),
            Place::SnapshotInBody => self.snapshot_in_body.clone_from(&from.snapshot_in_body),
        }
    }

    fn in_place(&self, place: Place) -> &str {
        match place {
            Place::Sandbox => &self.path.sandbox,
            Place::Snapshot => &self.path.snapshot,
            Place::Operation => &self.path.operation,
            Place::Secret => &self.path.secret,
            Place::Network => &self.path.network,
            Place::SnapshotInBody => &self.snapshot_in_body,
        }
    }
}

/// A route of the document.
struct Route {
    method: String,
    path: String,
    operation: Value,
}

impl Route {
    fn name(&self) -> String {
        format!("{} {}", self.method, self.path)
    }

    fn places(&self) -> Vec<Place> {
        let mut places = Vec::new();
        for segment in self.path.split('/').filter(|segment| segment.starts_with('{')) {
            places.extend(match segment {
                "{id}" if self.path.starts_with("/v1/sandboxes/") => Some(Place::Sandbox),
                "{id}" if self.path.starts_with("/v1/operations/") => Some(Place::Operation),
                "{tag}" => Some(Place::Snapshot),
                "{name}" if self.path.starts_with("/v1/networks/") => Some(Place::Network),
                "{sandbox}" => Some(Place::Sandbox),
                // The daemon's, and for admins to change.
                "{name}" if self.path.starts_with("/v1/keys/") => None,
                "{name}" if self.method == "delete" => Some(Place::Secret),
                // A new one may have the name that another owner's has.
                "{name}" => None,
                // Nobody can name it without its sandbox.
                "{process}" | "{port}" => None,
                other => panic!("{}: what is {other}?", self.name()),
            });
        }
        let names_snapshot =
            |(_, body): (&str, Vec<u8>)| String::from_utf8_lossy(&body).contains("SNAPSHOT");
        if self.body("SNAPSHOT").is_some_and(names_snapshot) {
            places.push(Place::SnapshotInBody);
        }
        places
    }

    fn url(&self, names: &Names) -> String {
        let segment = |text: &str| text.replace('/', "%2F");
        let object = match self.path.starts_with("/v1/operations/") {
            true => &names.path.operation,
            false => &names.path.sandbox,
        };
        let name = match self.path.starts_with("/v1/networks/") {
            true => &names.path.network,
            false => &names.path.secret,
        };
        let path = self
            .path
            .replace("{id}", object)
            .replace("{process}", PROCESS)
            .replace("{port}", "8080")
            .replace("{sandbox}", object)
            .replace("{name}", name);
        let path = path.replace("{tag}", &segment(&names.path.snapshot));
        let parameters = self.operation["parameters"].as_array().cloned().unwrap_or_default();
        let mut query = Vec::new();
        for known in parameters.iter().filter(|known| known["in"] == "query") {
            match known["name"].as_str().unwrap() {
                "path" => query.push("path=/etc/x".to_owned()),
                "timeout_secs" => query.push("timeout_secs=0".to_owned()),
                other => assert!(known["required"] != true, "{}: what is {other}?", self.name()),
            }
        }
        if query.is_empty() { path } else { format!("{path}?{}", query.join("&")) }
    }

    /// A good body that names `snapshot` if it names one.
    fn body(&self, snapshot: &str) -> Option<(&'static str, Vec<u8>)> {
        let content = self.operation["requestBody"]["content"].as_object()?;
        if content.contains_key("application/octet-stream") {
            return Some(("application/octet-stream", b"bytes".to_vec()));
        }
        let schema = content["application/json"]["schema"]["$ref"].as_str().unwrap();
        let body = match schema.rsplit('/').next().unwrap() {
            "CreateSandboxes" | "RollbackSandbox" => json!({"snapshot_tag": snapshot}),
            "CreateSnapshot" => json!({"tag": "new", "image": "plain", "mem_size_mib": 64}),
            "CompactSnapshot" => json!({"to": "compacted"}),
            "BranchRequest" => json!({"tag": "branched", "mode": "diff"}),
            "ExecRequest" | "CreateProcess" => json!({"args": ["true"]}),
            "EvalRequest" => json!({"code": "1"}),
            "SignalRequest" => json!({"signal": "TERM"}),
            "CreatePortToken" => json!({"ttl_secs": 60}),
            // Nobody answers there.
            "PushSnapshot" | "PullSnapshot" => json!({"reference": "127.0.0.1:1/a/b:c"}),
            "TrustKey" => json!({"key": format!("ed25519:{}", "0".repeat(64))}),
            "NetworkPolicy" => json!({"allow_internet_access": false}),
            "CreateNetwork" => json!({"name": "new"}),
            "TtySize" => json!({"rows": 1, "cols": 1}),
            other => panic!("{}: what is the body {other}?", self.name()),
        };
        Some(("application/json", body.to_string().into_bytes()))
    }
}

fn routes() -> Vec<Route> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../openapi/v1.json");
    let document: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let mut routes = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let (method, path) = (method.clone(), path.clone());
            routes.push(Route { method, path, operation: operation.clone() });
        }
    }
    assert!(routes.len() > 40, "{} routes", routes.len());
    routes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_route_answers_for_what_is_anothers_as_for_what_is_not_there() {
    let lab = Lab::new(Limits::default()).await;
    let bobs = Names::of(&lab.make("bob", "own").await);
    let never = Names::of(&Things {
        sandbox: "sb-00000000dead".to_owned(),
        snapshot: "ann/never".to_owned(),
        operation: "op-00000000dead".to_owned(),
        secret: "NEVER".to_owned(),
        network: "never".to_owned(),
    });
    for (number, route) in routes().into_iter().enumerate() {
        let places = route.places();
        let named = !places.is_empty();
        assert_ne!(named, NAME_NOTHING.contains(&route.name().as_str()), "{}", route.name());
        for place in places {
            // New for each: ann's own request may remove them.
            let tag = format!("t{number}-{place:?}");
            let anns = Names::of(&lab.make("ann", &tag).await);
            let mut for_bob = anns.clone();
            for tag in [&mut for_bob.path.snapshot, &mut for_bob.snapshot_in_body] {
                *tag = format!("ann/{tag}");
            }
            let mut answers = Vec::new();
            for foreign in [&for_bob, &never] {
                let mut names = bobs.clone();
                names.put(place, foreign);
                let body = route.body(&names.snapshot_in_body);
                let answer = lab.begin("bob", &route.method, &route.url(&names), body).await;
                let mut headers = answer.headers().clone();
                headers.remove("x-request-id");
                headers.remove("content-length");
                let answer = read(answer).await;
                let name = route.name();
                let (status, code) = (answer.status, answer.code().to_owned());
                let expected = (404, place.not_found().to_owned());
                assert_eq!((status, code), expected, "{name} {place:?}: {answer:?}");
                let text = answer.body.to_string().replace(foreign.in_place(place), "NAME");
                answers.push((headers, text));
            }
            assert_eq!(answers[0], answers[1], "{} {place:?}", route.name());
            let body = route.body(&anns.snapshot_in_body);
            let own = lab.begin("ann", &route.method, &route.url(&anns), body).await;
            // A stream has no end to be waited for.
            if own.status() == 404 {
                let own = read(own).await;
                assert_ne!(own.code(), place.not_found(), "{} of ann's own", route.name());
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_leave_out_what_is_anothers_and_show_it_to_admins() {
    let lab = Lab::new(Limits::default()).await;
    let anns = lab.make("ann", "secret").await;
    let shared = json!({"tag": "s", "image": "plain", "mem_size_mib": 64, "shared": true});
    let refused = lab.ask("ann", "POST", "/v1/snapshots", Some(shared.clone())).await;
    assert_eq!((refused.status, refused.code()), (403, "admin_only"));
    assert_eq!(lab.ask("ops", "POST", "/v1/snapshots", Some(shared)).await.status, 201);
    let fork = json!({"snapshot_tag": "ops/s"});
    let child = lab.ask("ann", "POST", "/v1/sandboxes", Some(fork)).await;
    let child = child.body[0]["id"].as_str().unwrap().to_owned();
    let told =
        [&anns.sandbox, &anns.operation, &child, &anns.snapshot, &anns.network, &"ann".to_owned()];
    for path in [
        "/v1/sandboxes",
        "/v1/snapshots",
        "/v1/operations",
        "/v1/networks",
        "/v1/images",
        "/version",
        "/v1/snapshots/ops%2Fs/info",
        "/metrics",
    ] {
        let seen = lab.ask("bob", "GET", path, None).await;
        for word in told {
            assert!(!seen.body.to_string().contains(word.as_str()), "{path}: {seen:?}");
        }
    }
    let metrics = lab.ask("bob", "GET", "/metrics", None).await;
    assert_eq!((metrics.status, metrics.code()), (403, "admin_only"));
    assert_eq!(lab.ask("ops", "GET", "/metrics", None).await.status, 200);
    let snapshots = lab.ask("bob", "GET", "/v1/snapshots", None).await.body;
    let tags: Vec<&str> =
        snapshots.as_array().unwrap().iter().map(|s| s["tag"].as_str().unwrap()).collect();
    assert_eq!(tags, ["ops/s"]);
    let all = lab.ask("ops", "GET", "/v1/sandboxes", None).await.body;
    let anns_box = all.as_array().unwrap().iter().find(|s| s["id"] == anns.sandbox.as_str());
    assert_eq!(anns_box.unwrap()["snapshot_tag"], "ann/secret");
    assert_eq!(anns_box.unwrap()["owner"], "ann");
    let removed = lab.ask("bob", "DELETE", "/v1/snapshots/ops%2Fs?cascade=true", None).await;
    assert_eq!((removed.status, removed.code()), (403, "not_yours"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_tag_says_nothing_of_whether_another_owner_has_it() {
    let lab = Lab::new(Limits::default()).await;
    lab.make("ann", "t").await;
    let mut answers = Vec::new();
    for tag in ["ann/t", "ann/u"] {
        let create = json!({"tag": tag, "image": "plain", "mem_size_mib": 64});
        let refused = lab.ask("bob", "POST", "/v1/snapshots", Some(create)).await;
        assert_eq!(refused.status, 400);
        answers.push(refused);
    }
    assert_eq!(answers[0], answers[1]);
    lab.make("bob", "t").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_tell_of_ones_own_alone() {
    let lab = Lab::new(Limits::default()).await;
    let begin = async || lab.begin("bob", "GET", "/v1/events", None).await.into_body();
    let mut live = begin().await.into_data_stream();
    let anns = lab.make("ann", "secret").await;
    let bobs = lab.make("bob", "own").await;
    let mut text = String::new();
    while !text.contains("event: sandbox.started") {
        let piece = tokio::time::timeout(std::time::Duration::from_secs(30), live.next());
        let piece = piece.await.expect("bob's own events come").unwrap().unwrap();
        text.push_str(&String::from_utf8_lossy(&piece));
    }
    assert!(text.contains(&bobs.sandbox) && text.contains("\"tag\":\"own\""), "{text}");
    for word in [&anns.sandbox, &anns.operation, &anns.snapshot] {
        assert!(!text.contains(word.as_str()), "{text}");
    }
}
