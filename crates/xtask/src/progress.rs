//! How verbs talk: one line per step on standard error, with a spinner while it runs.
//!
//! On a terminal a running step shows its elapsed time and latest output line; elsewhere (CI) a
//! step prints one line when it starts and one when it ends.

use std::io::IsTerminal;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

/// The spinners of all steps: several may run at once.
static BARS: LazyLock<MultiProgress> = LazyLock::new(MultiProgress::new);

/// Prints one line of talk to standard error.
#[expect(clippy::print_stderr, reason = "the one place where xtask talks to its user")]
pub(crate) fn say(line: &str) {
    BARS.suspend(|| eprintln!("{line}"));
}

/// A step in progress. Dropping it without [`Step::done`] erases the spinner.
pub(crate) struct Step {
    bar: Option<ProgressBar>,
    name: String,
    started: Instant,
}

impl Step {
    /// Announces a step.
    pub(crate) fn start(name: &str) -> Self {
        let started = Instant::now();
        if !std::io::stderr().is_terminal() {
            say(&format!("{name} ..."));
            return Self { bar: None, name: name.to_owned(), started };
        }
        let bar = BARS.add(ProgressBar::new_spinner());
        if let Ok(style) = ProgressStyle::with_template("{spinner} {prefix} {elapsed} {wide_msg}") {
            bar.set_style(style);
        }
        bar.set_prefix(name.to_owned());
        bar.enable_steady_tick(Duration::from_millis(120));
        Self { bar: Some(bar), name: name.to_owned(), started }
    }

    /// Shows what the step is at now; terminals only.
    pub(crate) fn detail(&self, text: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(text.to_owned());
        }
    }

    /// Ends the step with its result, for example a size or a version.
    pub(crate) fn done(self, result: &str) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        let seconds = self.started.elapsed().as_secs_f64();
        say(&format!("{}: {result} ({seconds:.1} s)", self.name));
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// A byte count for people.
pub(crate) fn mebibytes(bytes: u64) -> String {
    let tenths = bytes.saturating_mul(10) / (1024 * 1024);
    format!("{}.{} MiB", tenths / 10, tenths % 10)
}
