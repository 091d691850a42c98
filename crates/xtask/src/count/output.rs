//! What the machine printed, as rows. No input or output.

use anyhow::{Context, bail};
use serde_json::Value;

use super::table::{Row, Unit};

/// The phases of a start, in their order.
const START: [&str; 9] =
    ["claim", "disk", "launch", "map", "network", "load", "resume", "renew", "hand_out"];
/// The phases of a branch that its answer tells, in their order.
const BRANCH: [&str; 8] =
    ["prepare", "pause", "save_device_state", "freeze_disk", "protect", "resume", "sweep", "seal"];

/// Each work: where its whole is in the answer, what the table calls it, where its phases are and
/// in which order.
const WORKS: [(&str, &str, &str, &str, &[&str]); 5] = [
    ("start", "start_ms", "all", "start_phases_ms", &START),
    ("start_standby", "start_ms", "all", "start_phases_ms", &START),
    ("start_fitted", "start_ms", "all", "start_phases_ms", &START),
    ("branch", "pause_ms", "window", "phases_ms", &BRANCH),
    ("branch_late", "pause_ms", "window", "phases_ms", &BRANCH),
];
/// The memory of a child that nobody uses: what the machine calls it, and the table.
const MEMORY: (&str, [(&str, &str); 2]) =
    ("idle_child", [("private", "private"), ("huge", "in huge pages")]);

/// The rows, in the order of the works and phases, for each size of RAM.
pub(super) fn rows(printed: &str) -> anyhow::Result<Vec<Row>> {
    let lines = printed.lines().filter_map(line);
    let lines = lines.collect::<anyhow::Result<Vec<(&str, u32, Value)>>>()?;
    let mut sizes: Vec<u32> = lines.iter().map(|(_, size, _)| *size).collect();
    sizes.dedup();
    let mut rows = Vec::new();
    for size in sizes {
        let of = |wanted: &str| -> Vec<&Value> {
            let lines = lines.iter().filter(|(work, its, _)| (*work, *its) == (wanted, size));
            lines.map(|(.., answer)| answer).collect()
        };
        for (work, whole, name, phases, order) in WORKS {
            let answers = of(work);
            let figures = each(&answers, |answer| nanoseconds(find(answer, whole)?))?;
            rows.push(row((work, size, name), Unit::Instructions, &figures)?);
            for answer in &answers {
                known(find(answer, phases)?, order)?;
            }
            for phase in order {
                let figures = each(&answers, |answer| nanoseconds(&find(answer, phases)?[phase]))?;
                rows.push(row((work, size, phase), Unit::Instructions, &figures)?);
            }
        }
        let (work, items) = MEMORY;
        for (item, name) in items {
            let kibibytes = |answer: &Value| answer[item].as_u64().context("no number");
            rows.push(row((work, size, name), Unit::KiB, &each(&of(work), kibibytes)?)?);
        }
    }
    Ok(rows)
}

/// A line of a work; others are talk.
fn line(line: &str) -> Option<anyhow::Result<(&str, u32, Value)>> {
    let (work, rest) = line.split_once(' ')?;
    let is_known = WORKS.iter().any(|(name, ..)| *name == work) || work == MEMORY.0;
    let (size, answer) = rest.split_once(' ').filter(|_| is_known)?;
    let parsed =
        || -> anyhow::Result<_> { Ok((work, size.parse()?, serde_json::from_str(answer)?)) };
    Some(parsed().with_context(|| format!("the machine printed {line}")))
}

fn row(what: (&str, u32, &str), unit: Unit, figures: &[u64]) -> anyhow::Result<Row> {
    Row::new(what, unit, figures).with_context(|| format!("{what:?} was not counted twice"))
}

fn each(
    answers: &[&Value],
    figure: impl Fn(&Value) -> anyhow::Result<u64>,
) -> anyhow::Result<Vec<u64>> {
    answers.iter().map(|answer| figure(answer)).collect()
}

/// A field of the answer, wherever it is.
fn find<'a>(answer: &'a Value, name: &str) -> anyhow::Result<&'a Value> {
    fn within<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
        match value {
            Value::Object(fields) => {
                fields.get(name).or_else(|| fields.values().find_map(|value| within(value, name)))
            }
            Value::Array(items) => items.iter().find_map(|value| within(value, name)),
            _ => None,
        }
    }
    within(answer, name).with_context(|| format!("an answer has no {name}: {answer}"))
}

/// Refuses a phase that has no place in the table.
fn known(phases: &Value, order: &[&str]) -> anyhow::Result<()> {
    let names = phases.as_object().context("the phases are no object")?.keys();
    let known = |name: &&String| order.contains(&name.as_str()) || *name == "publish";
    match names.clone().find(|name| !known(name)) {
        Some(name) => bail!("the phase {name} has no place in the table: give it one"),
        None => Ok(()),
    }
}

/// A nanosecond of the machine is an instruction. Without a figure, the phase did not happen.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "rounded, and not negative"
)]
fn nanoseconds(milliseconds: &Value) -> anyhow::Result<u64> {
    match milliseconds {
        Value::Null => Ok(0),
        figure => {
            let figure = figure.as_f64().filter(|figure| *figure >= 0.0);
            Ok((figure.context("no number of milliseconds")? * 1e6).round() as u64)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(repetitions: u64) -> String {
        let mut text = "alive\n# talk\n".to_owned();
        for number in 1..=repetitions {
            let phases = format!("\"start_phases_ms\":{{\"map\":{number}}}");
            let start = format!("[{{\"id\":\"sb-1\",\"start_ms\":{number}.5,{phases}}}]");
            for work in ["start", "start_standby", "start_fitted"] {
                text += &format!("{work} 256 {start}\n");
            }
            for work in ["branch", "branch_late"] {
                text += &format!(
                    "{work} 256 {{\"snapshot\":{{\"pause_ms\":{number}.25,\
                     \"phases_ms\":{{\"freeze_disk\":0.{number},\"publish\":7}}}}}}\n"
                );
            }
            text += &format!("idle_child 256 {{\"private\":{number},\"huge\":0}}\n");
        }
        text
    }

    #[test]
    fn lines_become_rows_in_the_order_of_the_phases() {
        let rows = rows(&printed(4)).unwrap();
        let find = |work: &str, item: &str| {
            let row = rows.iter().find(|row| (&*row.work, &*row.item) == (work, item)).unwrap();
            (row.median, row.least, row.most, row.first)
        };
        assert_eq!(find("start", "all"), (3_500_000, 2_500_000, 4_500_000, 1_500_000));
        assert_eq!(find("branch", "freeze_disk"), (300_000, 200_000, 400_000, 100_000));
        assert_eq!(find("branch", "seal"), (0, 0, 0, 0));
        assert_eq!(find("idle_child", "private"), (3, 2, 4, 1));
        let items: Vec<&str> = rows.iter().map(|row| &*row.item).take(4).collect();
        assert_eq!(items, ["all", "claim", "disk", "launch"]);
    }

    #[test]
    fn a_phase_without_a_place_is_refused_by_name() {
        let error = rows(&printed(2).replace("freeze_disk", "thaw")).unwrap_err().to_string();
        assert!(error.contains("thaw"), "{error}");
    }

    #[test]
    fn work_that_was_done_once_or_not_at_all_is_refused() {
        assert!(rows(&printed(1)).is_err());
        assert!(rows(&printed(3).replace("branch 256", "no 256")).is_err());
        assert!(rows("branch 256 {\"snap").is_err());
    }
}
