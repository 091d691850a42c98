//! A look at the daemon as lines of text.

use forkd_api::TtySize;

use super::frame::{Frame, Pauses};
use crate::console::manner::Style;
use crate::console::output::{self, Align, Table};
use crate::standby;

const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Bars in the line of a sandbox.
const BARS_OF_SANDBOX: usize = 12;

/// Bars for all branches.
const BARS_OF_ALL: usize = 40;

/// The lines, as many and as long as `size` has room for; all of them without a size.
pub(super) fn lines(
    frame: &Frame,
    pauses: &Pauses,
    size: Option<TtySize>,
    colour: bool,
) -> Vec<String> {
    let mut lines = head(frame, pauses);
    if size.is_some() {
        lines.insert(
            0,
            format!("forkd {} ({}), q to quit", frame.version.version, accelerator(frame)),
        );
    }
    lines.push(String::new());
    let table = table(frame, pauses);
    match size {
        None => lines.extend(table.lines(colour)),
        Some(TtySize { rows, cols }) => {
            let (rows, cols) = (usize::from(rows), usize::from(cols));
            // A line that is cut must not lose the end of a colour, so such lines have none.
            let fits = table.lines(false).iter().all(|line| line.chars().count() <= cols);
            lines.extend(table.lines(colour && fits));
            let cut = |line: &mut String| {
                if !fits || !line.contains('\x1b') {
                    *line = line.chars().take(cols).collect();
                }
            };
            lines.iter_mut().for_each(cut);
            if lines.len() > rows {
                let hidden = lines.len() - rows + 1;
                lines.truncate(rows.saturating_sub(1));
                let text: String = format!("... and {hidden} more").chars().take(cols).collect();
                lines.push(Style::Dim.paint(&text, colour));
            }
        }
    }
    lines
}

fn accelerator(frame: &Frame) -> &str {
    match frame.version.accelerator.as_str() {
        "" => "unknown",
        known => known,
    }
}

/// What there is of everything.
fn head(frame: &Frame, pauses: &Pauses) -> Vec<String> {
    let memory = |kind| output::size(frame.memory(kind));
    let unread = match frame.count("forkd_vmm_memory_unread", None) {
        0 => String::new(),
        count => format!(", {count} VMMs not measured"),
    };
    vec![
        format!("sandboxes   {}", counts(frame, "forkd_sandboxes", "state")),
        format!("standing by {}", standby::line(&frame.samples)),
        format!("snapshots   {}", counts(frame, "forkd_snapshots", "state")),
        format!("running     {}", counts(frame, "forkd_operations_running", "kind")),
        format!(
            "memory      private {}, shared {}, hot layers {}, on disk {}{unread}",
            memory("private"),
            memory("shared"),
            output::size(frame.count("forkd_hot_bytes", None)),
            output::size(frame.count("forkd_durable_bytes", None)),
        ),
        format!(
            "branches    {} ready, {} failed",
            frame.count("forkd_branches_total", Some(("result", "ready"))),
            frame.count("forkd_branches_total", Some(("result", "failed"))),
        ),
        format!("network     {}", network_line(frame)),
        format!("pauses      {}", pause_line(pauses)),
    ]
}

/// How many there are of each state or kind.
fn counts(frame: &Frame, metric: &str, label: &str) -> String {
    let found = frame.samples.iter().filter(|sample| sample.name == metric);
    let values = found.filter_map(|sample| sample.labels.get(label));
    let counts = values.map(|value| (value, frame.count(metric, Some((label, value)))));
    let words: Vec<String> = counts
        .filter(|(_, count)| *count > 0)
        .map(|(value, count)| format!("{count} {value}"))
        .collect();
    if words.is_empty() { "none".to_owned() } else { words.join(", ") }
}

fn network_line(frame: &Frame) -> String {
    if frame.count("forkd_network_gateway_up", None) == 0 {
        return "the gateway does not answer".to_owned();
    }
    let bytes =
        |direction| frame.count("forkd_network_bytes_total", Some(("direction", direction)));
    format!(
        "{} connections, out {}, in {}, {} refused",
        frame.count("forkd_network_connections", None),
        output::size(bytes("out")),
        output::size(bytes("in")),
        frame.count("forkd_network_flows_total", Some(("outcome", "refused"))),
    )
}

fn pause_line(pauses: &Pauses) -> String {
    let all: Vec<f64> = pauses.all.iter().copied().collect();
    let Some(last) = all.last() else { return "none yet".to_owned() };
    let mut sorted = all.clone();
    sorted.sort_by(f64::total_cmp);
    let longest = sorted[sorted.len() - 1];
    format!(
        "{} last {}, median {}, longest {}",
        sparkline(&all, BARS_OF_ALL),
        output::milliseconds(*last),
        output::milliseconds(sorted[sorted.len() / 2]),
        output::milliseconds(longest),
    )
}

/// A bar for each of the last `count` numbers, the highest for the largest of them.
fn sparkline(numbers: &[f64], count: usize) -> String {
    let shown = &numbers[numbers.len().saturating_sub(count)..];
    let max = shown.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    shown
        .iter()
        .map(|number| {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "between 0 and 7"
            )]
            let height = (number / max * 7.0).round().clamp(0.0, 7.0) as usize;
            BARS[height]
        })
        .collect()
}

fn table(frame: &Frame, pauses: &Pauses) -> Table {
    let mut table = Table::new(&[
        ("SANDBOX", Align::Left),
        ("STATE", Align::Left),
        ("SNAPSHOT", Align::Left),
        ("BRANCHES", Align::Right),
        ("LAST PAUSE", Align::Right),
        ("PAUSES", Align::Left),
        ("AGE", Align::Right),
    ]);
    for sandbox in &frame.sandboxes {
        let own = pauses.of_source(&sandbox.id);
        table.row([
            sandbox.id.clone(),
            sandbox.state.to_string(),
            sandbox.snapshot_tag.clone(),
            sandbox.branch_count.to_string(),
            output::or_dash(own.last().copied().map(output::milliseconds)),
            sparkline(&own, BARS_OF_SANDBOX),
            output::age(sandbox.created_at_unix),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::Samples;
    use forkd_api::{Sandbox, Snapshot, Version};
    use forkd_types::{Accelerator, Isolation};

    fn sandbox(id: &str) -> Sandbox {
        serde_json::from_value(serde_json::json!({
            "id": id, "snapshot_tag": "py", "created_at_unix": 0, "state": "running",
            "branch_count": 2, "hostname": id,
        }))
        .unwrap()
    }

    fn frame(sandboxes: usize) -> Frame {
        let text = "forkd_sandboxes{state=\"running\"} 2\nforkd_sandboxes{state=\"dead\"} 0\n\
            forkd_operations_running{kind=\"publish\"} 1\n\
            forkd_vmm_memory_bytes{kind=\"private\"} 2097152\n\
            forkd_vmm_memory_bytes{kind=\"shared\"} 3145728\n\
            forkd_standby_places 4\nforkd_standby_status{status=\"off\"} 1\n\
            forkd_branches_total{mode=\"live\",result=\"ready\"} 2\n\
            forkd_network_gateway_up 1\nforkd_network_connections 1\n\
            forkd_network_flows_total{outcome=\"refused\"} 3\n\
            forkd_network_bytes_total{direction=\"out\"} 1024\n\
            forkd_network_bytes_total{direction=\"in\"} 2048\n";
        Frame {
            version: Version {
                version: "1.0".into(),
                api: "v1".into(),
                accelerator: Accelerator::Tcg.into(),
                security_boundary: false,
                preview_url: None,
                isolation: Isolation::Full.into(),
            },
            sandboxes: (0..sandboxes).map(|number| sandbox(&format!("sb-{number}"))).collect(),
            samples: Samples::parse(text),
        }
    }

    fn pauses() -> Pauses {
        let branch = |pause_ms| Snapshot {
            branched_from: Some("sb-0".into()),
            pause_ms: Some(pause_ms),
            ..Snapshot::default()
        };
        Pauses::of(&[branch(4.0), branch(1.0)])
    }

    #[test]
    fn a_look_shows_states_memory_branches_and_pauses() {
        let text = lines(&frame(1), &pauses(), None, false).join("\n");
        for part in [
            "sandboxes   2 running\n",
            "standing by 0 of 4; the daemon was started with --standby 0\n",
            "private 2.0 MiB, shared 3.0 MiB",
            "running     1 publish\n",
            "branches    2 ready, 0 failed\n",
            "network     1 connections, out 1.0 KiB, in 2.0 KiB, 3 refused\n",
            "█▃ last 1.00 ms, median 4.00 ms, longest 4.00 ms",
        ] {
            assert!(text.contains(part), "{part} is missing in:\n{text}");
        }
        let row = text.lines().last().unwrap();
        assert!(row.starts_with("sb-0") && row.contains("1.00 ms  █▃"), "{row}");
    }

    #[test]
    fn nothing_is_larger_than_the_terminal() {
        for (rows, cols) in [(24, 80), (5, 20), (1, 1), (40, 200)] {
            for colour in [false, true] {
                let size = Some(TtySize { rows, cols });
                let lines = lines(&frame(100), &pauses(), size, colour);
                assert!(lines.len() <= usize::from(rows), "{rows}: {}", lines.len());
                for line in lines {
                    let plain = ["\x1b[0m", "\x1b[1m", "\x1b[2m", "\x1b[32m"]
                        .iter()
                        .fold(line, |text, code| text.replace(code, ""));
                    assert!(plain.chars().count() <= usize::from(cols), "{cols}: {plain}");
                }
            }
        }
    }

    #[test]
    fn the_longest_pause_has_the_highest_bar() {
        assert_eq!(sparkline(&[0.0, 1.0, 7.0, 3.5], 4), "▁▂█▅");
        assert_eq!(sparkline(&[9.0, 1.0, 1.0], 2), "██", "only those that are shown count");
        assert_eq!(sparkline(&[], 5), "");
        assert_eq!(sparkline(&[0.0], 5), "▁");
    }
}
