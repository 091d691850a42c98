//! Python code in an interpreter of the guest, with its output and what it shows as they come.
//!
//! Guarantees: what a value's forms may take is bounded, whatever the guest sends; a slow reader
//! holds up the code, not the daemon. Dropping a [`Cell`] before its end interrupts the code.
//!
//! Does not do: hold output.

use std::time::Duration;

use forkd_protocol::{CONTEXTS_MAX, EvalContext, Reply, Request, code};

use super::call::{Call, Deadline};
use super::parts::{Displays, EvalPart, Parts};
use super::{GuestAgent, GuestError};

/// Of what an agent says about an interpreter.
const TEXT_CHARS_MAX: usize = 4096;
/// Time that the agent has for making, listing and ending interpreters.
const CONTEXT_DEADLINE: Duration = Duration::from_secs(30);

/// Code, and where it runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CellRequest {
    /// Statements, at last perhaps an expression.
    pub code: String,
    /// The interpreter; that which is always there when absent.
    pub context: Option<String>,
    /// Its environment while this code runs.
    pub env: Vec<(String, String)>,
}

/// What happens while code runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CellEvent {
    /// Its turn has come.
    Started {
        /// How much code its interpreter has run, with this.
        execution_count: u64,
    },
    /// It has printed.
    Stdout(Vec<u8>),
    /// It has printed to standard error.
    Stderr(Vec<u8>),
    /// It shows a value, in all forms that this has.
    Displayed(Vec<EvalPart>),
    /// It has ended: the last one.
    Ended(CellEnd),
}

/// How code ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CellEnd {
    /// `repr` of the last expression, unless that is `None`.
    pub result: Option<String>,
    /// All forms of the last expression's value, unless that is `None`.
    pub value: Vec<EvalPart>,
    /// Why it did not end well.
    pub error: Option<CellError>,
    /// Its time was over.
    pub timed_out: bool,
    /// The interpreter ended, now or since the last code: its variables are gone.
    pub state_lost: bool,
}

/// Why code did not end well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CellError {
    /// The exception's type, and what it says; none if the interpreter itself has ended.
    pub exception: Option<(String, String)>,
    /// The traceback, or what happened to the interpreter.
    pub text: String,
}

/// An interpreter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Context {
    /// Its name in this guest, and in every child.
    pub id: String,
    /// Where it began, if not in the default directory.
    pub cwd: Option<String>,
}

/// Code that runs.
pub struct Cell {
    call: Call,
    /// Forms of the last expression's value.
    value: Parts,
    /// What is being shown.
    displays: Displays,
}

impl Cell {
    /// Code that was asked for.
    pub(super) fn following(call: Call) -> Self {
        Self { call, value: Parts::default(), displays: Displays::default() }
    }

    /// What happens next. Safe to cancel.
    ///
    /// # Errors
    /// Any [`GuestError`]; after one, or after [`CellEvent::Ended`], nothing follows.
    pub async fn next(&mut self) -> Result<CellEvent, GuestError> {
        loop {
            match self.call.next().await? {
                Reply::CellStarted { execution_count } => {
                    return Ok(CellEvent::Started { execution_count });
                }
                Reply::Stdout { data } => return Ok(CellEvent::Stdout(data)),
                Reply::Stderr { data } => return Ok(CellEvent::Stderr(data)),
                Reply::EvalPart { mime, data, more, display: 0, last: _ } => {
                    self.value.add(mime, data, more)?;
                }
                Reply::EvalPart { mime, data, more, display, last } => {
                    if let Some(forms) = self.displays.add((mime, data, more), display, last)? {
                        return Ok(CellEvent::Displayed(forms));
                    }
                }
                Reply::EvalDone { result, error, exception, timed_out, state_lost } => {
                    self.call.finish();
                    let value = std::mem::take(&mut self.value).whole();
                    let error = error.map(|text| CellError {
                        exception: exception.map(|it| (shorten(&it.name), shorten(&it.value))),
                        text,
                    });
                    let end = CellEnd { result, value, error, timed_out, state_lost };
                    return Ok(CellEvent::Ended(end));
                }
                other => return Err(self.call.unexpected(&other)),
            }
        }
    }
}

fn shorten(text: &str) -> String {
    text.chars().take(TEXT_CHARS_MAX).collect()
}

impl GuestAgent {
    /// Runs code, for as long as it takes.
    ///
    /// # Errors
    /// See [`GuestError`]; what the code does wrong is no error.
    pub fn run_cell(&self, request: CellRequest) -> Result<Cell, GuestError> {
        let CellRequest { code, context, env } = request;
        self.check_contexts()?;
        let mut call = self.call("eval", Deadline::never())?;
        call.begin(&Request::Eval {
            code,
            timeout_ms: None,
            output_credit: call.window(),
            parts: true,
            displays: true,
            context,
            env,
        })?;
        Ok(Cell::following(call))
    }

    /// Makes an interpreter besides that which is always there, which begins in the directory
    /// `cwd`.
    ///
    /// # Errors
    /// See [`GuestError`]; there are at most 16.
    pub async fn make_context(&self, cwd: Option<String>) -> Result<Context, GuestError> {
        let made = self.ask_contexts("make context", Request::MakeContext { cwd }).await?;
        let none = || GuestError::unexpected("make context", "number of contexts");
        made.into_iter().next().ok_or_else(none)
    }

    /// All interpreters, the oldest first.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn contexts(&self) -> Result<Vec<Context>, GuestError> {
        self.ask_contexts("list contexts", Request::ListContexts {}).await
    }

    /// Ends an interpreter with what runs in it. With `restart` it is there again, without
    /// variables; only this can be done with the one that is always there.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn end_context(&self, context: &str, restart: bool) -> Result<(), GuestError> {
        self.check_contexts()?;
        let mut call = self.call("end context", Deadline::after(CONTEXT_DEADLINE))?;
        call.begin(&Request::EndContext { context: context.to_owned(), restart })?;
        match call.next().await? {
            Reply::Done {} => {
                call.finish();
                Ok(())
            }
            other => Err(call.unexpected(&other)),
        }
    }

    async fn ask_contexts(
        &self,
        what: &'static str,
        request: Request,
    ) -> Result<Vec<Context>, GuestError> {
        self.check_contexts()?;
        let mut call = self.call(what, Deadline::after(CONTEXT_DEADLINE))?;
        call.begin(&request)?;
        match call.next().await? {
            Reply::Contexts { contexts } if contexts.len() <= CONTEXTS_MAX => {
                call.finish();
                Ok(contexts.into_iter().map(context_of).collect())
            }
            other => Err(call.unexpected(&other)),
        }
    }

    /// Refuses to ask an agent for another interpreter that would take the one that it has.
    fn check_contexts(&self) -> Result<(), GuestError> {
        match self.has_contexts() {
            true => Ok(()),
            false => Err(GuestError::remote(code::UNSUPPORTED, "it has one interpreter only")),
        }
    }
}

fn context_of(said: EvalContext) -> Context {
    let EvalContext { id, cwd } = said;
    Context { id: shorten(&id), cwd: Some(shorten(&cwd)).filter(|cwd| !cwd.is_empty()) }
}
