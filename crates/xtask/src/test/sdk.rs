//! Test programs of the SDKs: pytest and Node's runner, told as Rust's test harness tells.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::thread;

use anyhow::Context;

use super::harness::Harness;
use super::pytest;
use crate::conformance::Language;
use crate::generate;
use crate::node::Node;
use crate::python::Python;
use crate::workspace::Workspace;

/// What pytest calls the tests of the recipes.
const RECIPES: &str = "test_recipes";

/// The tests of the Python SDK that need no daemon. Tells whether the program ended well.
pub(super) fn python(workspace: &Workspace, harness: &mut Harness) -> anyhow::Result<bool> {
    let python = Python::prepare(workspace)?;
    harness.begin("Python")?;
    let errors = harness.errors()?;
    let well =
        follow(Language::Python, python.tests(), errors, |line| harness.line(line).map(drop));
    harness.begin("generated files")?;
    let mut check = generate::sdk_check(&python);
    let status = check.stdin(Stdio::null()).stdout(harness.errors()?).stderr(harness.errors()?);
    let is_current = status.status().context("start the generator")?.success();
    let (word, counts) = if is_current { ("ok", "1 passed; 0") } else { ("FAILED", "0 passed; 1") };
    harness.line(format!("test generated::the_sdks_are_current ... {word}\n").as_bytes())?;
    harness.line(format!("test result: {word}. {counts} failed\n").as_bytes())?;
    well
}

/// The same of the TypeScript SDK.
pub(super) fn typescript(workspace: &Workspace, harness: &mut Harness) -> anyhow::Result<bool> {
    let tests = Node::prepare(workspace)?.pure_tests()?;
    harness.begin("TypeScript")?;
    let errors = harness.errors()?;
    follow(Language::TypeScript, tests, errors, |line| harness.line(line).map(drop))
}

/// All SDKs against real daemons. Two at a time: mostly they wait for guests, and the recipes take
/// as long as the rest of Python.
pub(super) fn conformance(workspace: &Workspace, harness: &mut Harness) -> anyhow::Result<bool> {
    let programs = workspace.tested();
    let player = |name: &'static str, language: Language, arguments: &[&str]| {
        let arguments: Vec<String> = arguments.iter().map(|&each| each.to_owned()).collect();
        let command = language.player(workspace, &programs, &arguments)?;
        Ok::<_, anyhow::Error>(Player { name, language, command, errors: harness.errors()? })
    };
    let rows = [
        vec![player("Python", Language::Python, &["-k", &format!("not {RECIPES}")])?],
        vec![
            player("TypeScript", Language::TypeScript, &[])?,
            player("recipes", Language::Python, &["-k", RECIPES])?,
        ],
    ];
    let rows = rows.map(|row| thread::spawn(move || play(row)));
    let mut well = true;
    for row in rows {
        let played = row.join().map_err(|_| anyhow::anyhow!("a thread died"))??;
        for Played { name, ended_well, lines } in played {
            well &= ended_well;
            harness.begin(name)?;
            for line in lines {
                harness.line(&line)?;
            }
        }
    }
    Ok(well)
}

/// What plays with an SDK.
struct Player {
    name: &'static str,
    language: Language,
    command: Command,
    errors: Stdio,
}

/// How it ended, and what it said.
struct Played {
    name: &'static str,
    ended_well: bool,
    lines: Vec<Vec<u8>>,
}

/// Plays one after the other.
fn play(row: Vec<Player>) -> anyhow::Result<Vec<Played>> {
    let play = |Player { name, language, command, errors }| {
        let mut lines = Vec::new();
        let ended_well = follow(language, command, errors, |line| {
            lines.push(line.to_vec());
            Ok(())
        })?;
        Ok(Played { name, ended_well, lines })
    };
    row.into_iter().map(play).collect()
}

/// Runs a test program and takes its lines. Tells whether it ended well.
fn follow(
    language: Language,
    mut tests: Command,
    errors: Stdio,
    mut take: impl FnMut(&[u8]) -> anyhow::Result<()>,
) -> anyhow::Result<bool> {
    let mut child = tests
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(errors)
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
