//! Goal: the published Python client, package `forkd` 0.5.3, works unchanged for every one of its
//! methods, and goes on after the daemon was killed and started again.
//!
//! Method: the blocks of the guide are run as they stand there, with the package from PyPI in an
//! environment of its own. Breaks when a route, a field or a status that the client relies on
//! changes, or the guide is wrong.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::forkd::Forkd;

const PACKAGE: &str = "forkd==0.5.3";

fn guide() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/guides/published-client.md");
    std::fs::read_to_string(path).unwrap()
}

/// The code block of a language.
fn block(text: &str, language: &str) -> String {
    let (_, rest) = text.split_once(&format!("```{language}\n")).unwrap();
    rest.split_once("```").unwrap().0.to_owned()
}

fn checked(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    output
}

/// A Python with the package.
fn python(home: &Path) -> PathBuf {
    let place = home.join("venv");
    checked(Command::new("python3").args(["-m", "venv"]).arg(&place));
    checked(Command::new(place.join("bin/pip")).args(["install", "--quiet", PACKAGE]));
    place.join("bin/python")
}

#[test]
fn the_guides_session_runs_with_the_package_as_published() {
    let forkd = Forkd::new();
    let guide = guide();
    let python = python(forkd.home());
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("127.0.0.1:{port}");
    let script = forkd.home().join("session.sh");
    let session = forkd.home().join("session.py");
    std::fs::write(&script, block(&guide, "sh")).unwrap();
    std::fs::write(&session, block(&guide, "python")).unwrap();
    let run = |program: &str, arguments: &[&str], file: &Path| {
        // To files: a daemon that goes on in the background would hold a pipe.
        let [said, erred] = ["said", "erred"].map(|name| forkd.home().join(name));
        let create = |path| std::fs::File::create(path).unwrap();
        let status = forkd
            .within(Command::new(program))
            .args(arguments)
            .arg(file)
            .env("LISTEN", &address)
            .stdout(create(&said))
            .stderr(create(&erred))
            .status()
            .unwrap();
        let [said, erred] = [said, erred].map(|path| std::fs::read_to_string(path).unwrap());
        assert!(status.success(), "{program}: {said}{erred}");
        said
    };
    run("sh", &["-e"], &script);
    let url = format!("FORKD_URL=http://{address}");
    let text = run("env", &[&url, python.to_str().unwrap()], &session);
    assert!(text.trim_end().ends_with("done"), "{text}");
}
