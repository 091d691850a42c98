//! The page `docs/reference/e2b-methods.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::{Done, Line, TABLE, lines_of};

const INTRODUCTION: &str = "# The methods of E2B's packages

<!-- Made from `tests/cli/e2b/methods.tsv` by `make generate`; not to be edited. -->

Every public method of the packages that a [program for E2B](../guides/coming-from-e2b.md) has,
and what forkd does with it. A test compares the list with the installed packages and runs the
sessions, which are programs for E2B in `tests/cli/`. It fails when a method is missing, and when
one that works has not returned to its session.

* `works`: the session calls it.
* `local`: it asks nobody.
* `refused`: by forkd, with these words among others, and never passed over.
* `unsupported`: nothing answers it, or it is of no use here, for this reason.

`Class.method` belongs to the class. In JavaScript, `Class#method` belongs to its objects.
";

/// Of the table of each client.
const HEAD: &str = "| class | methods | here | session, or why |\n|---|---|---|---|\n";

/// The page of a table.
fn page(table: &[Line]) -> String {
    let mut page = INTRODUCTION.to_owned();
    page.push_str("\n| client | package | works | local | refused | unsupported | all |\n");
    page.push_str("|---|---|---|---|---|---|---|\n");
    let mut counts: BTreeMap<(&str, &str), [usize; 4]> = BTreeMap::new();
    for line in table {
        counts.entry((&line.key.0, &line.key.1)).or_default()[line.done as usize] += 1;
    }
    for ((client, package), counts) in &counts {
        let cells: Vec<String> = counts.iter().map(ToString::to_string).collect();
        let all: usize = counts.iter().sum();
        writeln!(page, "| {client} | `{package}` | {} | {all} |", cells.join(" | ")).unwrap();
    }
    let clients: BTreeSet<&String> = table.iter().map(|line| &line.key.0).collect();
    for client in clients {
        write!(page, "\n## {client}\n\n{HEAD}").unwrap();
        let mut rows: BTreeMap<(&str, Done, &str), Vec<String>> = BTreeMap::new();
        for line in table.iter().filter(|line| line.key.0 == *client) {
            let method = &line.key.2;
            let end = method.find(['.', '#']);
            let (class, name) = end.map_or(("", method.as_str()), |end| method.split_at(end));
            let row = rows.entry((class, line.done, &line.note)).or_default();
            row.push(format!("`{}`", name.trim_start_matches('.')));
        }
        for ((class, done, note), names) in rows {
            let class = if class.is_empty() { "the package" } else { &format!("`{class}`") };
            let (names, word) = (names.join(", "), done.word());
            let note = if done == Done::Works { format!("`{note}`") } else { note.to_owned() };
            writeln!(page, "| {class} | {names} | {word} | {note} |").unwrap();
        }
    }
    page
}

/// `FORKD_UPDATE=1` writes the page anew.
#[test]
fn the_committed_page_of_methods_is_current() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../");
    let path = format!("{root}docs/reference/e2b-methods.md");
    let current = page(&lines_of(TABLE));
    if std::env::var_os("FORKD_UPDATE").is_some() {
        std::fs::write(&path, &current).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(committed == current, "run `make generate` and commit the change");
}
