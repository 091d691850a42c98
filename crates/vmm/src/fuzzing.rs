//! A conversation with a VMM that says anything, for `fuzz/`. In no program that is shipped.

use std::os::unix::net::UnixStream;
use std::time::Duration;

use qapi::qmp::QmpCommand;

use crate::VmmError;
use crate::qemu::Monitor;

/// Speaks QMP on `stream` as a branch does: questions, a command that is loaded and fired, one that
/// is loaded and taken back, and late replies. Returns how many commands were answered, be it by a
/// refusal.
#[must_use]
pub fn converse(stream: UnixStream, deadline: Duration) -> usize {
    let Ok(mut monitor) = Monitor::greet(stream, deadline) else { return 0 };
    // The handshake.
    let mut answered = 1;
    answered += ask(&mut monitor, &qapi::qmp::query_status {}, deadline);
    answered += ask(&mut monitor, &qapi::qmp::stop {}, deadline);
    if monitor.load(&qapi::qmp::cont {}).is_ok() {
        answered += usize::from(monitor.unload(deadline).is_ok());
    }
    answered += ask(&mut monitor, &qapi::qmp::cont {}, deadline);
    // Then nothing is owed, unless the VMM owes it for ever.
    if matches!(monitor.collect_replies(deadline), Ok(Some(_))) {
        answered += 1;
    }
    let _transitions = monitor.transitions();
    answered
}

fn ask<C: QmpCommand>(monitor: &mut Monitor, command: &C, deadline: Duration) -> usize {
    let answer = monitor.execute(command, deadline);
    usize::from(matches!(answer, Ok(_) | Err(VmmError::Refused { .. })))
}
