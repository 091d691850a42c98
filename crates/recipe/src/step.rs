//! A recipe as data. Its JSON is what keys are made of: see [`crate::Key`].

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

/// How long a process may take to become ready, unless the recipe says otherwise.
pub(crate) const READY_SECS: u64 = 60;

/// What is built, from the beginning to the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recipe {
    /// What it begins with.
    pub base: Base,
    /// What is done then, in order.
    pub steps: Vec<StepAt>,
}

/// A step and where it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepAt {
    /// The line, counted from one.
    pub line: usize,
    /// The step.
    pub step: Step,
}

/// What a build begins with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Base {
    /// A snapshot; or an image of forkd, of which a template is made.
    Name(String),
    /// An OCI image.
    Image {
        /// Its reference.
        reference: String,
        /// Guest RAM, if not the usual.
        mem_size_mib: Option<u64>,
        /// Virtual CPUs, if not the usual.
        vcpus: Option<u32>,
    },
}

/// One step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// Runs a program to its end.
    Run(Run),
    /// Copies files of the context.
    Copy(Copy),
    /// Sets variables for later steps.
    Env(BTreeMap<String, String>),
    /// Sets the directory of later steps. It is relative to the one before.
    Workdir(String),
    /// Sets the user of later steps.
    User(String),
    /// Starts a process that goes on.
    Start(Start),
}

/// A program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// A line for `/bin/sh`.
    Shell(String),
    /// Program and arguments.
    Args(Vec<String>),
}

/// A program that a step runs to its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Run {
    /// The program.
    pub command: Command,
    /// Variables of this step alone.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub arguments: BTreeMap<String, String>,
}

/// Files of the context, and where they go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Copy {
    /// Files, directories and patterns in the context.
    pub sources: Vec<String>,
    /// The file; or the directory, if it ends in a slash or a source is a directory.
    pub to: String,
    /// `USER` or `USER:GROUP`.
    pub owner: Option<String>,
    /// Permission bits, if not those in the context.
    pub mode: Option<u32>,
}

impl Copy {
    /// Permission bits, written in octal digits.
    pub(crate) fn mode_of(text: &str) -> Option<u32> {
        u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o7777)
    }
}

/// A process that runs in every child.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Start {
    /// The program.
    pub command: Command,
    /// When it is ready; at once without this.
    pub ready: Option<Ready>,
}

/// When a process is ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Ready {
    /// What tells.
    pub check: Check,
    /// How long that may take, in seconds.
    pub timeout_secs: u64,
}

/// What tells that a process is ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Check {
    /// A port that is listened on.
    Port(u16),
    /// A program that succeeds.
    Command(Command),
}

impl Ready {
    /// How long it may take.
    #[must_use]
    pub const fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout_secs)
    }
}

impl Command {
    /// Program and arguments.
    #[must_use]
    pub fn args(&self) -> Vec<String> {
        match self {
            Self::Shell(line) => ["/bin/sh", "-c", line].map(str::to_owned).into(),
            Self::Args(args) => args.clone(),
        }
    }

    fn shown(&self) -> String {
        match self {
            Self::Shell(line) => line.clone(),
            Self::Args(args) => shell_words::join(args),
        }
    }
}

impl Step {
    /// Whether it changes the sandbox: then its end is a snapshot. The others change only what
    /// later steps are run with.
    #[must_use]
    pub const fn changes_sandbox(&self) -> bool {
        matches!(self, Self::Run(_) | Self::Copy(_) | Self::Start(_))
    }

    /// The step in one line, for people.
    #[must_use]
    pub fn shown(&self) -> String {
        let text = match self {
            Self::Run(run) => format!("run {}", run.command.shown()),
            Self::Copy(copy) => format!("copy {} {}", copy.sources.join(" "), copy.to),
            Self::Env(variables) => {
                let names: Vec<&str> = variables.keys().map(String::as_str).collect();
                format!("env {}", names.join(" "))
            }
            Self::Workdir(path) => format!("workdir {path}"),
            Self::User(user) => format!("user {user}"),
            Self::Start(start) => format!("start {}", start.command.shown()),
        };
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }
}
