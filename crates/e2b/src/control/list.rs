//! Lists of sandboxes, page by page.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::extract::RawQuery;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use forkd_engine::Sandbox;
use forkd_types::{SandboxState, SnapshotTag};
use percent_encoding::percent_decode_str;

use super::asked::Asked;
use super::shown::Listed;
use crate::failure::Failure;
use crate::shared::{Stand, stand_of};

const NEXT: HeaderName = HeaderName::from_static("x-next-token");
const LIMIT_MAX: usize = 100;

/// Where a page ends: the next begins after this.
type Cursor = (u128, String);

/// What is wanted.
#[derive(Debug, Default, PartialEq, Eq)]
struct Wanted {
    metadata: BTreeMap<String, String>,
    /// None: all.
    is_paused: Option<bool>,
    oldest_first: bool,
    started_after: Option<SystemTime>,
    template: Option<String>,
    limit: Option<usize>,
    after: Option<Cursor>,
}

fn wanted(query: &str) -> Result<Wanted, Failure> {
    let mut wanted = Wanted::default();
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        match name.as_ref() {
            "metadata" => wanted.metadata = metadata(&value)?,
            "state" => wanted.is_paused = state(&value)?,
            "order" => wanted.oldest_first = value == "asc",
            "startedAfter" => wanted.started_after = Some(started_after(&value)?),
            "template" => wanted.template = Some(value.into_owned()),
            "limit" => wanted.limit = Some(page_limit(&value)?),
            "nextToken" if !value.is_empty() => wanted.after = Some(read_cursor(&value)?),
            _ => {}
        }
    }
    Ok(wanted)
}

pub(super) fn page_limit(value: &str) -> Result<usize, Failure> {
    let wrong = || Failure::field("limit", "must be 1 to 100");
    value.parse().ok().filter(|limit| (1..=LIMIT_MAX).contains(limit)).ok_or_else(wrong)
}

/// Pairs whose keys and values are escaped once more than the pairs are.
fn metadata(value: &str) -> Result<BTreeMap<String, String>, Failure> {
    let wrong = || Failure::field("metadata", "is not made of escaped pairs");
    let plain = |text: &str| -> Result<String, Failure> {
        let text = text.replace('+', " ");
        let text = percent_decode_str(&text).decode_utf8().map_err(|_| wrong())?;
        Ok(text.into_owned())
    };
    let once = plain(value)?;
    let pairs = once.split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| {
            let (key, value) = pair.split_once('=').ok_or_else(wrong)?;
            Ok((plain(key)?, plain(value)?))
        })
        .collect()
}

fn state(value: &str) -> Result<Option<bool>, Failure> {
    let mut paused = Vec::new();
    for word in value.split(',').filter(|word| !word.is_empty()) {
        match word {
            "running" => paused.push(false),
            "paused" => paused.push(true),
            _ => return Err(Failure::field("state", "must be `running` or `paused`")),
        }
    }
    paused.dedup();
    Ok(if let [one] = paused[..] { Some(one) } else { None })
}

fn started_after(value: &str) -> Result<SystemTime, Failure> {
    // Our times are UTC; clients say that in two ways.
    let text = value.replace("+00:00", "Z").replace(' ', "+");
    let text = text.strip_suffix("+00:00").map_or(text.clone(), |text| format!("{text}Z"));
    humantime::parse_rfc3339_weak(text.trim_end_matches('Z'))
        .map_err(|_| Failure::field("startedAfter", "must be a time of RFC 3339 in UTC"))
}

fn read_cursor(value: &str) -> Result<Cursor, Failure> {
    let wrong = || Failure::field("nextToken", "is not one that was given");
    let bytes = URL_SAFE_NO_PAD.decode(value).map_err(|_| wrong())?;
    let text = String::from_utf8(bytes).map_err(|_| wrong())?;
    let (micros, name) = text.split_once(' ').ok_or_else(wrong)?;
    Ok((micros.parse().map_err(|_| wrong())?, name.to_owned()))
}

fn write_cursor((micros, name): &Cursor) -> String {
    URL_SAFE_NO_PAD.encode(format!("{micros} {name}"))
}

fn cursor_of(created_at: SystemTime, name: &str) -> Cursor {
    let micros = created_at.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_micros();
    (micros, name.to_owned())
}

/// The page after a cursor, and where the next begins.
fn page<T>(
    mut all: Vec<(Cursor, T)>,
    oldest_first: bool,
    after: Option<&Cursor>,
    limit: usize,
) -> (Vec<T>, Option<String>) {
    all.sort_by(|(a, _), (b, _)| if oldest_first { a.cmp(b) } else { b.cmp(a) });
    if let Some(after) = after {
        all.retain(|(cursor, _)| if oldest_first { cursor > after } else { cursor < after });
    }
    let next = (all.len() > limit).then(|| write_cursor(&all[limit - 1].0));
    all.truncate(limit);
    (all.into_iter().map(|(_, item)| item).collect(), next)
}

/// A page of what was made at some time under some name, newest first.
pub(super) fn newest_page<T>(
    all: Vec<(SystemTime, String, T)>,
    after: Option<&str>,
    limit: Option<usize>,
) -> Result<(Vec<T>, HeaderMap), Failure> {
    let all = all.into_iter().map(|(at, name, item)| (cursor_of(at, &name), item)).collect();
    let after = after.filter(|token| !token.is_empty()).map(read_cursor).transpose()?;
    let (items, next) = page(all, false, after.as_ref(), limit.unwrap_or(LIMIT_MAX));
    Ok((items, header(next)))
}

fn header(next: Option<String>) -> HeaderMap {
    let next = next.and_then(|next| HeaderValue::from_str(&next).ok());
    next.map(|next| (NEXT, next)).into_iter().collect()
}

impl Wanted {
    fn is(&self, sandbox: &Sandbox, template: Option<&SnapshotTag>) -> bool {
        let metadata = &sandbox.options.metadata;
        let is_paused = sandbox.state == SandboxState::Paused;
        stand_of(sandbox.state) != Stand::Gone
            && self.metadata.iter().all(|(key, value)| metadata.get(key) == Some(value))
            && self.is_paused.is_none_or(|wanted| wanted == is_paused)
            && self.started_after.is_none_or(|after| sandbox.created_at >= after)
            && template.is_none_or(|tag| sandbox.snapshot_tag == *tag)
    }
}

pub(super) async fn list(
    asked: Asked,
    RawQuery(query): RawQuery,
) -> Result<(HeaderMap, Json<Vec<Listed>>), Failure> {
    let wanted = wanted(query.as_deref().unwrap_or_default())?;
    let template = match &wanted.template {
        None => None,
        Some(name) => match asked.template(name) {
            Ok(tag) => Some(tag),
            Err(_) => return Ok((HeaderMap::new(), Json(Vec::new()))),
        },
    };
    let mut all = asked.engine.sandboxes();
    all.retain(|sandbox| wanted.is(sandbox, template.as_ref()));
    let with_cursor =
        |sandbox: Sandbox| (cursor_of(sandbox.created_at, sandbox.id.as_str()), sandbox);
    let all = all.into_iter().map(with_cursor).collect();
    let limit = wanted.limit.unwrap_or(LIMIT_MAX);
    let (sandboxes, next) = page(all, wanted.oldest_first, wanted.after.as_ref(), limit);
    let shown = sandboxes.iter().map(|sandbox| asked.listed(sandbox)).collect();
    Ok((header(next), Json(shown)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn metadata_is_unescaped_as_often_as_clients_escape_it() {
        // As the Python client sends {"a b": "c&d"}.
        let wanted = wanted("metadata=a%252520b%3Dc%252526d").unwrap();
        assert_eq!(wanted.metadata, BTreeMap::from([("a b".to_owned(), "c&d".to_owned())]));
        assert!(metadata("novalue").is_err());
    }

    #[test]
    fn a_state_that_does_not_exist_is_refused() {
        assert_eq!(state("running").unwrap(), Some(false));
        assert_eq!(state("paused").unwrap(), Some(true));
        assert_eq!(state("running,paused").unwrap(), None);
        assert!(state("dead").is_err());
    }

    #[test]
    fn a_time_is_understood_as_clients_write_it() {
        let wanted = UNIX_EPOCH + Duration::from_micros(1_700_000_000_123_456);
        for text in ["2023-11-14T22:13:20.123456Z", "2023-11-14T22:13:20.123456+00:00"] {
            assert_eq!(started_after(text).unwrap(), wanted, "{text}");
        }
        assert!(started_after("yesterday").is_err());
    }

    #[test]
    fn limits_and_tokens_of_nobody_are_refused() {
        for query in ["limit=0", "limit=101", "limit=x", "nextToken=x", "nextToken=eA"] {
            assert!(wanted(query).is_err(), "{query}");
        }
    }

    proptest! {
        #[test]
        fn pages_give_each_thing_once_and_in_order(
            times in prop::collection::vec(0_u128..5, 0..30),
            limit in 1_usize..7,
            oldest_first: bool,
        ) {
            let all: Vec<(Cursor, usize)> = times
                .iter()
                .enumerate()
                .map(|(number, time)| ((*time, format!("{number:02}")), number))
                .collect();
            let (mut found, mut after) = (Vec::new(), None);
            loop {
                let (items, next) = page(all.clone(), oldest_first, after.as_ref(), limit);
                prop_assert!(items.len() <= limit);
                found.extend(items);
                let Some(next) = next else { break };
                after = Some(read_cursor(&next).unwrap());
            }
            let mut wanted = all;
            wanted.sort();
            if !oldest_first {
                wanted.reverse();
            }
            let wanted: Vec<usize> = wanted.into_iter().map(|(_, number)| number).collect();
            prop_assert_eq!(found, wanted);
        }
    }
}
