//! The agent's few words: to the kernel's log as PID 1, otherwise to standard error.

use std::fs::OpenOptions;
use std::io::Write;

/// Says something that a person should look at.
pub(crate) fn failure(text: &str) {
    say(3, text);
}

/// Says something that helps to follow what happened.
pub(crate) fn note(text: &str) {
    say(6, text);
}

fn say(level: u8, text: &str) {
    if std::process::id() == 1
        && let Ok(mut kernel_log) = OpenOptions::new().write(true).open("/dev/kmsg")
    {
        // The log is best effort: without it the agent still serves.
        writeln!(kernel_log, "<{level}>forkd-agent: {text}").ok();
        return;
    }
    writeln!(std::io::stderr(), "forkd-agent: {text}").ok();
}
