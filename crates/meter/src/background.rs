//! Going on after the command that started us has ended.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

/// The word after the request that makes us be the program rather than start it.
pub(crate) const FOREGROUND: &str = "--foreground";

/// How the first line begins when the program could not start.
pub(crate) const FAILED: &str = "failed: ";

/// Starts ourselves again with the same request and returns what the new process says when it is
/// ready. It keeps none of our streams, so whoever waits for their end does not wait for it.
pub(crate) fn start(request: &str) -> Result<String, String> {
    let program = std::env::current_exe().map_err(|error| format!("find ourselves: {error}"))?;
    let mut child = Command::new(program)
        .args([request, FOREGROUND])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("start ourselves: {error}"))?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut line).map_err(|error| error.to_string())?;
    }
    let line = line.trim_end();
    match line.strip_prefix(FAILED) {
        Some(problem) => Err(problem.to_owned()),
        None if line.is_empty() => Err("it ended without a word".to_owned()),
        None => Ok(line.to_owned()),
    }
}
