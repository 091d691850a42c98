//! Running other programs: their output goes to a log file, its tail is shown when they fail.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use crate::progress::Step;

/// Lines of a failed command's log that are shown.
const TAIL_LINES: usize = 20;

/// Runs `command`, its output in `log`; the step shows the latest line.
///
/// Fails when the program is missing or exits with an error; the message then has the end of
/// the output and the path of the log.
pub(crate) fn run_logged(step: &Step, mut command: Command, log: &Path) -> anyhow::Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let mut file = create(log)?;
    let (reader, writer) = std::io::pipe().context("create a pipe")?;
    command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
    let mut child = command.spawn().with_context(|| format!("start {program}"))?;
    // The command holds the pipe's write ends; the reader sees the end only once they are closed.
    drop(command);
    let mut reader = BufReader::new(reader);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line)? > 0 {
        file.write_all(&line)?;
        let text = String::from_utf8_lossy(&line);
        step.detail(text.trim_end().rsplit('\r').next().unwrap_or_default());
        line.clear();
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("{program} failed ({status}); {}", tail(log)?);
    }
    Ok(())
}

/// The standard output of a long command as text; its error output goes to `log`, and the step
/// shows how far it is.
pub(crate) fn output_logged(
    step: &Step,
    mut command: Command,
    log: &Path,
) -> anyhow::Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let file = create(log)?;
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(file);
    let mut child = command.spawn().with_context(|| format!("start {program}"))?;
    let stdout = child.stdout.take().context("the output is piped")?;
    let mut text = String::new();
    for (number, line) in BufReader::new(stdout).lines().enumerate() {
        text += &line.with_context(|| format!("read what {program} prints"))?;
        text.push('\n');
        step.detail(&format!("{number}"));
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("{program} failed ({status}); {}", tail(log)?);
    }
    Ok(text)
}

fn create(log: &Path) -> anyhow::Result<File> {
    if let Some(folder) = log.parent() {
        fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    }
    File::create(log).with_context(|| format!("create {}", log.display()))
}

/// The standard output of a short command as text.
///
/// Fails when the program is missing or exits with an error; the message has its error output.
pub(crate) fn output(command: &mut Command) -> anyhow::Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output =
        command.stdin(Stdio::null()).output().with_context(|| format!("start {program}"))?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        bail!("{program} failed ({}): {}", output.status, error.trim());
    }
    String::from_utf8(output.stdout).with_context(|| format!("{program} printed invalid UTF-8"))
}

/// Runs a command that talks to the user itself.
pub(crate) fn run_visible(command: &mut Command) -> anyhow::Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command.status().with_context(|| format!("start {program}"))?;
    if !status.success() {
        bail!("{program} failed ({status})");
    }
    Ok(())
}

fn tail(log: &Path) -> anyhow::Result<String> {
    let bytes = fs::read(log).with_context(|| format!("read {}", log.display()))?;
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    let from = lines.len().saturating_sub(TAIL_LINES);
    Ok(format!("last lines of {}:\n{}", log.display(), lines[from..].join("\n")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_shows_the_end_of_the_output_and_the_log() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("deep/er/x.log");
        let mut command = Command::new("sh");
        command.args(["-c", "seq 1 100; echo the reason >&2; exit 3"]);
        let error = run_logged(&Step::start("test"), command, &log).unwrap_err().to_string();
        assert!(error.contains("the reason"), "{error}");
        assert!(error.contains("x.log"), "{error}");
        assert!(!error.contains("\n12\n"), "only the end is shown: {error}");
        assert!(fs::read_to_string(&log).unwrap().contains("\n12\n"), "the log has everything");
    }

    #[test]
    fn output_of_a_failing_command_is_an_error() {
        assert!(output(Command::new("sh").args(["-c", "echo half; exit 1"])).is_err());
    }
}
