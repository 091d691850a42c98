//! Goal: over the network a daemon answers only who has one of its tokens, encrypted if it has a
//! certificate; it does not start with access that is half configured; and its audit log says who
//! asked for what.
//!
//! Method: a daemon on a loopback port with token file, certificate and audit log, and the command
//! line as its client with and without what is demanded. Breaks when a listener is open without its
//! gate, or the gate is not the one that was configured.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use forkd_testkit::SOON;

use crate::forkd::Forkd;

const TOKEN: &str = "c2VjcmV0LXNlY3JldC1zZWNyZXQ";

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        self.0.wait().unwrap();
    }
}

fn serve(forkd: &Forkd, options: &[&str]) -> Server {
    let log = fs::File::create(forkd.home().join("serve.log")).unwrap();
    let mut command = forkd.command(&["serve"]);
    Server(command.args(options).stderr(log).stdout(Stdio::null()).spawn().unwrap())
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn a_daemon_on_the_network_answers_only_with_a_token() {
    let forkd = Forkd::new();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let certificate = forkd.private_file("cert.pem", &made.cert.pem());
    let key = forkd.private_file("key.pem", &made.signing_key.serialize_pem());
    let tokens = forkd.private_file("tokens", &format!("ci {TOKEN}\n"));
    let audit = forkd.home().join("audit.jsonl");
    let port = free_port();
    let address = format!("0.0.0.0:{port}");
    let options = [
        ["--listen", &address],
        ["--token-file", &tokens],
        ["--tls-cert", &certificate],
        ["--tls-key", &key],
        ["--audit-log", audit.to_str().unwrap()],
    ];
    let _server = serve(&forkd, options.as_flattened());
    let url = format!("https://localhost:{port}");
    let ask = |token: Option<&str>, url: &str| {
        let mut command = forkd.command(&["--url", url, "--ca-cert", &certificate, "snapshots"]);
        command.env_remove("FORKD_TOKEN");
        if let Some(token) = token {
            command.env("FORKD_TOKEN", token);
        }
        let output = command.output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let begun = Instant::now();
    while !ask(Some(TOKEN), &url).0 {
        let log = fs::read_to_string(forkd.home().join("serve.log")).unwrap();
        assert!(begun.elapsed() < SOON, "{:?}: {log}", ask(Some(TOKEN), &url));
    }
    for token in [None, Some("c2VjcmV0LXNlY3JldC1zZWNyZXq")] {
        let (done, error) = ask(token, &url);
        assert!(!done && error.contains("token") && error.contains("hint:"), "{error}");
    }
    assert!(!ask(Some(TOKEN), &url.replace("https", "http")).0, "without TLS");
    // The owner needs no token on the socket.
    forkd.ok(&["snapshots"]);
    let uid = rustix::process::geteuid().as_raw();
    let read = || fs::read_to_string(&audit).unwrap();
    // A line may come after its answer.
    while !read().contains(&format!("\"uid\":{uid}")) {
        assert!(begun.elapsed() < SOON, "{}", read());
        std::thread::sleep(Duration::from_millis(20));
    }
    let log = read();
    let lines: Vec<serde_json::Value> =
        log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let has = |wanted: &dyn Fn(&serde_json::Value) -> bool| lines.iter().any(wanted);
    assert!(has(&|line| line["who"]["token"] == "ci" && line["status"] == 200), "{log}");
    assert!(has(&|line| line["code"] == "unauthorized" && line["status"] == 401), "{log}");
    assert!(has(&|line| line["who"]["uid"] == uid), "{log}");
    assert!(!log.contains(TOKEN), "{log}");
}

#[test]
fn access_that_is_half_configured_is_refused_with_the_remedy() {
    let forkd = Forkd::new();
    let tokens = forkd.private_file("tokens", &format!("{TOKEN}\n"));
    let short = forkd.private_file("short", "ci abc\n");
    let public = forkd.private_file("public", &format!("{TOKEN}\n"));
    fs::set_permissions(&public, fs::Permissions::from_mode(0o644)).unwrap();
    let cases: [(&[&str], &str); 7] = [
        (&["--listen", "0.0.0.0:1"], "--token-file"),
        (&["--listen", "0.0.0.0:1", "--insecure-no-token"], "--token-file"),
        (&["--listen", "127.0.0.1:1"], "--insecure-no-token"),
        (&["--token-file", &tokens], "--listen"),
        (&["--listen", "127.0.0.1:1", "--token-file", &short], "line 1"),
        (&["--listen", "127.0.0.1:1", "--token-file", &public], "chmod 600"),
        (&["--listen", "127.0.0.1:1", "--tls-cert", &tokens], "--tls-key"),
    ];
    for (options, words) in cases {
        let mut arguments = vec!["serve"];
        arguments.extend(options);
        let (error, _) = forkd.refused(&arguments);
        assert!(error.contains(words), "{options:?}: {error}");
    }
}
