//! What a launcher leaves out: for tests, which show that each part of a program's confinement is
//! needed. No daemon asks for it.

use std::io;

use forkd_sys::shim_wire;
use serde::Deserialize;

use crate::job::{Job, Step};

/// The option of QEMU that sets a filter of its own.
const SANDBOX_OPTION: &str = "-sandbox";

/// What is left out.
#[derive(Debug, Default)]
pub(crate) struct Without {
    steps: Vec<Step>,
    filters: Vec<Filter>,
}

/// A filter of system calls, which the program sets for itself because its job says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Filter {
    /// That of the preload library.
    AllowList,
    /// QEMU's own.
    QemuSandbox,
}

impl Without {
    /// What arguments name, each after `--without`.
    pub(crate) fn parse(arguments: impl Iterator<Item = String>) -> io::Result<Self> {
        let words: Vec<String> = arguments.collect();
        let mut without = Self::default();
        for pair in words.chunks(2) {
            let [option, name] = pair else { return Err(unknown()) };
            if option != "--without" {
                return Err(unknown());
            }
            match serde_json::from_value(name.as_str().into()) {
                Ok(step) => without.steps.push(step),
                Err(_) => without.filters.push(serde_json::from_value(name.as_str().into())?),
            }
        }
        Ok(without)
    }

    /// Whether a step is left out.
    pub(crate) fn step(&self, step: Step) -> bool {
        // Without a namespace for it, the host itself would get another name.
        let needs_namespace = step == Step::HostName && self.steps.contains(&Step::Namespaces);
        needs_namespace || self.steps.contains(&step)
    }

    /// Takes the filters that are left out from a job.
    pub(crate) fn take_from(&self, job: &mut Job) {
        if self.filters.contains(&Filter::AllowList) {
            job.environment.retain(|(name, _)| name != shim_wire::FILTER_VARIABLE);
        }
        let option = job.arguments.iter().position(|argument| argument == SANDBOX_OPTION);
        if let Some(at) = option
            && self.filters.contains(&Filter::QemuSandbox)
        {
            // With its value.
            job.arguments.drain(at..job.arguments.len().min(at + 2));
        }
    }
}

fn unknown() -> io::Error {
    io::Error::other("the only option is `--without STEP`")
}
