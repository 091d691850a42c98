//! Test programs of the SDKs: pytest and Node's runner, told as Rust's test harness tells.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::thread;

use anyhow::Context;

use super::harness::Harness;
use super::pytest;
use crate::conformance::Language;
use crate::node::Node;
use crate::python::Python;
use crate::workspace::Workspace;

/// What pytest calls the tests of the recipes.
const RECIPES: &str = "test_recipes";

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

/// All SDKs against real daemons. Two at a time: mostly they wait for guests, and the recipes take
/// as long as the rest of Python.
pub(super) fn conformance(workspace: &Workspace, harness: &mut Harness) -> anyhow::Result<bool> {
    let player = |language: Language, arguments: &[&str]| {
        let arguments: Vec<String> = arguments.iter().map(|&each| each.to_owned()).collect();
        Ok::<_, anyhow::Error>((language, language.player(workspace, &arguments)?))
    };
    let rows = [
        vec![player(Language::Python, &["-k", &format!("not {RECIPES}")])?],
        vec![player(Language::TypeScript, &[])?, player(Language::Python, &["-k", RECIPES])?],
    ];
    let rows = rows.map(|row| thread::spawn(move || play(row)));
    let mut well = true;
    for row in rows {
        let (ended_well, lines) = row.join().map_err(|_| anyhow::anyhow!("a thread died"))??;
        well &= ended_well;
        for line in lines {
            harness.line(&line)?;
        }
    }
    Ok(well)
}

/// Plays one after the other. Tells whether all ended well, and what they said.
fn play(row: Vec<(Language, Command)>) -> anyhow::Result<(bool, Vec<Vec<u8>>)> {
    let (mut well, mut lines) = (true, Vec::new());
    for (language, player) in row {
        well &= follow(language, player, |line| {
            lines.push(line.to_vec());
            Ok(())
        })?;
    }
    Ok((well, lines))
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
