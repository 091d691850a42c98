//! The page that lists all error codes, made from the catalogue.

use std::fs;
use std::path::Path;

use crate::catalogue::{CATALOGUE, ErrorCode};

const PAGE: &str = "../../docs/reference/errors.md";
const HEAD: &str = "\
# Errors

<!-- Made from the code by `make generate`; not to be edited. -->

Every answer that is not a success has a body with these fields:

| field | what |
|---|---|
| `error` | what happened this time, for people |
| `code` | one of the words below, for programs; a word never changes its meaning |
| `hint` | what to do about it |
| `reason` | for `guest_refused` only: what exactly the guest refused |

The SDKs have an exception for each code. An answer with status 503 says with `Retry-After` when to
try again.

| code | status | what happened | what to do |
|---|---|---|---|
";

/// The page as it should be.
fn page() -> String {
    let rows: String = CATALOGUE
        .iter()
        .map(|entry| {
            let [meaning, hint] =
                [entry.meaning, entry.hint].map(|text| text.trim().replace('|', "\\|"));
            format!("| `{}` | {} | {meaning} | {hint} |\n", entry.name, entry.status)
        })
        .collect();
    format!("{HEAD}{rows}")
}

#[test]
fn every_code_says_what_happened_in_a_sentence() {
    for entry in CATALOGUE {
        let meaning = entry.meaning.trim();
        assert!(meaning.ends_with('.') && meaning.len() > 1, "{}", entry.name);
    }
    assert_eq!(
        ErrorCode::BadRequest.entry().meaning.trim(),
        "A field is missing, malformed or out of bounds."
    );
}

/// `FORKD_UPDATE=1` writes the page anew.
#[test]
fn the_committed_page_of_errors_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE);
    if std::env::var_os("FORKD_UPDATE").is_some() {
        fs::write(&path, page()).unwrap();
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    assert!(committed == page(), "run `make generate` and commit the change");
}
