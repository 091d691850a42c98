//! What is shown to people while something takes long: on a terminal only, gone when it is over.

use std::future::Future;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::console::manner;
use crate::console::report;

/// What takes less is not worth a line that comes and goes.
const SOON: Duration = Duration::from_millis(300);

/// A step of which nothing is known but its name.
const PLAIN: &str = "{spinner} {msg} ({elapsed})";

const TICK: Duration = Duration::from_millis(100);

/// Transfers of less have no bar.
const BAR_BYTES_MIN: u64 = 1 << 20;

/// A line with a step's name that turns while the step lasts; no more than a remark for each step
/// where nobody looks at a terminal.
pub(crate) struct Steps {
    bar: Option<ProgressBar>,
}

impl Steps {
    /// Begins with the name of the whole.
    pub(crate) fn of(whole: &str) -> Self {
        if !manner::shows_progress() {
            return Self { bar: None };
        }
        let bar = ProgressBar::new_spinner();
        // Without the style the line is merely plainer.
        if let Ok(style) = ProgressStyle::with_template(PLAIN) {
            bar.set_style(style);
        }
        bar.set_message(report::printable_line(whole));
        bar.enable_steady_tick(TICK);
        Self { bar: Some(bar) }
    }

    pub(crate) fn show(&self, name: &str) {
        let name = report::printable_line(name);
        match &self.bar {
            Some(bar) => bar.set_message(name),
            None => report::remark(&format!("  {name}")),
        }
    }

    /// How much of the step is done, if that is known.
    pub(crate) fn parts(&self, parts: Option<(u64, u64)>) {
        let Some(bar) = &self.bar else { return };
        let template = match parts {
            Some((done, total)) => {
                bar.set_length(total);
                bar.set_position(done);
                "{spinner} {msg} {wide_bar} {pos}/{len} ({elapsed})"
            }
            None => PLAIN,
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Waits for `work` and says what is done meanwhile, if it takes longer than a moment.
pub(crate) async fn during<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::pin!(work);
    if manner::shows_progress() {
        if let Ok(done) = tokio::time::timeout(SOON, &mut work).await {
            return done;
        }
        let _steps = Steps::of(what);
        return work.await;
    }
    work.await
}

/// How far a transfer has come.
pub(crate) struct Bar(Option<ProgressBar>);

impl Bar {
    /// For so many bytes; none for what is over at once.
    pub(crate) fn of_bytes(name: &str, total: u64) -> Self {
        if total < BAR_BYTES_MIN || !manner::shows_progress() {
            return Self(None);
        }
        let bar = ProgressBar::new(total);
        let template =
            "{msg} {wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_message(report::printable_line(name));
        Self(Some(bar))
    }

    /// So much is done, in all.
    pub(crate) fn at(&self, done: u64) {
        if let Some(bar) = &self.0 {
            bar.set_position(done);
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}
