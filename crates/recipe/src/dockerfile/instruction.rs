//! From instructions to steps, one after the other.

use std::collections::{BTreeMap, BTreeSet};

use super::flags;
use super::lines::Line;
use super::options::{Arguments, StartFrom};
use super::variables::expand;
use crate::problem::{Refusal, refuse};
use crate::{Base, Command, Copy, Problem, Recipe, Run, Start, Step, StepAt};

/// What a file has said so far.
pub(super) struct Reader<'a> {
    given: &'a Arguments,
    declared: BTreeSet<String>,
    base: Option<Base>,
    steps: Vec<StepAt>,
    /// Of `ARG`. What is declared before `FROM` counts there only.
    arguments: BTreeMap<String, String>,
    env: BTreeMap<String, String>,
    entrypoint: Option<(usize, Command)>,
    command: Option<(usize, Command)>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(given: &'a Arguments) -> Self {
        Self {
            given,
            declared: BTreeSet::new(),
            base: None,
            steps: Vec::new(),
            arguments: BTreeMap::new(),
            env: BTreeMap::new(),
            entrypoint: None,
            command: None,
        }
    }

    pub(super) fn read(&mut self, line: &Line) -> Result<(), Problem> {
        let step = self.step(line).map_err(|(what, remedy)| {
            Problem::new(line.number, format!("{}: {what}", line.name), remedy)
        })?;
        if let Some(Step::Env(variables)) = &step {
            self.env.extend(variables.clone());
        }
        self.steps.extend(step.map(|step| StepAt { line: line.number, step }));
        Ok(())
    }

    /// The step of an instruction, if it is one.
    fn step(&mut self, line: &Line) -> Result<Option<Step>, Refusal> {
        if self.base.is_none() && !matches!(line.name.as_str(), "FROM" | "ARG") {
            return refuse("it comes before FROM", "begin with FROM");
        }
        let rest = line.rest.as_str();
        match line.name.as_str() {
            "FROM" => self.from(rest).map(|()| None),
            "ARG" => self.argument(rest).map(|()| None),
            "RUN" => self.run(rest).map(Some),
            "COPY" => self.copy(rest).map(Some),
            "ENV" => self.variables(rest).map(Some),
            "WORKDIR" => Ok(Some(Step::Workdir(self.one_word(rest)?))),
            "USER" => Ok(Some(Step::User(self.one_word(rest)?))),
            "CMD" => {
                self.command = Some((line.number, program(rest)?));
                Ok(None)
            }
            "ENTRYPOINT" => {
                self.entrypoint = Some((line.number, program(rest)?));
                Ok(None)
            }
            "LABEL" | "EXPOSE" | "MAINTAINER" | "STOPSIGNAL" => Ok(None),
            "ADD" => refuse("it is not supported", "use COPY, and RUN to fetch or unpack"),
            "SHELL" => {
                refuse("it is not supported", "use the JSON form: RUN [\"bash\", \"-c\", ...]")
            }
            "VOLUME" => refuse("it is not supported", "remove it: the whole disk is branched"),
            "HEALTHCHECK" => refuse("it is not supported", "use `ready` in a forkd.toml"),
            "ONBUILD" => refuse("it is not supported", "write its instruction where it is needed"),
            _ => refuse("there is no such instruction", "look at how it is spelled"),
        }
    }

    fn from(&mut self, rest: &str) -> Result<(), Refusal> {
        if self.base.is_some() {
            return refuse("a second stage is not supported", "build it as a template of its own");
        }
        let (flags, rest) = flags::split(rest);
        if !flags.iter().all(|flag| *flag == ("platform", "linux/amd64")) {
            return refuse("its flags are not supported", "remove them: images are linux/amd64");
        }
        let words = shown(expand(rest, &self.arguments))?;
        let mut words = words.split_whitespace();
        let (reference, more) = (words.next(), words.next());
        let Some(reference) = reference else {
            return refuse("it names no image", "write FROM IMAGE");
        };
        if more.is_some() {
            return refuse("names of stages are not supported", "remove what follows the image");
        }
        self.base =
            Some(Base::Image { reference: reference.to_owned(), mem_size_mib: None, vcpus: None });
        self.arguments.clear();
        Ok(())
    }

    fn argument(&mut self, rest: &str) -> Result<(), Refusal> {
        for word in self.words(rest)? {
            let (name, default) = match word.split_once('=') {
                Some((name, default)) => (name, Some(default.to_owned())),
                None => (word.as_str(), None),
            };
            check_name(name)?;
            self.declared.insert(name.to_owned());
            if let Some(value) = self.given.get(name).cloned().or(default) {
                self.arguments.insert(name.to_owned(), value);
            }
        }
        Ok(())
    }

    fn run(&self, rest: &str) -> Result<Step, Refusal> {
        let (flags, rest) = flags::split(rest);
        if let Some((name, _)) = flags.first() {
            return refuse(
                format!("--{name} is not supported"),
                "remove it: steps are branches, \
                and what a step has fetched stays in the cache",
            );
        }
        let mut arguments = self.arguments.clone();
        // A variable of the image covers an argument of the same name.
        arguments.retain(|name, _| !self.env.contains_key(name));
        Ok(Step::Run(Run { command: program(rest)?, arguments }))
    }

    fn copy(&self, rest: &str) -> Result<Step, Refusal> {
        let rest = shown(expand(rest, &self.values()))?;
        let (flags, rest) = flags::split(&rest);
        let (mut owner, mut mode) = (None, None);
        for (name, value) in flags {
            match name {
                "chown" => owner = Some(value.to_owned()),
                "chmod" => mode = Some(mode_of(value)?),
                "from" => return refuse("--from is not supported", "copy from the context"),
                // It concerns the layers of an image, of which there are none here.
                "link" => {}
                other => return refuse(format!("--{other} is not supported"), "remove it"),
            }
        }
        let mut sources = match rest.starts_with('[') {
            true => json_words(rest)?,
            false => shown(shell_words::split(rest).map_err(|error| error.to_string()))?,
        };
        if sources.iter().any(|source| source.starts_with("<<")) {
            return refuse("here-documents are not supported", "put the text into a file");
        }
        let to = sources.pop().filter(|_| !sources.is_empty());
        let Some(to) = to else {
            return refuse("it needs a source and a destination", "write COPY SOURCE DESTINATION");
        };
        Ok(Step::Copy(Copy { sources, to, owner, mode }))
    }

    fn variables(&self, rest: &str) -> Result<Step, Refusal> {
        let first = rest.split_whitespace().next().unwrap_or_default();
        // The old form: a name, and all that follows it.
        if !first.contains('=') {
            let value = rest.get(first.len()..).unwrap_or_default().trim();
            check_name(first)?;
            if value.is_empty() {
                return refuse(format!("`{first}` has no value"), "write NAME=VALUE");
            }
            let value = shown(expand(value, &self.values()))?;
            return Ok(Step::Env([(first.to_owned(), value)].into()));
        }
        let mut variables = BTreeMap::new();
        for word in self.words(rest)? {
            let Some((name, value)) = word.split_once('=') else {
                return refuse(format!("`{word}` has no value"), "write NAME=VALUE");
            };
            check_name(name)?;
            variables.insert(name.to_owned(), value.to_owned());
        }
        Ok(Step::Env(variables))
    }

    fn one_word(&self, rest: &str) -> Result<String, Refusal> {
        let mut words = self.words(rest)?;
        match (words.pop().filter(|word| !word.is_empty()), words.is_empty()) {
            (Some(word), true) => Ok(word),
            _ => refuse("it needs one word", "put quotation marks around it if it has spaces"),
        }
    }

    /// Words with their variables put in.
    fn words(&self, rest: &str) -> Result<Vec<String>, Refusal> {
        let text = shown(expand(rest, &self.values()))?;
        shown(shell_words::split(&text).map_err(|error| error.to_string()))
    }

    fn values(&self) -> BTreeMap<String, String> {
        let mut values = self.arguments.clone();
        values.extend(self.env.clone());
        values
    }

    /// The recipe, when the file is over.
    pub(super) fn finish(mut self, start: StartFrom) -> Result<Recipe, Problem> {
        let Some(base) = self.base else {
            return Err(Problem::new(1, "there is no FROM", "begin with FROM IMAGE"));
        };
        if let Some(name) = self.given.keys().find(|name| !self.declared.contains(*name)) {
            let what = format!("no ARG declares `{name}`");
            return Err(Problem::new(1, what, format!("add ARG {name}, or do not set it")));
        }
        if start == StartFrom::Command {
            let Some((line, command)) = joined(self.entrypoint, self.command) else {
                let remedy = "add CMD, or do not ask to start it";
                return Err(Problem::new(1, "there is no CMD or ENTRYPOINT to start", remedy));
            };
            let step = Step::Start(Start { command, ready: None });
            self.steps.push(StepAt { line, step });
        }
        Ok(Recipe { base, steps: self.steps })
    }
}

/// A command is the arguments of an entrypoint; a shell takes none.
fn joined(
    entrypoint: Option<(usize, Command)>,
    command: Option<(usize, Command)>,
) -> Option<(usize, Command)> {
    match (entrypoint, command) {
        (Some((line, Command::Args(mut args))), Some((_, command))) => {
            args.extend(command.args());
            Some((line, Command::Args(args)))
        }
        (Some(entrypoint), _) => Some(entrypoint),
        (None, command) => command,
    }
}

fn program(rest: &str) -> Result<Command, Refusal> {
    if rest.is_empty() {
        return refuse("it names no program", "write a command");
    }
    if rest.contains("<<") && rest.split("<<").nth(1).is_some_and(begins_here_document) {
        return refuse("here-documents are not supported", "put the text into a file");
    }
    // As in Docker, what only looks like JSON is a line for the shell.
    match rest.starts_with('[').then(|| serde_json::from_str::<Vec<String>>(rest)) {
        Some(Ok(args)) if args.first().is_none_or(String::is_empty) => {
            refuse("it names no program", "write [\"PROGRAM\", \"ARGUMENT\"]")
        }
        Some(Ok(args)) => Ok(Command::Args(args)),
        _ => Ok(Command::Shell(rest.to_owned())),
    }
}

fn begins_here_document(after: &str) -> bool {
    let after = after.trim_start_matches('-').trim_start_matches(['"', '\'']);
    after.starts_with(|letter: char| letter.is_ascii_alphabetic() || letter == '_')
}

fn json_words(text: &str) -> Result<Vec<String>, Refusal> {
    serde_json::from_str(text)
        .or_else(|error| refuse(format!("its JSON is wrong: {error}"), "write [\"a\", \"b\"]"))
}

fn mode_of(text: &str) -> Result<u32, Refusal> {
    match Copy::mode_of(text) {
        Some(mode) => Ok(mode),
        None => refuse(format!("`{text}` is no mode"), "write octal digits, such as 0755"),
    }
}

fn check_name(name: &str) -> Result<(), Refusal> {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    if name.is_empty() || !name.chars().all(is_part) {
        return refuse(format!("`{name}` is no name of a variable"), "use letters and digits");
    }
    Ok(())
}

/// A problem whose remedy is the same everywhere.
fn shown<T>(result: Result<T, String>) -> Result<T, Refusal> {
    result.or_else(|what| refuse(what, "close quotation marks and braces; use simple variables"))
}
