//! What a client says of a file besides its content. It is kept as the file's extended attributes,
//! where programs of the guest see it too.

use std::collections::BTreeMap;

use axum::http::HeaderMap;
use forkd_engine::guest::Attributes;

use crate::failure::{Failure, Kind};

/// What the names of these attributes begin with.
pub(super) const PREFIX: &str = "user.e2b.";
const HEADER_PREFIX: &str = "x-metadata-";
/// The kernel takes names of 255 bytes.
const KEY_BYTES_MAX: usize = 255 - PREFIX.len();
/// All keys and values of a file.
const BYTES_MAX: usize = 4096;

/// What an upload says of its files. Of one that is replaced nothing stays.
pub(super) fn of(headers: &HeaderMap) -> Result<Attributes, Failure> {
    let wrong = |key: &str, problem: &str| {
        Err(Failure::field(&format!("metadata {:?}", key.get(..80).unwrap_or(key)), problem))
    };
    let mut attributes = Attributes::new();
    let mut bytes = 0;
    for (name, value) in headers {
        let Some(key) = name.as_str().strip_prefix(HEADER_PREFIX) else { continue };
        if key.is_empty() || key.len() > KEY_BYTES_MAX {
            return wrong(key, &format!("a key has 1 to {KEY_BYTES_MAX} characters"));
        }
        let Ok(value) = value.to_str() else {
            return wrong(key, "a value is printable ASCII");
        };
        bytes += key.len() + value.len();
        if attributes.insert(format!("{PREFIX}{key}"), value.to_owned()).is_some() {
            return wrong(key, "is given twice");
        }
    }
    if bytes > BYTES_MAX {
        return Err(Failure::field("metadata", &format!("has more than {BYTES_MAX} bytes")));
    }
    Ok(attributes)
}

/// As clients see it; none if there is none.
pub(super) fn shown(attributes: &Attributes) -> Option<BTreeMap<String, String>> {
    let shown: BTreeMap<String, String> = attributes
        .iter()
        .filter_map(|(name, value)| Some((name.strip_prefix(PREFIX)?.to_owned(), value.clone())))
        .collect();
    (!shown.is_empty()).then_some(shown)
}

/// The guest of a sandbox has written a file without what was said of it.
pub(super) fn not_kept(path: &str) -> Failure {
    let text = format!(
        "metadata: '{path}' is written without it, because the sandbox's guest agent is older than \
         this daemon; build its template again"
    );
    Failure::new(Kind::Unimplemented, text)
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};

    use super::*;

    fn headers(all: &[(&str, &[u8])]) -> HeaderMap {
        let pair = |(name, value): &(&str, &[u8])| {
            let name: HeaderName = name.parse().unwrap();
            (name, HeaderValue::from_bytes(value).unwrap())
        };
        let mut headers = HeaderMap::new();
        for (name, value) in all.iter().map(pair) {
            headers.append(name, value);
        }
        headers
    }

    #[test]
    fn what_headers_say_is_what_is_shown() {
        let said = headers(&[("X-Metadata-Author", b"me & you"), ("x-other", b"1")]);
        let attributes = of(&said).unwrap();
        assert_eq!(attributes["user.e2b.author"], "me & you");
        let expected = BTreeMap::from([("author".to_owned(), "me & you".to_owned())]);
        assert_eq!(shown(&attributes), Some(expected));
        assert_eq!(of(&headers(&[("x-other", b"1")])).unwrap(), Attributes::new());
        let foreign = Attributes::from([("user.other".to_owned(), "1".to_owned())]);
        assert_eq!(shown(&foreign), None);
    }

    #[test]
    fn what_cannot_be_kept_is_refused() {
        let long = "x".repeat(KEY_BYTES_MAX + 1);
        let (too_long, fits) = (format!("x-metadata-{long}"), format!("x-metadata-{}", &long[1..]));
        of(&headers(&[(&fits, b"1")])).unwrap();
        for wrong in [
            headers(&[(&too_long, b"1")]),
            headers(&[("x-metadata-", b"1")]),
            headers(&[("x-metadata-a", "\u{e4}".as_bytes())]),
            headers(&[("x-metadata-a", b"1"), ("x-metadata-a", b"2")]),
            headers(&[("x-metadata-a", &[b'x'; 4096])]),
        ] {
            assert_eq!(of(&wrong).unwrap_err().kind, Kind::InvalidArgument, "{wrong:?}");
        }
    }
}
