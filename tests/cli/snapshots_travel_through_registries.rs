//! Goal: a running state goes from one daemon to another through a registry that wants a password.
//! A child there goes on with what was in memory and on disk. Without the password, or trust in
//! the key, nothing comes. A branch that is pushed after its template costs its own parts alone,
//! and so does one that is pulled where its template is. Who wants to pull finds out before what
//! there is, whose it is and whether it fits.
//!
//! Method: two daemons with credentials and one without, and a registry on this host. Breaks when a
//! part is another's, when parts that the registry has are sent, when memory that is here is
//! fetched, or when memory is fetched before the signature was checked.

use std::fs;
use std::time::Instant;

use forkd_testkit::{Fault, Registry};
use serde_json::json;

use crate::forkd::Forkd;

/// Of `me` with the password `secret`.
const PAIR: &str = "bWU6c2VjcmV0";

/// The registry of these two snapshots has them under `team`, and nothing else.
fn a_search_finds(forkd: &Forkd, snapshots: [&String; 2]) {
    let host = snapshots[0].split('/').next().unwrap();
    let listed = forkd.json(&["hub", "search", host, "team"]);
    let mut names: Vec<_> =
        listed["snapshots"].as_array().unwrap().iter().map(|entry| &entry["reference"]).collect();
    names.sort_by_key(|name| name.to_string());
    assert_eq!(json!(names), json!(snapshots), "{listed}");
    assert_eq!(forkd.json(&["hub", "search", host, "other"])["snapshots"], json!([]));
}

#[test]
fn snapshots_travel_through_registries() {
    let registry = Registry::start(Some("Basic bWU6c2VjcmV0"), |_| Fault::None);
    let host = registry.reference("");
    let docker = tempfile::tempdir().unwrap();
    let config = json!({"auths": {host.trim_end_matches('/'): {"auth": PAIR}}});
    fs::write(docker.path().join("config.json"), config.to_string()).unwrap();
    let docker: &'static str = docker.path().to_str().unwrap().to_owned().leak();
    let (template, warm) = (registry.reference("team/t:v1"), registry.reference("team/t:warm"));

    let here = Forkd::with_variables(&[("DOCKER_CONFIG", docker)]);
    here.ok(&["template", "build", "python", "--tag", "t", "--mem-size-mib", "256"]);
    let id = here.ok(&["fork", "t"]);
    here.ok(&["eval", &id, "state = [n * n for n in range(100000)]"]);
    here.ok(&["exec", &id, "--", "sh", "-c", "echo warm > /srv/state; sync"]);
    here.ok(&["-q", "branch", &id, "--tag", "warm"]);

    let pushed = here.run(&["push", "t", &template]);
    let warning = String::from_utf8(pushed.stderr).unwrap();
    assert!(pushed.status.success() && warning.contains("password"), "{warning}");
    let base = registry.bytes() as u64;
    let branch = here.json(&["push", "warm", &warm]);
    let (all, sent) = (branch["bytes"].as_u64().unwrap(), branch["bytes_sent"].as_u64().unwrap());
    println!("the template has {base} bytes, its branch {all}, of which {sent} were sent");
    assert_eq!(registry.bytes() as u64 - base, sent);
    assert!(sent < all / 2, "the parts of the template are there: {sent} of {all}");

    here.ok(&["-q", "branch", &id, "--tag", "secret", "--private"]);
    let (errors, code) = here.refused(&["push", "secret", &registry.reference("team/t:secret")]);
    assert!(errors.contains("is private") && errors.contains("\nhint: ") && code == 1, "{errors}");

    let stranger = Forkd::with_variables(&[("DOCKER_CONFIG", "/nonexistent")]);
    let (errors, code) = stranger.refused(&["pull", &warm]);
    assert!(errors.contains("docker login") && code == 1, "{errors}");

    let there = Forkd::with_variables(&[("DOCKER_CONFIG", docker)]);
    let asked = registry.asked().len();
    let (errors, code) = there.refused(&["pull", &warm]);
    let key = here.ok(&["key"]);
    assert!(errors.contains(&key) && errors.contains("forkd key trust") && code == 1, "{errors}");
    let documents = registry.asked().len() - asked;
    assert!(documents <= 4, "{documents} requests, and none for memory");
    let found = there.json(&["hub", "info", &warm]);
    assert_eq!((&found["trusted"], &found["key"]), (&json!(false), &json!(key)), "{found}");
    assert_eq!((&found["tag"], &found["ancestors"]), (&json!("warm"), &json!(["t"])), "{found}");
    assert_eq!((&found["bytes"], &found["problem"]), (&branch["bytes"], &json!(null)), "{found}");
    there.ok(&["key", "trust", "here", &key]);
    assert_eq!(there.json(&["hub", "info", &warm])["trusted_as"], "here");
    a_search_finds(&there, [&template, &warm]);
    let (errors, code) = stranger.refused(&["hub", "search", host.trim_end_matches('/')]);
    assert!(errors.contains("docker login") && code == 1, "{errors}");
    let started = Instant::now();
    assert_eq!(there.ok(&["pull", &warm]), "warm");
    println!("pulled in {:?}", started.elapsed());
    let child = there.ok(&["fork", "warm"]);
    assert_eq!(there.ok(&["eval", &child, "sum(state)"]), "333328333350000");
    assert_eq!(there.ok(&["exec", &child, "--", "cat", "/srv/state"]), "warm");

    // What comes back shares what it goes back to.
    there.ok(&["eval", &child, "state = sum(state)"]);
    there.ok(&["-q", "branch", &child, "--tag", "more"]);
    let more = registry.reference("team/t:more");
    let pushed = there.json(&["push", "more", &more]);
    here.ok(&["key", "trust", "there", &there.ok(&["key"])]);
    let pull = |name: &str| {
        let (before, started) = (registry.given_bytes(), Instant::now());
        assert_eq!(here.ok(&["pull", &more, "--tag", name]), name);
        let bytes = (registry.given_bytes() - before) as u64;
        println!("`{name}`: {bytes} bytes of {} came in {:?}", pushed["bytes"], started.elapsed());
        bytes
    };
    let (new, again) = (pull("more"), pull("again"));
    let sent = pushed["bytes_sent"].as_u64().unwrap();
    assert!(new < sent * 11 / 10, "{new} bytes came, of which {sent} are new");
    assert!(again < new / 4, "all is here: {again} bytes");
    here.ok(&["snapshot", "rm", "more"]);
    let child = here.ok(&["fork", "again"]);
    assert_eq!(here.ok(&["eval", &child, "state"]), "333328333350000");
    assert_eq!(here.ok(&["exec", &child, "--", "cat", "/srv/state"]), "warm");
}
