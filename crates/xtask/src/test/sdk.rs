//! Test programs of the SDKs: pytest and Node's runner, told as Rust's test harness tells.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::thread;

use anyhow::Context;

use super::pytest;
use super::tier::Harness;
use crate::conformance::Language;
use crate::node::Node;
use crate::python::Python;
use crate::workspace::Workspace;

/// The tests of the Python SDK that need no daemon. Tells whether the program ended well.
pub(super) fn python(workspace: &Workspace, harness: &mut Harness) -> anyhow::Result<bool> {
    let tests = Python::prepare(workspace)?.tests();
    follow(Language::Python, tests, |line| harness.line(line).map(drop))
}

/// The same of the TypeScript SDK.
pub(super) fn typescript(workspace: &Workspace, harness: &mut Harness) -> anyhow::Result<bool> {
    let tests = Node::prepare(workspace)?.pure_tests()?;
    follow(Language::TypeScript, tests, |line| harness.line(line).map(drop))
}

/// All SDKs against real daemons, at the same time: mostly they wait for guests.
pub(super) fn conformance(workspace: &Workspace, harness: &mut Harness) -> anyhow::Result<bool> {
    let mut players = Vec::new();
    for language in Language::ALL {
        let player = language.player(workspace, &[])?;
        players.push(thread::spawn(move || {
            let mut lines = Vec::new();
            let ended = follow(language, player, |line| {
                lines.push(line.to_vec());
                Ok(())
            });
            ended.map(|well| (well, lines))
        }));
    }
    let mut well = true;
    for player in players {
        let ended = player.join().map_err(|_| anyhow::anyhow!("a thread died"))?;
        let (ended_well, lines) = ended?;
        well &= ended_well;
        for line in lines {
            harness.line(&line)?;
        }
    }
    Ok(well)
}

/// Runs a test program and takes its lines. Tells whether it ended well.
fn follow(
    language: Language,
    mut tests: Command,
    mut take: impl FnMut(&[u8]) -> anyhow::Result<()>,
) -> anyhow::Result<bool> {
    let mut child = tests
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("start the tests of the {language:?} SDK"))?;
    let stdout = child.stdout.take().context("the tests' output is piped")?;
    for line in BufReader::new(stdout).split(b'\n') {
        let line = line.context("read the tests' output")?;
        let text = String::from_utf8_lossy(&line);
        let mut told = match language {
            Language::Python => pytest::translated(&text),
            Language::TypeScript => text.into_owned(),
        };
        told.push('\n');
        take(told.as_bytes())?;
    }
    Ok(child.wait()?.success())
}
