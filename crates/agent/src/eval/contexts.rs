//! Which interpreters there are: one that is always there, and those that the host has made. They
//! are in guest memory, so every child has them, with what runs in them.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use forkd_protocol::{CONTEXTS_MAX, EvalContext, Reply, code};

use super::service::{EvalService, Job, unknown};
use crate::active::Refusal;
use crate::process::Processes;
use crate::sync::lock;

/// The name of the one that is always there.
const DEFAULT: &str = "default";

/// All interpreters.
pub(crate) struct Contexts {
    processes: Arc<Processes>,
    /// How often this machine has taken a new identity.
    renewals: Arc<AtomicU64>,
    default: Arc<EvalService>,
    made: Mutex<Made>,
}

#[derive(Default)]
struct Made {
    /// How many there ever were.
    count: u64,
    /// The oldest first.
    open: Vec<(EvalContext, Arc<EvalService>)>,
}

impl Contexts {
    pub(crate) fn new(processes: Arc<Processes>) -> std::io::Result<Self> {
        let renewals = Arc::default();
        let default = EvalService::new(Arc::clone(&processes), Arc::clone(&renewals), None)?;
        Ok(Self { processes, renewals, default, made: Mutex::default() })
    }

    /// The machine has a new identity. What the interpreters' random generators hold, others have
    /// too.
    pub(crate) fn machine_was_renewed(&self) {
        self.renewals.fetch_add(1, Ordering::Relaxed);
    }

    /// Queues code for an interpreter.
    pub(crate) fn submit(&self, context: Option<&str>, job: Job) -> Result<(), Refusal> {
        self.find(context.unwrap_or(DEFAULT))?.submit(job)
    }

    /// Makes one.
    pub(crate) fn make(&self, cwd: Option<String>) -> Result<Reply, Refusal> {
        let directory = cwd.as_ref().map(PathBuf::from);
        if let Some(directory) = directory.as_ref().filter(|it| !it.is_absolute() || !it.is_dir()) {
            let message = format!("`{}` is not the path of a directory", directory.display());
            return Err(Refusal::new(code::BAD_REQUEST, message));
        }
        let mut made = lock(&self.made);
        if made.open.len() + 1 >= CONTEXTS_MAX {
            let message = format!("there are {CONTEXTS_MAX} contexts: remove one");
            return Err(Refusal::new(code::BUSY, message));
        }
        let (processes, renewals) = (Arc::clone(&self.processes), Arc::clone(&self.renewals));
        let service = EvalService::new(processes, renewals, directory)
            .map_err(|error| Refusal::new(code::EVAL_FAILED, error.to_string()))?;
        made.count += 1;
        let id = format!("context{}", made.count);
        let context = EvalContext { id, cwd: cwd.unwrap_or_default() };
        made.open.push((context.clone(), service));
        Ok(Reply::Contexts { contexts: vec![context] })
    }

    /// All of them.
    pub(crate) fn list(&self) -> Reply {
        let made = lock(&self.made);
        let default = EvalContext { id: DEFAULT.to_owned(), cwd: String::new() };
        let others = made.open.iter().map(|(context, _)| context.clone());
        Reply::Contexts { contexts: std::iter::once(default).chain(others).collect() }
    }

    /// Ends one, which may begin anew.
    pub(crate) fn end(&self, context: &str, restart: bool) -> Result<Reply, Refusal> {
        if !restart && context == DEFAULT {
            let message = "the default context cannot be removed; it can be restarted";
            return Err(Refusal::new(code::BAD_REQUEST, message));
        }
        let service = self.find(context)?;
        if restart {
            service.restart();
        } else {
            service.close();
            lock(&self.made).open.retain(|(it, _)| it.id != context);
        }
        Ok(Reply::Done {})
    }

    fn find(&self, context: &str) -> Result<Arc<EvalService>, Refusal> {
        if context == DEFAULT {
            return Ok(Arc::clone(&self.default));
        }
        let made = lock(&self.made);
        let found = made.open.iter().find(|(it, _)| it.id == context);
        found.map(|(_, service)| Arc::clone(service)).ok_or_else(unknown)
    }
}
