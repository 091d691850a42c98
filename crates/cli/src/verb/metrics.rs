//! `forkd metrics`: what the daemon measures.

use serde_json::json;

use crate::console::output;
use crate::daemon::connect;
use crate::options::Global;
use crate::samples::Samples;

/// Print the daemon's metrics, in the Prometheus format
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    forkd metrics\n  \
    forkd metrics forkd_branch_pause_seconds\n  \
    forkd metrics forkd_vmm_memory --json")]
pub(crate) struct Options {
    /// Only metrics whose name starts with this
    #[arg(default_value = "")]
    prefix: String,
}

pub(crate) async fn run(global: &Global, options: Options) -> anyhow::Result<()> {
    let text = connect::client(global).await?.metrics().await?;
    if global.json {
        let samples = Samples::parse(&text);
        let chosen = samples.iter().filter(|sample| sample.name.starts_with(&options.prefix));
        let chosen: Vec<_> = chosen
            .map(|sample| {
                json!({ "name": sample.name, "labels": sample.labels, "value": sample.value })
            })
            .collect();
        return output::json(&chosen);
    }
    let chosen = text.lines().filter(|line| name_of(line).starts_with(&options.prefix));
    chosen.map(|line| format!("{line}\n")).try_for_each(|line| output::bytes(line.as_bytes()))
}

/// The name of the metric that a line is about.
fn name_of(line: &str) -> &str {
    let words = line.strip_prefix("# ").and_then(|rest| rest.split_once(' '));
    words.map_or(line, |(_, rest)| rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remarks_are_about_the_metric_that_they_name() {
        assert!(name_of("# HELP forkd_hot_bytes Bytes").starts_with("forkd_hot_bytes"));
        assert!(name_of("forkd_hot_bytes 7").starts_with("forkd_hot_bytes"));
    }
}
