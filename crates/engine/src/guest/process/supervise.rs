//! The task that takes what a process writes, for as long as it runs.

use std::sync::Arc;
use std::time::Duration;

use forkd_protocol::Reply;
use tokio::time::Instant;

use super::log::Stream;
use super::process::{Process, ProcessEnd};
use super::split::Splitter;
use crate::guest::call::Call;
use crate::guest::{ExecExit, GuestError};

/// How long the beginning of a character waits for its rest. Bytes that only look like one reach
/// their reader this late.
pub(super) const HOLD: Duration = Duration::from_millis(200);

/// Takes output and gives credit as far as readers permit, until the process ends.
pub(super) async fn supervise(process: Arc<Process>, mut call: Call, hold: Duration) {
    let mut output = Output { stdout: Held::default(), stderr: Held::default(), hold };
    let end = match follow(&process, &mut call, &mut output).await {
        Ok(exit) => ProcessEnd::Exited(exit),
        Err(error) => ProcessEnd::Lost { reason: error.to_string() },
    };
    output.give_up(&process);
    process.finish(end);
}

async fn follow(
    process: &Process,
    call: &mut Call,
    output: &mut Output,
) -> Result<ExecExit, GuestError> {
    loop {
        let hold_until = output.hold_until();
        tokio::select! {
            reply = call.next_on_credit() => match reply? {
                Reply::Stdout { data } => output.take(process, Stream::Stdout, data),
                Reply::Stderr { data } => output.take(process, Stream::Stderr, data),
                Reply::Exited { exit_code, signal, timed_out } => {
                    call.finish();
                    return Ok(ExecExit { exit_code, signal, timed_out });
                }
                other => return Err(call.unexpected(&other)),
            },
            () = process.freed() => {}
            () = tokio::time::sleep_until(hold_until.unwrap_or_else(Instant::now)),
                if hold_until.is_some() => output.give_up_old(process),
        }
        if process.may_go_on() {
            call.give_credit()?;
        }
    }
}

/// Both streams, with what is held back of each.
struct Output {
    stdout: Held,
    stderr: Held,
    hold: Duration,
}

#[derive(Default)]
struct Held {
    splitter: Splitter,
    until: Option<Instant>,
}

impl Output {
    fn take(&mut self, process: &Process, stream: Stream, data: Vec<u8>) {
        let held = match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        };
        process.write(stream, &held.splitter.take(data));
        held.until = held.splitter.holds_back().then(|| Instant::now() + self.hold);
    }

    /// When something has been held back for long enough.
    fn hold_until(&self) -> Option<Instant> {
        self.stdout.until.into_iter().chain(self.stderr.until).min()
    }

    /// Keeps as it is what was held back for long enough.
    fn give_up_old(&mut self, process: &Process) {
        self.give_up_before(process, Instant::now());
    }

    /// Keeps as it is whatever was held back.
    fn give_up(&mut self, process: &Process) {
        self.give_up_before(process, Instant::now() + self.hold);
    }

    fn give_up_before(&mut self, process: &Process, time: Instant) {
        for (stream, held) in
            [(Stream::Stdout, &mut self.stdout), (Stream::Stderr, &mut self.stderr)]
        {
            if held.until.is_some_and(|until| until <= time) {
                process.write(stream, &held.splitter.give_up());
                held.until = None;
            }
        }
    }
}
