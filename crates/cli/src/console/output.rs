//! How data is printed: JSON for programs, aligned columns for people.

use std::io::{self, Write as _};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use serde::Serialize;

use crate::console::manner::{self, Style};

/// Between two columns.
const GAP: &str = "  ";

/// Which side a column leans to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Align {
    Left,
    Right,
}

/// Rows under headings, as wide as their content. The first column has the names.
#[derive(Debug)]
pub(crate) struct Table {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
}

/// Under this heading a word has the colour of what it means.
const STATE_HEADINGS: [&str; 2] = ["STATE", "STATUS"];

impl Table {
    pub(crate) fn new(columns: &[(&'static str, Align)]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row; it has as many cells as there are columns.
    pub(crate) fn row(&mut self, cells: impl Into<Vec<String>>) {
        let cells = cells.into();
        assert_eq!(cells.len(), self.columns.len(), "a cell for each column");
        self.rows.push(cells);
    }

    /// The lines of the table, headings first.
    pub(crate) fn lines(&self, colour: bool) -> Vec<String> {
        let width = |column: usize| {
            let cells = self.rows.iter().map(|row| row[column].chars().count());
            cells.chain([self.columns[column].0.chars().count()]).max().unwrap_or_default()
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let headings: Vec<String> = self.columns.iter().map(|(name, _)| (*name).into()).collect();
        let first = self.line(&headings, &widths, |_, cell| Style::Bold.paint(cell, colour));
        let rows = self.rows.iter().map(|row| {
            self.line(row, &widths, |name, cell| {
                let means = STATE_HEADINGS.contains(&name);
                let style = if means { Style::of_state(cell) } else { Style::Plain };
                style.paint(cell, colour)
            })
        });
        std::iter::once(first).chain(rows).collect()
    }

    /// One line; `shown` gives a cell under a heading as it is printed.
    fn line(
        &self,
        row: &[String],
        widths: &[usize],
        shown: impl Fn(&str, &str) -> String,
    ) -> String {
        let mut line = String::new();
        for ((cell, width), (name, align)) in row.iter().zip(widths).zip(&self.columns) {
            let padding = " ".repeat(width - cell.chars().count());
            let cell = shown(name, cell);
            let (before, after) = match align {
                Align::Left => ("", padding.as_str()),
                Align::Right => (padding.as_str(), ""),
            };
            line.push_str(&format!("{before}{cell}{after}{GAP}"));
        }
        line.trim_end().to_owned()
    }

    /// Prints the table, or `nothing` on standard error when it has no rows; only the names where
    /// only names are wanted.
    pub(crate) fn print(&self, nothing: &str) -> anyhow::Result<()> {
        if manner::is_quiet() {
            return self.rows.iter().try_for_each(|row| line(&row[0]));
        }
        if self.rows.is_empty() {
            crate::console::report::remark(nothing);
            return Ok(());
        }
        let mut text = self.lines(manner::stdout_has_colour()).join("\n");
        text.push('\n');
        bytes(text.as_bytes())
    }
}

/// Prints what is known of one thing: a name and a value a line.
pub(crate) fn facts(facts: &[(&str, String)]) -> anyhow::Result<()> {
    let colour = manner::stdout_has_colour();
    facts.iter().try_for_each(|(name, value)| {
        let name = Style::Bold.paint(&format!("{name:<14}"), colour);
        line(&format!("{name} {}", crate::console::report::printable(value)))
    })
}

/// Prints JSON, one document.
pub(crate) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    let mut text = serde_json::to_string_pretty(value).context("write JSON")?;
    text.push('\n');
    bytes(text.as_bytes())
}

/// Prints a line.
pub(crate) fn line(text: &str) -> anyhow::Result<()> {
    bytes(format!("{text}\n").as_bytes())
}

/// Prints bytes as they are. A reader that has seen enough is no failure.
pub(crate) fn bytes(bytes: &[u8]) -> anyhow::Result<()> {
    flowing(bytes).map(drop)
}

/// Whoever reads our standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reader {
    /// It may take more.
    There,
    /// It has seen enough.
    Gone,
}

/// Prints bytes as they are, of a stream that ends when nobody reads it any more.
pub(crate) fn flowing(bytes: &[u8]) -> anyhow::Result<Reader> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Reader::Gone),
        result => result.map(|()| Reader::There).context("write to standard output"),
    }
}

/// Passes on what a program in a guest wrote, each stream to ours of the same name, as it is.
pub(crate) fn guest_streams(stdout: &[u8], stderr: &[u8]) -> anyhow::Result<()> {
    bytes(stdout)?;
    io::stderr().write_all(stderr).context("write to standard error")
}

/// A size for people.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    #[expect(clippy::cast_precision_loss, reason = "shown with one decimal")]
    let mut value = bytes as f64 / 1024.0;
    let mut unit = UNITS[0];
    for next in &UNITS[1..] {
        // What would be printed as 1024.0 belongs to the next unit.
        if value < 1023.95 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    format!("{value:.1} {unit}")
}

/// Milliseconds for people.
pub(crate) fn milliseconds(ms: f64) -> String {
    if ms < 10.0 {
        format!("{ms:.2} ms")
    } else if ms < 1000.0 {
        format!("{ms:.0} ms")
    } else {
        format!("{:.1} s", ms / 1000.0)
    }
}

/// How long ago a moment was.
pub(crate) fn age(then_unix_secs: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    duration(now.saturating_sub(then_unix_secs))
}

fn duration(secs: u64) -> String {
    match secs {
        0..60 => format!("{secs} s"),
        60..3600 => format!("{} min", secs / 60),
        3600..86_400 => format!("{} h", secs / 3600),
        _ => format!("{} d", secs / 86_400),
    }
}

/// `-` for what is not there.
pub(crate) fn or_dash(value: Option<String>) -> String {
    value.unwrap_or_else(|| "-".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_content_and_lines_end_without_spaces() {
        let mut table = Table::new(&[("TAG", Align::Left), ("SIZE", Align::Right)]);
        table.row(["a".into(), "1.0 MiB".into()]);
        table.row(["longer".into(), "2 B".into()]);
        let lines = ["TAG        SIZE", "a       1.0 MiB", "longer      2 B"];
        assert_eq!(table.lines(false), lines);
    }

    #[test]
    fn colours_change_no_column_and_a_state_has_its_own() {
        let mut table = Table::new(&[("ID", Align::Left), ("STATE", Align::Right)]);
        table.row(["a".into(), "dead".into()]);
        table.row(["b".into(), "running".into()]);
        let lines = table.lines(true);
        assert!(lines[1].contains("\x1b[31mdead\x1b[0m"), "{lines:?}");
        let plain = |line: &String| {
            ["\x1b[1m", "\x1b[31m", "\x1b[32m", "\x1b[0m"]
                .iter()
                .fold(line.clone(), |text, code| text.replace(code, ""))
        };
        let without: Vec<String> = lines.iter().map(plain).collect();
        assert_eq!(without, table.lines(false));
    }

    #[test]
    fn sizes_and_times_are_for_people() {
        assert_eq!(size(0), "0 B");
        assert_eq!(size(1536), "1.5 KiB");
        assert_eq!(size((1 << 20) - 1), "1.0 MiB");
        assert_eq!(size(3 << 30), "3.0 GiB");
        assert_eq!(milliseconds(1.234), "1.23 ms");
        assert_eq!(milliseconds(123.4), "123 ms");
        assert_eq!(milliseconds(2345.0), "2.3 s");
        assert_eq!(duration(59), "59 s");
        assert_eq!(duration(86_400 * 3), "3 d");
    }
}
