//! Goal: whoever takes the image `node` or `python-numpy` can do with it what they take it for, and
//! what they have at work goes on in a branch.
//!
//! Method: npm makes a package and installs it, and a server of Node answers its clients; numpy
//! computes with arrays that were there before the branch. The images are large and are built by
//! hand, so this does not run with the others. Breaks when a program is missing, cannot run in a
//! guest, or loses its state in a child.

use serde_json::Value;

use crate::forkd::Forkd;
use crate::processes::wait_until;

/// Makes a package, installs it into a program from a repository of git, and says what it says.
const PACKAGE: &str = r#"
set -e
mkdir -p /srv/greeting && cd /srv/greeting && npm init -y > /srv/init
echo 'module.exports = () => "hello from npm"' > index.js && npm pack --silent > /srv/packed
git init -q -b main /srv/work && cd /srv/work && npm init -y > /srv/init
git add . && git -c user.name=a -c user.email=a@example.com commit -qm one
git clone -q /srv/work /srv/app && cd /srv/app
npm install --offline --no-audit --no-fund --silent /srv/greeting/greeting-1.0.0.tgz
node --eval 'console.log(require("greeting")())'
"#;

/// Counts its visitors.
const SERVER: &str = "let n = 0; \
    require('http').createServer((_, answer) => answer.end(`visit ${++n}`)).listen(3000)";

/// By curl, and by Node.
const CLIENTS: [&str; 2] = [
    "curl -sS http://127.0.0.1:3000/",
    "node -e \"fetch('http://127.0.0.1:3000/').then((it) => it.text()).then(console.log)\"",
];

/// A sandbox of the image.
fn sandbox(forkd: &Forkd, image: &str) -> String {
    forkd.ok(&["template", "build", image, "--tag", "t"]);
    forkd.json(&["fork", "t"])[0]["id"].as_str().unwrap().to_owned()
}

fn branch(forkd: &Forkd, sandbox: &str) -> [String; 2] {
    let branch: Value = forkd.json(&["branch", sandbox, "-n", "2"]);
    [0, 1].map(|at| branch["children"][at]["sandbox"]["id"].as_str().unwrap().to_owned())
}

#[test]
#[ignore = "needs the image node: cargo run -p xtask -- images node"]
fn npm_installs_a_package_and_a_server_of_node_goes_on_in_each_child() {
    let forkd = Forkd::new();
    let source = sandbox(&forkd, "node");
    let run = |sandbox: &str, script: &str| {
        forkd.ok(&["exec", "--timeout-secs", "300", sandbox, "--", "sh", "-c", script])
    };
    assert_eq!(run(&source, PACKAGE), "hello from npm");
    forkd.ok(&["process", "start", &source, "--", "node", "-e", SERVER]);
    wait_until("the server listens", || {
        forkd.json(&["ports", &source]).as_array().unwrap().iter().any(|port| port["port"] == 3000)
    });
    assert_eq!(run(&source, CLIENTS[0]), "visit 1");
    for child in branch(&forkd, &source) {
        let said = CLIENTS.map(|client| run(&child, client));
        assert_eq!(said, ["visit 2", "visit 3"], "{child} has what its source had");
    }
    assert_eq!(run(&source, CLIENTS[0]), "visit 2");
}

#[test]
#[ignore = "needs the image python-numpy: cargo run -p xtask -- images python-numpy"]
fn numpy_computes_in_each_child_with_the_arrays_of_its_source() {
    let forkd = Forkd::new();
    let source = sandbox(&forkd, "python-numpy");
    let eval = |sandbox: &str, code: &str| forkd.ok(&["eval", sandbox, code]);
    eval(
        &source,
        "import numpy as np; a = np.arange(250_000.0).reshape(500, 500) % 7 + np.eye(500)",
    );
    // Large enough for the threads of the library to share the work.
    let product = "float((a @ a.T).trace() - (a * a).sum())";
    assert_eq!(eval(&source, product), "0.0");
    let children = branch(&forkd, &source);
    for child in &children {
        assert_eq!(
            eval(child, "a.shape, float(a[499, 499])"),
            eval(&source, "a.shape, float(a[499, 499])")
        );
        assert_eq!(eval(child, product), "0.0");
        eval(child, "b = np.linalg.solve(a, np.ones(500)); assert np.allclose(a @ b, 1)");
    }
    let random = children.each_ref().map(|child| eval(child, "np.random.random()"));
    assert_ne!(random[0], random[1], "each child has randomness of its own");
    let pip = "python3 -m venv --system-site-packages /srv/venv && \
        /srv/venv/bin/pip --version && /srv/venv/bin/python -c 'import numpy; print(\"numpy\")'";
    let said = forkd.ok(&["exec", "--timeout-secs", "300", &source, "--", "sh", "-c", pip]);
    assert!(said.starts_with("pip ") && said.ends_with("numpy"), "{said}");
}
