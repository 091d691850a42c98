//! Python code in the interpreter that is always there, answered as a whole.
//!
//! Guarantees: output and what the code shows are bounded; what shows beyond that is counted.

use std::time::Duration;

use forkd_protocol::Request;

use super::agent::{REPORT_MARGIN, millis};
use super::call::Deadline;
use super::cell::{Cell, CellEvent};
use super::parts::{EvalPart, Shown};
use super::{GuestAgent, GuestError};

/// Python code for the persistent interpreter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EvalRequest {
    /// Statements or an expression.
    pub code: String,
    /// After this time the code is interrupted, then the interpreter killed.
    pub timeout: Duration,
}

/// What Python code gave.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EvalOutput {
    /// `repr` of the last expression, unless that is `None`.
    pub result: Option<String>,
    /// Traceback, or what happened to the interpreter.
    pub error: Option<String>,
    /// All forms that the last expression's value has, [`super::EVAL_PARTS_BYTES_MAX`] in all; the
    /// first is `text/plain`. Empty when the guest agent is older.
    pub parts: Vec<EvalPart>,
    /// What it showed before, each value in all its forms, [`super::DISPLAYS_BYTES_MAX`] in all.
    pub displays: Vec<Vec<EvalPart>>,
    /// How many values had no room among them.
    pub displays_left_out: u32,
    /// What was printed.
    pub stdout: Vec<u8>,
    /// What was printed to standard error.
    pub stderr: Vec<u8>,
    /// Its time was over.
    pub timed_out: bool,
    /// The interpreter ended, now or since the last call: the variables of earlier calls are gone.
    pub state_lost: bool,
}

impl GuestAgent {
    /// Runs Python code in the guest's persistent interpreter.
    ///
    /// # Errors
    /// See [`GuestError`]; an exception in the code is no error.
    pub async fn eval(&self, request: EvalRequest) -> Result<EvalOutput, GuestError> {
        let deadline = Deadline::after(request.timeout.saturating_add(REPORT_MARGIN));
        let mut call = self.call("eval", deadline)?;
        call.begin(&Request::Eval {
            code: request.code,
            timeout_ms: Some(millis(request.timeout)),
            output_credit: call.window(),
            parts: true,
            // An older agent shows by printing.
            displays: self.has_contexts(),
            context: None,
            env: Vec::new(),
        })?;
        let mut output = call.collected();
        let (mut cell, mut shown) = (Cell::following(call), Shown::default());
        loop {
            match cell.next().await? {
                CellEvent::Started { .. } => {}
                CellEvent::Stdout(data) => output.stdout(&data)?,
                CellEvent::Stderr(data) => output.stderr(&data)?,
                CellEvent::Displayed(forms) => shown.add(forms),
                CellEvent::Ended(end) => {
                    let (displays, displays_left_out) = shown.whole();
                    return Ok(EvalOutput {
                        result: end.result,
                        error: end.error.map(|error| error.text),
                        parts: end.value,
                        displays,
                        displays_left_out,
                        stdout: output.stdout,
                        stderr: output.stderr,
                        timed_out: end.timed_out,
                        state_lost: end.state_lost,
                    });
                }
            }
        }
    }
}
