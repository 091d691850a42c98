//! What a build tells while it runs: remarks for people, or lines of JSON for a program.
//!
//! ```text
//! {"event":"step","number":1,"of":2,"status":"running","line":2,"step":"run true",...}
//! {"event":"step","number":1,"of":2,"status":"done",...}
//! {"event":"built","tag":"app","steps":[...],"ms":1234.5}
//! {"event":"failed","message":"exit code 7; it wrote:\nso","exit_code":7,"output":"so\n",...}
//! ```
//!
//! Guarantees: the last line is `built` or `failed`, unless a signal ends the build.

use forkd_client::ClientError;
use serde::Serialize;

use super::built::{Built, Done};
use super::failure::{ProgramFailed, StepFailed};
use super::plan::Planned;
use crate::console::output::{self, Reader, milliseconds};
use crate::console::report::{self, Hinted, remark};

/// Who is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Audience {
    /// A line on standard error for each step that is done.
    People,
    /// A line of JSON on standard output for everything that happens.
    Program,
}

/// How far a step is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Status {
    Running,
    Cached,
    Done,
}

#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Event<'a> {
    Step(StepEvent<'a>),
    Built(&'a Built),
    Failed(Failed<'a>),
}

#[derive(Debug, Serialize)]
struct StepEvent<'a> {
    number: usize,
    of: usize,
    status: Status,
    line: usize,
    step: &'a str,
    ms: f64,
    snapshot_tag: Option<&'a str>,
}

/// The step and its program are there if it was one of them that failed.
#[derive(Debug, Serialize)]
struct Failed<'a> {
    message: String,
    hint: Option<String>,
    /// Of the daemon's catalogue, if the daemon refused.
    code: Option<&'a str>,
    number: Option<usize>,
    line: Option<usize>,
    step: Option<&'a str>,
    exit_code: Option<i32>,
    output: Option<&'a str>,
    sandbox_id: Option<&'a str>,
}

impl Audience {
    /// A step begins, if it is one that takes time.
    pub(super) fn begins(self, index: usize, all: &[Planned]) -> anyhow::Result<()> {
        let step = &all[index];
        if self == Self::People || !step.step.changes_sandbox() {
            return Ok(());
        }
        let shown = step.step.shown();
        print(&Event::Step(StepEvent {
            number: index + 1,
            of: all.len(),
            status: Status::Running,
            line: step.line,
            step: &shown,
            ms: 0.0,
            snapshot_tag: None,
        }))
    }

    /// A step is done, or it was there.
    pub(super) fn is_done(self, index: usize, of: usize, done: &Done) -> anyhow::Result<()> {
        let (number, step) = (index + 1, done.step.as_str());
        if self == Self::People {
            let how = match (done.cached, &done.snapshot_tag) {
                (true, _) => "cached".to_owned(),
                (false, Some(_)) => milliseconds(done.ms),
                (false, None) => "set".to_owned(),
            };
            remark(&report::printable_line(&format!("{number}/{of} {step}: {how}")));
            return Ok(());
        }
        print(&Event::Step(StepEvent {
            number,
            of,
            status: if done.cached { Status::Cached } else { Status::Done },
            line: done.line,
            step,
            ms: done.ms,
            snapshot_tag: done.snapshot_tag.as_deref(),
        }))
    }
}

/// Prints the end of a build that has succeeded.
pub(crate) fn print_built(built: &Built) -> anyhow::Result<()> {
    print(&Event::Built(built))
}

/// Prints the end of a build that has failed. People are told apart from this.
pub(crate) fn print_failed(error: &anyhow::Error) -> anyhow::Result<()> {
    print(&Event::Failed(Failed::of(error)))
}

/// A build that nobody follows any more ends.
fn print(event: &Event<'_>) -> anyhow::Result<()> {
    let line = format!("{}\n", serde_json::to_string(event)?);
    match output::flowing(line.as_bytes())? {
        Reader::There => Ok(()),
        Reader::Gone => Err(Hinted::new(
            "nobody reads the events of the build any more",
            "build without --events if nobody shall read them",
        )
        .into()),
    }
}

impl<'a> Failed<'a> {
    fn of(error: &'a anyhow::Error) -> Self {
        let step = error.downcast_ref::<StepFailed>();
        let program = error.chain().find_map(|cause| cause.downcast_ref::<ProgramFailed>());
        let code = error.chain().find_map(|cause| match cause.downcast_ref::<ClientError>()? {
            ClientError::Api(failure) => Some(failure.code.as_str()),
            _ => None,
        });
        // The step has its own fields.
        let mut causes: Vec<String> =
            error.chain().skip(usize::from(step.is_some())).map(ToString::to_string).collect();
        causes.dedup();
        Self {
            message: causes.join(": "),
            hint: report::hint_of(error),
            code,
            number: step.map(|step| step.number),
            line: step.map(|step| step.line),
            step: step.map(|step| step.step.as_str()),
            exit_code: program.and_then(|program| program.exit_code),
            output: program.map(|program| program.output.as_str()),
            sandbox_id: step.and_then(|step| step.sandbox.as_deref()),
        }
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;
    use forkd_client::ApiFailure;
    use serde_json::{Value, json};

    use super::*;

    fn failed(error: &anyhow::Error) -> Value {
        serde_json::to_value(Event::Failed(Failed::of(error))).unwrap()
    }

    fn in_step(source: anyhow::Error) -> anyhow::Error {
        let sandbox = Some("sb-1".to_owned());
        StepFailed { number: 2, line: 7, step: "run x".into(), sandbox, source }.into()
    }

    #[test]
    fn a_program_that_fails_has_its_step_its_output_and_its_sandbox() {
        let program = ProgramFailed::new("exit code 7", Some(7), "so\n".into());
        let program = anyhow::Error::new(program).context("change the owner");
        let told = json!({
            "event": "failed",
            "message": "change the owner: exit code 7; it wrote:\nso",
            "hint": "build with --keep to look around in the sandbox of the step",
            "code": null, "number": 2, "line": 7, "step": "run x",
            "exit_code": 7, "output": "so\n", "sandbox_id": "sb-1",
        });
        assert_eq!(failed(&in_step(program)), told);
    }

    #[test]
    fn what_the_daemon_refuses_has_its_code() {
        let failure = ApiFailure {
            status: 409,
            code: "tag_taken".to_owned(),
            message: "the tag `py` is taken".to_owned(),
            hint: "choose another".to_owned(),
            reason: None,
        };
        let error = Err::<(), _>(ClientError::Api(failure)).context("name it").unwrap_err();
        let told = failed(&error);
        assert_eq!(told["code"], "tag_taken");
        assert_eq!(told["message"], "name it: the tag `py` is taken");
        assert_eq!(told["hint"], "choose another");
        assert_eq!((&told["step"], &told["output"]), (&Value::Null, &Value::Null));
    }
}
