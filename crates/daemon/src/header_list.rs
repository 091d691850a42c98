//! Headers whose values are lists, which may stand in several lines (RFC 9110, section 5.6.1).

use axum::http::{HeaderMap, HeaderName};

/// The words of a list.
pub(crate) fn words<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
) -> impl Iterator<Item = &'a str> + use<'a> {
    let values = headers.get_all(name).into_iter();
    values.filter_map(|value| value.to_str().ok()).flat_map(|text| text.split(',')).map(str::trim)
}

/// Whether a list has this word in it.
pub(crate) fn lists(headers: &HeaderMap, name: &HeaderName, word: &str) -> bool {
    words(headers, name).any(|listed| listed.eq_ignore_ascii_case(word))
}
