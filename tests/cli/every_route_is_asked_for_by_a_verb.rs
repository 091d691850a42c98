//! Goal: what the interface can do, the command line can: each verb does what it says, and together
//! they ask for every route. `forkd tree` shows what came from what. Quiet output is names only.
//!
//! Method: one session with every verb that is not tested elsewhere; then the daemon's own count
//! of requests is compared with `openapi/v1.json`. Breaks when a route has no verb, or when a verb
//! asks for another route than the one that it is for.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::Stdio;

use crate::forkd::Forkd;
use crate::terminal::end_of;

#[test]
fn every_route_is_asked_for_by_a_verb() {
    let forkd = Forkd::with_variables(&[("FORKD_PREVIEW_LISTEN", "127.0.0.1:0")]);
    assert_eq!(forkd.json(&["version"])["daemon"], serde_json::Value::Null, "it starts none");
    assert!(forkd.ok(&["images", "-q"]).contains("tiny"));
    forkd.ok(&["template", "build", "python", "--tag", "t", "--mem-size-mib", "256"]);
    let id = forkd.ok(&["fork", "t", "--metadata", "user=ann"]);
    sandboxes(&forkd, &id);
    files(&forkd, &id);
    processes(&forkd, &id);
    network(&forkd, &id);
    private_networks(&forkd, &id);
    secrets(&forkd);
    ports(&forkd, &id);
    snapshots(&forkd, &id);
    tree(&forkd, &id);
    told_by_the_daemon(&forkd, &id);
    let asked = asked(&forkd);
    let missing: Vec<String> = routes().difference(&asked).cloned().collect();
    assert!(missing.is_empty(), "no verb has asked for {missing:?}");
}

fn sandboxes(forkd: &Forkd, id: &str) {
    assert_eq!(forkd.ok(&["ls", "-q"]), id);
    let facts = forkd.ok(&["info", id]);
    let daemon = &forkd.json(&["version"])["daemon"];
    let boundary = if daemon["security_boundary"] == true { "a" } else { "no" };
    let accelerator = daemon["accelerator"].as_str().unwrap();
    let runs_on = format!("{accelerator} ({boundary} security boundary)");
    for fact in [id, "running", "user=ann", &runs_on] {
        assert!(facts.contains(fact), "{fact}: {facts}");
    }
    assert!(forkd.ok(&["ping", id]).starts_with("answered in"));
    assert_eq!(forkd.ok(&["exec", id, "--", "echo", "hi"]), "hi");
    assert_eq!(forkd.ok(&["eval", id, "6 * 7"]), "42");
    forkd.ok(&["logs", id]);
    assert_eq!(forkd.ok(&["pause", id]), id);
    assert_eq!(forkd.json(&["info", id])["state"], "paused");
    let (errors, code) = forkd.refused(&["resume", id, "sb-000000000000"]);
    assert!(errors.contains("sb-000000000000") && code == 1, "{errors}");
    assert_eq!(forkd.json(&["info", id])["state"], "running", "the other one is resumed");
}

fn secrets(forkd: &Forkd) {
    let mut set = forkd.command(&["secret", "set", "KEY", "--env", "THE_KEY"]);
    assert!(set.env("THE_KEY", "sk-1").status().unwrap().success());
    let key = forkd.home().join("key");
    std::fs::write(&key, "sk-2\n").unwrap();
    forkd.ok(&["secret", "set", "OTHER", "--file", key.to_str().unwrap()]);
    assert_eq!(forkd.ok(&["secret", "ls", "-q"]), "KEY\nOTHER");
    assert!(!forkd.json(&["secret", "ls"]).to_string().contains("sk-"));
    std::fs::write(&key, "sk-3\nsk-4\n").unwrap();
    let (errors, _) = forkd.refused(&["secret", "set", "OTHER", "--file", key.to_str().unwrap()]);
    assert!(errors.contains("one line") && !errors.contains("sk-"), "{errors}");
    let (errors, code) = forkd.refused(&["secret", "rm", "KEY", "NEVER"]);
    assert!(errors.contains("`NEVER`") && code == 1, "{errors}");
    assert_eq!(forkd.ok(&["secret", "ls", "-q"]), "OTHER");
}

fn files(forkd: &Forkd, id: &str) {
    let at = |path: &str| format!("{id}:{path}");
    forkd.ok(&["file", "mkdir", &at("/srv/a/b")]);
    let mut watch = forkd
        .command(&["file", "watch", "-r", &at("/srv/a")])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut told = String::new();
    let mut remarks = BufReader::new(watch.stderr.take().unwrap());
    remarks.read_line(&mut told).unwrap();
    assert_eq!(told, "watching /srv/a\n");
    // Larger than a piece of it on its way.
    let local = forkd.home().join("large");
    let content: Vec<u8> = (0..3_000_000_u32).map(|number| (number % 251) as u8).collect();
    std::fs::write(&local, &content).unwrap();
    forkd.ok(&["cp", local.to_str().unwrap(), &at("/srv/a/b/")]);
    let mut line = String::new();
    let mut changes = BufReader::new(watch.stdout.take().unwrap());
    changes.read_line(&mut line).unwrap();
    assert_eq!(line, "created   /srv/a/b/large\n");
    let back = forkd.run(&["file", "cat", &at("/srv/a/b/large")]);
    assert!(back.stdout == content, "another content");
    assert_eq!(forkd.json(&["file", "stat", &at("/srv/a/b/large")])["size_bytes"], 3_000_000);
    assert_eq!(forkd.ok(&["file", "ls", "-q", &at("/srv/a/b")]), "large");
    forkd.ok(&["file", "mkdir", "--user", "4242:4343", &at("/srv/theirs/sub")]);
    let copied = at("/srv/theirs/sub/file");
    forkd.ok(&["cp", "--user", "4242:4343", local.to_str().unwrap(), &copied]);
    for path in ["/srv/theirs", "/srv/theirs/sub", "/srv/theirs/sub/file"] {
        let told = forkd.json(&["file", "stat", &at(path)]);
        assert_eq!((&told["owner"], &told["group"]), (&"4242".into(), &"4343".into()), "{told}");
    }
    let listed = forkd.ok(&["file", "ls", &at("/srv/theirs/sub")]);
    assert!(listed.contains("4242:4343"), "{listed}");
    let (errors, _) = forkd.refused(&["cp", "-u", "nobody-here", local.to_str().unwrap(), &copied]);
    assert!(errors.contains("no user \"nobody-here\""), "{errors}");
    let (errors, code) = forkd.refused(&["cp", "-u", "4242", &copied, local.to_str().unwrap()]);
    assert!(errors.contains("hint: leave it out") && code == 2, "{errors}");
    let (errors, _) = forkd.refused(&["file", "rm", &at("/srv/a")]);
    assert!(errors.contains("/srv/a") && errors.contains("hint:"), "{errors}");
    forkd.ok(&["file", "rm", "-r", &at("/srv/a")]);
    let last = changes.lines().map(Result::unwrap).last().unwrap();
    assert!(last.starts_with("gone      "), "{last}");
    assert_eq!(end_of(&mut watch), Some(1), "what it watched is gone");
    let (errors, code) = forkd.refused(&["file", "ls", "/srv"]);
    assert!(errors.contains("SANDBOX:/PATH") && code == 2, "{errors}");
}

fn processes(forkd: &Forkd, id: &str) {
    let script = "read name; echo told >&2; echo hello $name; sleep 1000";
    let process = forkd.ok(&["process", "start", id, "--stdin", "--", "sh", "-c", script]);
    assert_eq!(forkd.ok(&["ps", id, "-q"]), process);
    let of = |verb: &'static str| ["process", verb, id, process.as_str()];
    assert!(forkd.ok(&of("info")).contains("running"));
    forkd.ok(&[&of("input")[..], &["world"]].concat());
    let mut attached = forkd
        .command(&[&of("attach")[..], &["--no-stdin"]].concat())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(attached.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "hello world\n");
    let (errors, code) =
        forkd.refused(&[&of("resize")[..], &["--rows", "9", "--cols", "9"]].concat());
    assert!(errors.contains("terminal") && code == 1, "{errors}");
    forkd.ok(&[&of("kill")[..], &["int"]].concat());
    assert_eq!(forkd.run(&of("wait")).status.code(), Some(130), "128 and the signal's number");
    assert_eq!(end_of(&mut attached), Some(130));
    let logs = forkd.run(&of("logs"));
    let text = |bytes| String::from_utf8(bytes).unwrap();
    assert_eq!((text(logs.stdout), text(logs.stderr)), ("hello world\n".into(), "told\n".into()));
    forkd.ok(&of("rm"));
    let started =
        ["process", "start", id, "--tty", "--", "sh", "-c", "stty size; read x; stty size"];
    let process = forkd.ok(&started);
    let of = |verb: &'static str| ["process", verb, id, process.as_str()];
    forkd.ok(&[&of("resize")[..], &["--rows", "50", "--cols", "132"]].concat());
    forkd.ok(&[&of("input")[..], &["x"]].concat());
    let followed = forkd.ok(&[&of("logs")[..], &["--follow"]].concat());
    assert!(followed.ends_with("50 132"), "{followed:?}");
    let events = forkd.ok(&["--json", "process", "logs", id, &process, "--follow"]);
    let last: serde_json::Value = serde_json::from_str(events.lines().last().unwrap()).unwrap();
    assert_eq!((&last["event"], &last["data"]["exit_code"]), (&"exit".into(), &0.into()));
}

fn network(forkd: &Forkd, id: &str) {
    forkd.ok(&["network", "set", id, "--allow", "api.example.com:443", "--deny", "198.51.100.7"]);
    let policy = forkd.json(&["network", "show", id]);
    assert_eq!(policy["allow_out"], serde_json::json!(["api.example.com:443"]), "{policy}");
    let shown = forkd.ok(&["net", "show", id]);
    assert!(shown.contains("198.51.100.7") && shown.contains("cannot be reached"), "{shown}");
    let resolve = "python3 -c \"import socket; socket.gethostbyname('other.example.com')\" || true";
    forkd.ok(&["exec", id, "--", "sh", "-c", resolve]);
    let refused = forkd.json(&["network", "log", id, "--refused", "--last", "1"]);
    assert_eq!(refused["name"], "other.example.com", "{refused}");
    let log = forkd.ok(&["net", "log", id]);
    assert!(log.contains("refused  udp   -                      other.example.com"), "{log}");
    let (error, _) = forkd.refused(&["network", "set", id, "--allow", "10.0.0.0/8"]);
    assert!(error.contains("forkd serve --network any"), "{error}");
}

fn private_networks(forkd: &Forkd, id: &str) {
    assert_eq!(forkd.ok(&["network", "create", "team"]), "team");
    let (error, _) = forkd.refused(&["network", "create", "team"]);
    assert!(error.contains("`team` exists") && error.contains("hint:"), "{error}");
    let name = format!("{id}.team.forkd.internal");
    assert_eq!(forkd.ok(&["network", "join", id, "team"]), name);
    assert_eq!(forkd.ok(&["network", "ls", "-q"]), "team");
    let members = forkd.ok(&["network", "ls", "team"]);
    assert!(members.contains(&name) && members.contains("10.43.0.1"), "{members}");
    assert!(forkd.ok(&["info", id]).contains(&format!("{name} (10.43.0.1)")));
    assert!(forkd.ok(&["network", "show", id]).contains("team"));
    forkd.ok(&["network", "leave", id, "team"]);
    let set = forkd.json(&["network", "set", id, "--join", "team"]);
    assert_eq!(set["allow_out"][0], "api.example.com:443", "nothing else has changed: {set}");
    forkd.ok(&["network", "leave", id, "team"]);
    let (error, _) = forkd.refused(&["network", "leave", id, "team"]);
    assert!(error.contains("is no member"), "{error}");
    let (error, code) = forkd.refused(&["network", "rm", "team", "never"]);
    assert!(error.contains("`never`") && code == 1, "{error}");
}

fn ports(forkd: &Forkd, id: &str) {
    forkd.ok(&["eval", id, "import socket; s = socket.create_server(('127.0.0.1', 8080))"]);
    assert_eq!(forkd.ok(&["ports", id, "-q"]), "8080");
    let mut forward = forkd
        .command(&["--json", "port", id, "8080", "--local", "0"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let json = serde_json::Deserializer::from_reader(forward.stdout.take().unwrap());
    let told: serde_json::Value = json.into_iter().next().unwrap().unwrap();
    assert_eq!((&told["sandbox"], &told["port"]), (&id.into(), &8080.into()));
    let mut open = TcpStream::connect(told["local"].as_str().unwrap()).unwrap();
    let accept = "connection, peer = s.accept(); connection.sendall(b'!'); peer[0]";
    assert_eq!(forkd.ok(&["eval", id, accept]), "'127.0.0.1'");
    // The request has been answered when this comes.
    open.read_exact(&mut [0]).unwrap();
    forward.kill().unwrap();
    forward.wait().unwrap();
    let url = forkd.ok(&["port", id, "8080", "--preview", "--ttl", "5m"]);
    assert!(url.starts_with(&format!("http://8080-{id}.localhost:")), "{url}");
    forkd.ok(&["port", id, "8080", "--revoke"]);
}

fn snapshots(forkd: &Forkd, id: &str) {
    let branch = forkd.ok(&["-q", "branch", id, "--tag", "b", "-n", "1", "--measure-diff"]);
    let child = branch.lines().nth(1).unwrap().to_owned();
    assert_eq!(branch, format!("b\n{child}"));
    assert!(forkd.json(&["snapshot", "info", "b"])["diff_ms"].is_null(), "a live one has none");
    forkd.ok(&["exec", id, "--", "touch", "/srv/later"]);
    assert_eq!(forkd.ok(&["rollback", id, "b"]), id);
    let (_, code) = forkd.refused(&["exec", id, "--", "test", "-e", "/srv/later"]);
    assert_eq!(code, 1, "it has not happened");
    forkd.ok(&["snapshot", "compact", "b", "--to", "alone"]);
    forkd.ok(&["-q", "snapshot", "rm", "alone"]);
    let file = forkd.home().join("b.tar");
    let file = file.to_str().unwrap();
    assert_eq!(forkd.ok(&["snapshot", "export", "b", file]), file);
    assert_eq!(forkd.ok(&["snapshot", "import", file, "--tag", "again"]), "again");
    forkd.ok(&["-q", "snapshot", "rm", "again"]);
    let registry = forkd_testkit::Registry::good();
    let reference = registry.reference("team/b:v1");
    assert!(forkd.ok(&["push", "b", &reference]).starts_with(&reference));
    assert_eq!(forkd.json(&["hub", "info", &reference])["tag"], "b");
    let host = reference.split('/').next().unwrap();
    assert_eq!(forkd.ok(&["-q", "hub", "search", host]), reference);
    assert_eq!(forkd.ok(&["pull", &reference, "--tag", "pulled"]), "pulled");
    forkd.ok(&["-q", "snapshot", "rm", "pulled"]);
    let key = forkd.ok(&["key"]);
    forkd.ok(&["key", "trust", "ann", &key]);
    assert_eq!(forkd.ok(&["key", "ls", "-q"]), "ann");
    forkd.ok(&["key", "rm", "ann"]);
    assert_eq!(forkd.ok(&["key", "ls", "-q"]), "");
}

fn tree(forkd: &Forkd, id: &str) {
    let child = forkd.ok(&["fork", "b"]);
    let text = forkd.ok(&["tree"]);
    let drawn: Vec<&str> =
        text.lines().skip(1).map(|line| line.split("  ").next().unwrap().trim_end()).collect();
    // The source was put back to its branch: that is where it comes from now.
    assert_eq!(drawn[..2], ["t", "└─ b"], "{text}");
    assert_eq!(drawn.len(), 5, "{text}");
    assert!(text.contains("reaches "), "{text}");
    let nodes = forkd.json(&["tree"]);
    let node = |name: &str| {
        let all = nodes.as_array().unwrap();
        all.iter().find(|node| node["name"] == name).unwrap_or_else(|| panic!("{name}: {nodes}"))
    };
    assert_eq!((&node(&child)["parent"], &node("b")["kind"]), (&"b".into(), &"snapshot".into()));
    assert_eq!((&node(id)["parent"], &node(id)["depth"]), (&"b".into(), &2.into()));
    let part = forkd.ok(&["tree", "b", "-q"]);
    assert!(part.lines().next() == Some("b") && part.contains(&child), "{part}");
    let (errors, _) = forkd.refused(&["tree", "no-such-name"]);
    assert!(errors.contains("no-such-name") && errors.contains("hint:"), "{errors}");
}

fn told_by_the_daemon(forkd: &Forkd, id: &str) {
    let operation = forkd.ok(&["operations", "-q"]).lines().next().unwrap().to_owned();
    assert!(forkd.ok(&["operation", "info", &operation]).contains(&operation));
    forkd.ok(&["-q", "operation", "wait", &operation]);
    forkd.refused(&["operation", "cancel", &operation]);
    forkd.ok(&["snapshots", "-q"]);
    assert_eq!(forkd.json(&["version"])["daemon"]["api"], "v1");
    let mut events = forkd
        .command(&["events", "--after", "0", "--sandbox", id])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(events.stdout.take().unwrap()).lines();
    let lost = lines.next().unwrap().unwrap();
    assert!(lost.contains("lost"), "{lost}");
    // Of the name that was not resolved.
    let refused = lines.find(|line| line.as_ref().unwrap().contains("sandbox.refused")).unwrap();
    assert!(refused.unwrap().contains(id));
    drop(lines);
    // Its reader is gone, which it notices with the next event.
    forkd.ok(&["rm", id]);
    assert_eq!(end_of(&mut events), Some(0));
    let script = forkd.ok(&["completions", "bash"]);
    assert!(script.contains("complete") && script.contains("rollback"), "{script}");
}

/// The routes that the daemon has answered, by its own count.
fn asked(forkd: &Forkd) -> BTreeSet<String> {
    forkd.ok(&["metrics"]);
    let samples = forkd.json(&["metrics", "forkd_requests_total"]);
    let labels = samples.as_array().unwrap().iter().map(|sample| &sample["labels"]);
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    labels.map(|labels| format!("{} {}", text(&labels["method"]), text(&labels["route"]))).collect()
}

/// The routes of the interface.
fn routes() -> BTreeSet<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../openapi/v1.json");
    let document: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let paths = document["paths"].as_object().unwrap().iter();
    paths
        .flat_map(|(path, methods)| {
            let methods = methods.as_object().unwrap().keys();
            methods.map(move |method| format!("{} {path}", method.to_uppercase()))
        })
        .collect()
}
