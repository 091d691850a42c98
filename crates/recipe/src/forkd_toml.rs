//! `forkd.toml`: a recipe in forkd's own words.

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::Spanned;

use crate::problem::{Refusal, refuse};
use crate::step::READY_SECS;
use crate::{Base, Check, Command, Copy, Problem, Ready, Recipe, Run, Start, Step, StepAt};

const KINDS: &str = "run, copy, env, workdir, user or start";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    from: Option<Spanned<String>>,
    from_image: Option<Spanned<String>>,
    mem_size_mib: Option<Spanned<u64>>,
    vcpus: Option<Spanned<u32>>,
    #[serde(default)]
    step: Vec<Spanned<Entry>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    run: Option<Words>,
    copy: Option<OneOrMore>,
    to: Option<String>,
    owner: Option<String>,
    mode: Option<String>,
    env: Option<BTreeMap<String, String>>,
    workdir: Option<String>,
    user: Option<String>,
    start: Option<Words>,
    ready: Option<ReadyEntry>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Words {
    Line(String),
    Args(Vec<String>),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    One(String),
    More(Vec<String>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReadyEntry {
    port: Option<u16>,
    command: Option<Words>,
    timeout_secs: Option<u64>,
}

impl From<Words> for Command {
    fn from(words: Words) -> Self {
        match words {
            Words::Line(line) => Self::Shell(line),
            Words::Args(args) => Self::Args(args),
        }
    }
}

/// Reads the text of a `forkd.toml`.
///
/// # Errors
/// The first thing in it that is not understood.
pub fn parse(text: &str) -> Result<Recipe, Problem> {
    let file: File = toml::from_str(text).map_err(|error| {
        let line = error.span().map_or(1, |span| line_of(text, span.start));
        Problem::new(line, error.message(), "see docs/guides/builds.md for what can be written")
    })?;
    let base = base(text, &file)?;
    let mut steps = Vec::new();
    for entry in file.step {
        let line = line_of(text, entry.span().start);
        let step =
            step(entry.into_inner()).map_err(|(what, remedy)| Problem::new(line, what, remedy))?;
        steps.push(StepAt { line, step });
    }
    Ok(Recipe { base, steps })
}

fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes().iter().take(at).filter(|byte| **byte == b'\n').count() + 1
}

fn base(text: &str, file: &File) -> Result<Base, Problem> {
    let sizes = file.mem_size_mib.as_ref().map(Spanned::span);
    let sizes = sizes.or(file.vcpus.as_ref().map(Spanned::span));
    match (&file.from, &file.from_image) {
        (Some(name), None) => match sizes {
            None => Ok(Base::Name(name.get_ref().clone())),
            Some(span) => Err(Problem::new(
                line_of(text, span.start),
                "a snapshot has its memory and processors already",
                "remove the size, or use `from_image`",
            )),
        },
        (None, Some(reference)) => Ok(Base::Image {
            reference: reference.get_ref().clone(),
            mem_size_mib: file.mem_size_mib.as_ref().map(|size| *size.get_ref()),
            vcpus: file.vcpus.as_ref().map(|count| *count.get_ref()),
        }),
        (Some(_), Some(second)) => Err(Problem::new(
            line_of(text, second.span().start),
            "`from` and `from_image` are both there",
            "keep one of them",
        )),
        (None, None) => Err(Problem::new(
            1,
            "it does not say what to begin with",
            "add from = \"SNAPSHOT\" or from_image = \"python:3.12-slim\"",
        )),
    }
}

fn step(entry: Entry) -> Result<Step, Refusal> {
    let is_copy = entry.copy.is_some();
    if !is_copy && (entry.to.is_some() || entry.owner.is_some() || entry.mode.is_some()) {
        return refuse("`to`, `owner` and `mode` belong to `copy`", "add `copy`, or remove them");
    }
    if entry.start.is_none() && entry.ready.is_some() {
        return refuse("`ready` belongs to `start`", "write it in the step that has `start`");
    }
    let mut steps = Vec::new();
    if let Some(words) = entry.run {
        let command = program(words)?;
        steps.push(Step::Run(Run { command, arguments: BTreeMap::new() }));
    }
    if let Some(sources) = entry.copy {
        let sources = match sources {
            OneOrMore::One(source) => vec![source],
            OneOrMore::More(sources) => sources,
        };
        steps.push(Step::Copy(copy(sources, entry.to, entry.owner, entry.mode.as_deref())?));
    }
    steps.extend(entry.env.map(Step::Env));
    steps.extend(entry.workdir.map(Step::Workdir));
    steps.extend(entry.user.map(Step::User));
    if let Some(words) = entry.start {
        let ready = entry.ready.map(ready).transpose()?;
        steps.push(Step::Start(Start { command: program(words)?, ready }));
    }
    match (steps.pop(), steps.is_empty()) {
        (Some(step), true) => Ok(step),
        (Some(_), false) => {
            refuse("the step does several things", "write a [[step]] for each of them")
        }
        (None, _) => refuse("the step does nothing", format!("give it {KINDS}")),
    }
}

fn program(words: Words) -> Result<Command, Refusal> {
    match Command::from(words) {
        Command::Args(args) if args.first().is_none_or(String::is_empty) => {
            refuse("the program has no name", "write [\"PROGRAM\", \"ARGUMENT\"]")
        }
        Command::Shell(line) if line.trim().is_empty() => {
            refuse("the command is empty", "write the line that the shell shall run")
        }
        command => Ok(command),
    }
}

fn copy(
    sources: Vec<String>,
    to: Option<String>,
    owner: Option<String>,
    mode: Option<&str>,
) -> Result<Copy, Refusal> {
    let Some(to) = to.filter(|to| !to.is_empty()) else {
        return refuse("`copy` does not say where to", "add to = \"/app/\"");
    };
    if sources.is_empty() {
        return refuse("`copy` names no file", "name files or directories of the context");
    }
    let mode = mode.map(mode_of).transpose()?;
    Ok(Copy { sources, to, owner, mode })
}

fn mode_of(text: &str) -> Result<u32, Refusal> {
    match Copy::mode_of(text) {
        Some(mode) => Ok(mode),
        None => refuse(format!("`{text}` is no mode"), "write octal digits, such as \"0755\""),
    }
}

fn ready(entry: ReadyEntry) -> Result<Ready, Refusal> {
    let check = match (entry.port, entry.command) {
        (Some(port), None) if port != 0 => Check::Port(port),
        (None, Some(words)) => Check::Command(program(words)?),
        _ => {
            let remedy = "write ready = { port = 8000 } or ready = { command = \"...\" }";
            return refuse("`ready` needs a port or a command, not both", remedy);
        }
    };
    let timeout_secs = entry.timeout_secs.unwrap_or(READY_SECS);
    if !(1..=3600).contains(&timeout_secs) {
        return refuse(format!("{timeout_secs} is no time limit"), "choose 1 to 3600 seconds");
    }
    Ok(Ready { check, timeout_secs })
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = r#"
from = "python"

[[step]]
run = "pip install x"
[[step]]
run = ["true", "a b"]
[[step]]
copy = ["app", "a.txt"]
to = "/srv/"
mode = "0755"
[[step]]
env = { A = "1" }
[[step]]
workdir = "/srv"
[[step]]
user = "me"
[[step]]
start = "serve"
ready = { port = 8000, timeout_secs = 5 }
"#;

    #[test]
    fn every_kind_of_step_is_read_with_its_line() {
        let recipe = parse(WHOLE).unwrap();
        assert_eq!(recipe.base, Base::Name("python".into()));
        let lines: Vec<usize> = recipe.steps.iter().map(|step| step.line).collect();
        assert_eq!(lines, [4, 6, 8, 12, 14, 16, 18]);
        let shown: Vec<String> = recipe.steps.iter().map(|step| step.step.shown()).collect();
        let expected = [
            "run pip install x",
            "run true 'a b'",
            "copy app a.txt /srv/",
            "env A",
            "workdir /srv",
            "user me",
            "start serve",
        ];
        assert_eq!(shown, expected);
        let ready = Ready { check: Check::Port(8000), timeout_secs: 5 };
        let Step::Start(start) = &recipe.steps[6].step else { panic!("no start") };
        assert_eq!(start.ready.as_ref(), Some(&ready));
    }

    #[test]
    fn an_image_has_sizes_and_a_snapshot_has_none() {
        let recipe = parse("from_image = \"python:3\"\nmem_size_mib = 1024\n").unwrap();
        let Base::Image { mem_size_mib, vcpus, .. } = recipe.base else { panic!("no image") };
        assert_eq!((mem_size_mib, vcpus), (Some(1024), None));
        assert_eq!(parse("from = \"a\"\nvcpus = 2\n").unwrap_err().line, 2);
    }

    #[test]
    fn what_is_not_understood_is_refused_with_its_line() {
        for (text, line) in [
            ("", 1),
            ("from = \"a\"\nfrom_image = \"b\"", 2),
            ("from = \"a\"\nrun = \"x\"", 2),
            ("from = \"a\"\n[[step]]", 2),
            ("from = \"a\"\n[[step]]\nrun = \"x\"\nuser = \"y\"", 2),
            ("from = \"a\"\n[[step]]\nrun = []", 2),
            ("from = \"a\"\n[[step]]\nrun = \" \"", 2),
            ("from = \"a\"\n[[step]]\ncopy = \"x\"", 2),
            ("from = \"a\"\n[[step]]\nrun = \"x\"\nto = \"/y\"", 2),
            ("from = \"a\"\n[[step]]\ncopy = \"x\"\nto = \"/y\"\nmode = \"9\"", 2),
            ("from = \"a\"\n[[step]]\nstart = \"x\"\nready = {}", 2),
            ("from = \"a\"\n[[step]]\nstart = \"x\"\nready = { port = 1, timeout_secs = 0 }", 2),
            ("from = \"a\"\n\n[[step]]\nmake = \"x\"", 4),
        ] {
            assert_eq!(parse(text).unwrap_err().line, line, "{text}");
        }
    }
}
