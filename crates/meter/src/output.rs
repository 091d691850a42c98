//! What the host reads: one line at a time.

use std::io::Write as _;

/// Prints one line of output.
pub(crate) fn say(line: &str) -> Result<(), String> {
    writeln!(std::io::stdout(), "{line}").map_err(|error| format!("print: {error}"))
}
