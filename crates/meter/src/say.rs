//! What the meter says: lines of JSON.

use std::io::Write as _;

use serde::Serialize;

/// Prints a message as one line of output.
pub(crate) fn say(message: &impl Serialize) -> Result<(), String> {
    let line = forkd_meter_protocol::to_line(message).map_err(|error| error.to_string())?;
    say_line(&line)
}

/// Prints one line of output.
pub(crate) fn say_line(line: &str) -> Result<(), String> {
    writeln!(std::io::stdout(), "{line}").map_err(|error| format!("print: {error}"))
}
