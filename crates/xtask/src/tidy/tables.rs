//! Tables of the documents that list code: each row names something that is there, and nothing that
//! is there is left out.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::finding::Finding;
use crate::workspace::Workspace;

const ARCHITECTURE: &str = "docs/architecture.md";
const BRANCH: &str = "docs/branch.md";
const START: &str = "docs/start.md";
const HAZARDS: &str = "docs/hazards.md";
const LIMITS: &str = "docs/limits.md";
const TESTING: &str = "docs/testing.md";

/// The types of phases, where each is, and the page that lists them.
const PHASES: [(&str, &str, &str); 2] = [
    ("BranchPhase", "crates/types/src/branch.rs", BRANCH),
    ("StartPhase", "crates/types/src/start.rs", START),
];
/// Operations and events, and what lists them.
const OPERATIONS: &str = "docs/operations.md";
const KINDS: &str = "crates/types/src/kind.rs";
/// The index of the documents.
const INDEX: &str = "docs/README.md";
/// Every option of the command line.
const OPTIONS: &str = "docs/reference/cli.md";

/// Checks all tables; `files` are those of the repository.
pub(super) fn check(workspace: &Workspace, files: &[PathBuf]) -> Vec<Finding> {
    let read = |path: &str| fs::read_to_string(workspace.root.join(path)).unwrap_or_default();
    let tests = files.iter().filter(|path| {
        path.extension().is_some_and(|extension| extension == "rs")
            && path.components().any(|part| part.as_os_str() == "tests")
    });
    let tests: Vec<(&Path, String)> = tests
        .map(|path| (path.as_path(), read(&path.to_string_lossy())))
        .filter(|(_, text)| text.contains("#[test]") || text.contains("#[tokio::test"))
        .collect();
    let mut findings = Vec::new();
    let text = read(ARCHITECTURE);
    let named = words_of(first_cells(&text, "Code map"));
    findings.extend(missing(ARCHITECTURE, "the code map", &named, &crates(files)));
    for (type_name, source, page) in PHASES {
        let text = read(page);
        let named: BTreeSet<String> = first_cells(&text, "Phases").map(str::to_owned).collect();
        let known = phases(type_name, &read(source));
        findings.extend(differences(page, "the phases", &named, &known));
    }
    let text = read(TESTING);
    let named = words_of(first_cells(&text, "What the VM tier claims"));
    let (folders, named) = named.into_iter().partition(|name| name.ends_with("/*"));
    findings.extend(differences(TESTING, "the tests", &named, &system_tests(&tests, &folders)));
    let text = read(HAZARDS);
    let last_cells = cells(&text, "Hazards of two machines from one image");
    let named = words_of(last_cells.filter_map(|row| row.last().copied()));
    let known = tests.iter().filter_map(|(path, _)| Some(path.file_stem()?.to_str()?.to_owned()));
    findings.extend(missing(HAZARDS, "no test file", &known.collect(), &named));
    let text = read(LIMITS);
    let named = words_of(first_cells(&text, "How much at once"));
    let options = read(OPTIONS);
    let options = options.split_whitespace().map(str::to_owned).collect();
    findings.extend(missing(LIMITS, OPTIONS, &options, &named));
    let (text, kinds) = (read(OPERATIONS), read(KINDS));
    for (type_name, heading) in [("OperationKind", "Operations"), ("EventType", "Events")] {
        let named = words_of(first_cells(&text, heading));
        let mut known = phases(type_name, &kinds);
        if known.is_empty() {
            known.insert(format!("each of {type_name}"));
        }
        findings.extend(missing(OPERATIONS, heading, &named, &known));
    }
    findings.extend(missing(INDEX, "the index", &links(&read(INDEX)), &pages(files)));
    findings
}

/// Every page of the documents but the index, relative to it.
fn pages(files: &[PathBuf]) -> BTreeSet<String> {
    let pages = files.iter().filter_map(|path| path.strip_prefix("docs").ok());
    let pages = pages.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    let names = pages.map(|path| path.to_string_lossy().into_owned());
    names.filter(|name| name != "README.md").collect()
}

/// What a page has links to, without the places within.
fn links(page: &str) -> BTreeSet<String> {
    let targets = page.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
    targets.map(str::to_owned).collect()
}

/// What is not in a list that should be.
fn missing(
    page: &str,
    list: &str,
    named: &BTreeSet<String>,
    wanted: &BTreeSet<String>,
) -> Vec<Finding> {
    let tell = |name: &String| Finding {
        file: page.to_owned(),
        line: 1,
        message: format!("{name} is missing in {list}"),
    };
    wanted.difference(named).map(tell).collect()
}

/// What is missing in a table, and what it names that is not there. A table without rows was not
/// found.
fn differences(
    page: &str,
    list: &str,
    named: &BTreeSet<String>,
    wanted: &BTreeSet<String>,
) -> Vec<Finding> {
    let mut findings = missing(page, list, named, wanted);
    findings.extend(named.difference(wanted).map(|name| Finding {
        file: page.to_owned(),
        line: 1,
        message: format!("{name} is in {list}, and nowhere else"),
    }));
    findings
}

/// The rows of all tables below a heading, without their heads.
fn cells<'a>(page: &'a str, heading: &'a str) -> impl Iterator<Item = Vec<&'a str>> {
    let mut inside = false;
    let mut after_head = false;
    page.lines().filter_map(move |line| {
        if line.starts_with('#') {
            inside = line.trim_start_matches('#').trim() == heading;
        }
        if !line.starts_with('|') {
            after_head = false;
        }
        if line.starts_with("|---") {
            after_head = true;
            return None;
        }
        let row = line.strip_prefix("| ").or_else(|| line.strip_prefix('|'))?;
        let row = row.trim_end().strip_suffix('|')?;
        (inside && after_head).then(|| row.split(" | ").map(str::trim).collect())
    })
}

fn first_cells<'a>(page: &'a str, heading: &'a str) -> impl Iterator<Item = &'a str> {
    cells(page, heading).filter_map(|row| row.first().copied())
}

/// What stands between backquotes.
fn words_of<'a>(cells: impl Iterator<Item = &'a str>) -> BTreeSet<String> {
    cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).map(str::to_owned).collect()
}

/// The folders of `crates/`.
fn crates(files: &[PathBuf]) -> BTreeSet<String> {
    let names = files.iter().filter_map(|path| {
        let mut parts = path.strip_prefix("crates").ok()?.components();
        Some(parts.next()?.as_os_str().to_str()?.to_owned())
    });
    names.collect()
}

/// The names that the phases have outside of the code.
fn phases(type_name: &str, source: &str) -> BTreeSet<String> {
    let list = source.split_once(&format!("{type_name} {{"));
    let list = list.and_then(|(_, rest)| rest.split_once('}'));
    let names = list.map_or("", |(list, _)| list).split(" = \"").skip(1);
    names.filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())).collect()
}

/// `folder/name` of every file of `tests/` with tests, but those in a folder that is listed whole,
/// as `folder/*`.
fn system_tests(tests: &[(&Path, String)], folders: &BTreeSet<String>) -> BTreeSet<String> {
    let names = tests.iter().filter_map(|(path, _)| {
        let path = path.strip_prefix("tests").ok()?;
        let folder = path.parent()?.to_str()?;
        let name = path.file_stem()?.to_str()?;
        (!folders.contains(&format!("{folder}/*"))).then(|| format!("{folder}/{name}"))
    });
    names.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# T\n## A\n| x | y |\n|---|---|\n| `a`, `b` | 1 |\n| c | `2` |\n\
                        ## B\n| x |\n|---|\n| `z` |\n";

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn the_rows_below_a_heading_are_read_without_heads() {
        assert_eq!(first_cells(PAGE, "A").collect::<Vec<_>>(), ["`a`, `b`", "c"]);
        assert_eq!(words_of(first_cells(PAGE, "A")), set(&["a", "b"]));
        let last = cells(PAGE, "A").filter_map(|row| row.last().copied());
        assert_eq!(words_of(last), set(&["2"]));
        assert_eq!(cells(PAGE, "C").count(), 0);
    }

    #[test]
    fn what_a_table_lacks_and_what_it_has_too_much_is_told() {
        let found = differences("p", "the list", &set(&["a", "x"]), &set(&["a", "b"]));
        let messages: Vec<_> = found.iter().map(|finding| finding.message.as_str()).collect();
        assert_eq!(messages, ["b is missing in the list", "x is in the list, and nowhere else"]);
    }

    #[test]
    fn links_are_read_without_the_places_within_and_pages_without_the_index() {
        let page = "[a](a.md) [b](b/c.md#place), [d](#here)";
        assert_eq!(links(page), set(&["a.md", "b/c.md", ""]));
        let files = ["docs/a.md", "docs/README.md", "docs/b/c.md", "docs/x.png", "README.md"];
        assert_eq!(pages(&files.map(PathBuf::from)), set(&["a.md", "b/c.md"]));
    }

    #[test]
    fn phases_are_the_names_of_their_type_and_of_no_other() {
        let source = "BranchPhase {\n Prepare = \"prepare\",\n Resume = \"resume\",\n}\n\
                      BranchMode {\n Live = \"live\",\n}";
        assert_eq!(phases("BranchPhase", source), set(&["prepare", "resume"]));
    }

    #[test]
    fn tests_are_named_by_folder_and_file_unless_the_folder_is_listed_whole() {
        let tests: Vec<_> = ["tests/a/x.rs", "tests/b/y.rs", "crates/c/tests/z.rs"]
            .map(|path| (Path::new(path), String::new()))
            .into();
        assert_eq!(system_tests(&tests, &set(&["b/*"])), set(&["a/x"]));
    }
}
