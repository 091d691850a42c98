//! What every measurement has: the machine it is of, its end by a signal, its progress.

use std::io::IsTerminal as _;

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};

/// Resolves when we are told to end.
pub(super) async fn interrupted() -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("watch for SIGTERM")?;
    let mut hangup = signal(SignalKind::hangup()).context("watch for SIGHUP")?;
    tokio::select! {
        result = tokio::signal::ctrl_c() => result.context("watch for SIGINT"),
        _ = terminate.recv() => Ok(()),
        _ = hangup.recv() => Ok(()),
    }
}

/// The machine that was measured.
#[derive(Debug, Serialize)]
pub(super) struct Host {
    cpus: usize,
    cpu_model: Option<String>,
    memory_mib: Option<u64>,
    kernel: String,
}

impl Host {
    pub(super) fn this() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let kib = field(&read("/proc/meminfo"), "MemTotal")
            .and_then(|text| text.trim_end_matches(" kB").parse::<u64>().ok());
        Self {
            cpus: std::thread::available_parallelism().map_or(0, usize::from),
            cpu_model: field(&read("/proc/cpuinfo"), "model name"),
            memory_mib: kib.map(|kib| kib / 1024),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        }
    }
}

/// The first value of that name in a file of lines `name : value`.
pub(super) fn field(text: &str, name: &str) -> Option<String> {
    let pairs = text.lines().filter_map(|line| line.split_once(':'));
    let mut values = pairs.filter(|(key, _)| key.trim() == name);
    values.next().map(|(_, value)| value.trim().to_owned())
}

/// A bar on a terminal, else nothing.
pub(super) struct Progress(Option<ProgressBar>);

impl Progress {
    pub(super) fn new(iterations: u32) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self(None);
        }
        let bar = ProgressBar::new(iterations.into());
        // Without the style the bar is merely plainer.
        if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} ({eta} left)") {
            bar.set_style(style);
        }
        bar.tick();
        Self(Some(bar))
    }

    pub(super) fn advance(&self) {
        if let Some(bar) = &self.0 {
            bar.inc(1);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_of_the_kernels_files_is_found_by_its_whole_name() {
        let text = "processor\t: 0\nmodel name\t: A: B\nmodel\t: 7\n";
        assert_eq!(field(text, "model name").as_deref(), Some("A: B"));
        assert_eq!(field(text, "name"), None);
    }
}
