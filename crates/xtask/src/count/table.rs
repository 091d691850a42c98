//! What was counted, as a table: written, read, shown and compared. No input or output.

use anyhow::{Context, bail};

/// What the figures of a row are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    Instructions,
    KiB,
}

/// A row: the same thing, counted several times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    /// What the machine calls it: `start`, `start_standby`, `start_fitted`, `branch`, `branch_late`
    /// or `idle_child`.
    pub(super) work: String,
    /// RAM of the guest.
    pub(super) memory_mib: u32,
    /// The product's word for the phase, or what all of them are together.
    pub(super) item: String,
    pub(super) unit: Unit,
    /// Of all but the first.
    pub(super) median: u64,
    pub(super) least: u64,
    pub(super) most: u64,
    /// The first time, when nothing is in caches yet.
    pub(super) first: u64,
}

/// Growth of a row above it is reported.
const ALLOWED_PER_CENT: u64 = 3;
const HEAD: &str = "work,memory_mib,item,unit,median,least,most,first";

impl Unit {
    const fn name(self) -> &'static str {
        match self {
            Self::Instructions => "instructions",
            Self::KiB => "KiB",
        }
    }

    fn of_name(name: &str) -> anyhow::Result<Self> {
        match name {
            "instructions" => Ok(Self::Instructions),
            "KiB" => Ok(Self::KiB),
            _ => bail!("unknown unit {name}"),
        }
    }

    /// So much more is no finding in a row of small figures: an interrupt more or less, or a page
    /// that happened to be there already.
    const fn slack(self) -> u64 {
        match self {
            Self::Instructions => 20_000,
            Self::KiB => 64,
        }
    }

    /// For people.
    fn text(self, figure: u64) -> String {
        let (whole, thousandths) = match self {
            Self::Instructions => (figure / 1_000_000, figure / 1_000 % 1_000),
            Self::KiB => (figure / 1024, figure % 1024 * 1000 / 1024),
        };
        format!("{whole}.{thousandths:03}")
    }

    const fn of_text(self) -> &'static str {
        match self {
            Self::Instructions => "M instructions",
            Self::KiB => "MiB",
        }
    }
}

impl Row {
    /// `None` without a second figure.
    pub(super) fn new(
        (work, memory_mib, item): (&str, u32, &str),
        unit: Unit,
        figures: &[u64],
    ) -> Option<Self> {
        let (first, others) = figures.split_first()?;
        let mut others = others.to_vec();
        others.sort_unstable();
        let (least, most) = (*others.first()?, *others.last()?);
        let median = *others.get((others.len() - 1) / 2)?;
        let (work, item) = (work.to_owned(), item.to_owned());
        Some(Self { work, memory_mib, item, unit, median, least, most, first: *first })
    }

    fn name(&self) -> String {
        format!("{} of {} MiB, {}", self.work, self.memory_mib, self.item)
    }

    fn is_about_the_same_as(&self, other: &Self) -> bool {
        (&self.work, self.memory_mib, &self.item) == (&other.work, other.memory_mib, &other.item)
    }

    /// Compared with the most that was counted, not with its median: so a row that differs from
    /// time to time by itself is no finding.
    fn has_grown_to(&self, now: u64) -> bool {
        let growth = now.saturating_sub(self.most);
        growth > self.unit.slack() && growth * 100 > self.most * ALLOWED_PER_CENT
    }
}

/// What is worse than it was, in words; empty if nothing is. `was` may have more rows than `now`
/// if only some of the work was counted.
pub(super) fn growth(was: &[Row], now: &[Row]) -> Vec<String> {
    let mut findings = Vec::new();
    for new in now {
        let Some(old) = was.iter().find(|old| old.is_about_the_same_as(new)) else {
            findings.push(format!("{}: is not in the table", new.name()));
            continue;
        };
        if old.has_grown_to(new.median) {
            let [before, after] = [old.most, new.median].map(|figure| new.unit.text(figure));
            let unit = new.unit.of_text();
            let name = new.name();
            findings.push(format!("{name}: {after} {unit}, was at most {before}"));
        }
    }
    let is_counted = |old: &Row| {
        now.iter().any(|new| (&new.work, new.memory_mib) == (&old.work, old.memory_mib))
    };
    for old in was.iter().filter(|old| is_counted(old)) {
        if !now.iter().any(|new| new.is_about_the_same_as(old)) {
            findings.push(format!("{}: was not counted", old.name()));
        }
    }
    findings
}

/// The table when `now` was counted: rows of other sizes of RAM stay.
pub(super) fn renewed(was: Vec<Row>, now: &[Row]) -> Vec<Row> {
    let is_old = |row: &Row| !now.iter().any(|new| new.memory_mib == row.memory_mib);
    let mut rows: Vec<Row> = was.into_iter().filter(is_old).chain(now.iter().cloned()).collect();
    rows.sort_by_key(|row| row.memory_mib);
    rows
}

/// As a file.
pub(super) fn to_csv(rows: &[Row]) -> String {
    let mut text = format!("{HEAD}\n");
    for row in rows {
        let Row { work, memory_mib, item, unit, median, least, most, first } = row;
        let unit = unit.name();
        let line = format!("{work},{memory_mib},{item},{unit},{median},{least},{most},{first}");
        text.push_str(&line);
        text.push('\n');
    }
    text
}

/// The rows of a file.
pub(super) fn of_csv(text: &str) -> anyhow::Result<Vec<Row>> {
    let mut lines = text.lines();
    if lines.next() != Some(HEAD) {
        bail!("the first line should be {HEAD}");
    }
    lines.map(|line| row_of(line).with_context(|| format!("in the line {line}"))).collect()
}

fn row_of(line: &str) -> anyhow::Result<Row> {
    let cells: Vec<&str> = line.split(',').collect();
    let [work, memory_mib, item, unit, median, least, most, first] = cells[..] else {
        bail!("it has {} cells", cells.len());
    };
    Ok(Row {
        work: work.to_owned(),
        memory_mib: memory_mib.parse()?,
        item: item.to_owned(),
        unit: Unit::of_name(unit)?,
        median: median.parse()?,
        least: least.parse()?,
        most: most.parse()?,
        first: first.parse()?,
    })
}

/// For people.
pub(super) fn for_people(rows: &[Row]) -> String {
    let cells = ["median", "least", "most", "first"];
    let line = |name: &str, cells: [&str; 4], unit: &str| {
        let [a, b, c, d] = cells;
        format!("{name:38} {a:>9} {b:>9} {c:>9} {d:>9}  {unit}\n")
    };
    let mut text = line("", cells, "");
    for row in rows {
        let figures = [row.median, row.least, row.most, row.first];
        let cells = figures.map(|figure| row.unit.text(figure));
        text += &line(&row.name(), cells.each_ref().map(String::as_str), row.unit.of_text());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(item: &str, figures: &[u64]) -> Row {
        Row::new(("branch", 256, item), Unit::Instructions, figures).unwrap()
    }

    const WINDOW: [u64; 4] = [13_700_000, 7_200_000, 8_500_000, 7_400_000];

    #[test]
    fn a_row_is_the_median_of_all_but_the_first() {
        let Row { median, least, most, first, .. } = row("window", &WINDOW);
        assert_eq!((median, least, most, first), (7_400_000, 7_200_000, 8_500_000, 13_700_000));
        assert!(Row::new(("branch", 256, "window"), Unit::Instructions, &[1]).is_none());
    }

    #[test]
    fn growth_beyond_the_most_by_three_per_cent_is_named_with_both_figures() {
        let now = row("window", &[1, 8_756_000]);
        let findings = growth(&[row("window", &WINDOW)], std::slice::from_ref(&now));
        assert_eq!(
            findings,
            ["branch of 256 MiB, window: 8.756 M instructions, was at most 8.500"]
        );
        let within = row("window", &[1, 8_755_000]);
        assert!(growth(&[row("window", &WINDOW)], &[within]).is_empty());
    }

    #[test]
    fn less_than_before_and_a_little_more_of_almost_nothing_are_no_finding() {
        let was = [row("window", &WINDOW), row("claim", &[9, 10_000])];
        let now = [row("window", &[1, 5_000_000]), row("claim", &[9, 29_000])];
        assert!(growth(&was, &now).is_empty());
        assert_eq!(growth(&was[1..], &[row("claim", &[9, 31_000])]).len(), 1);
    }

    #[test]
    fn a_row_that_is_missing_on_one_side_is_named() {
        let (window, sweep) = (row("window", &WINDOW), row("sweep", &WINDOW));
        let both = [window.clone(), sweep];
        assert_eq!(growth(&both[..1], &both), ["branch of 256 MiB, sweep: is not in the table"]);
        assert_eq!(growth(&both, &both[..1]), ["branch of 256 MiB, sweep: was not counted"]);
    }

    #[test]
    fn work_that_was_left_out_altogether_is_not_missing() {
        let mut big = row("window", &WINDOW);
        big.memory_mib = 1536;
        assert!(growth(&[row("window", &WINDOW), big], &[row("window", &WINDOW)]).is_empty());
    }

    #[test]
    fn a_table_is_read_as_it_was_written() {
        let memory = Row::new(("idle_child", 256, "private"), Unit::KiB, &[3, 2, 1]).unwrap();
        let rows = [row("window", &WINDOW), memory];
        assert_eq!(of_csv(&to_csv(&rows)).unwrap(), rows);
        assert!(of_csv("window,1\n").is_err());
        assert!(of_csv(&format!("{HEAD}\nbranch,256,window,furlongs,1,1,1,1\n")).is_err());
    }

    #[test]
    fn rows_of_sizes_that_were_not_counted_stay() {
        let (old, new) = (row("window", &WINDOW), row("window", &[1, 2]));
        let big = Row { memory_mib: 1536, ..old.clone() };
        let rows = renewed(vec![old, big.clone()], std::slice::from_ref(&new));
        assert_eq!(rows, [new, big]);
    }

    #[test]
    fn figures_are_shown_in_millions_and_mebibytes() {
        assert_eq!(Unit::Instructions.text(7_400_000), "7.400");
        assert_eq!(Unit::KiB.text(1536), "1.500");
    }
}
