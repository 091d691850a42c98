//! A file on its way out of a guest: packed, plain, or a range of it.
//!
//! Guarantees: a few pieces of it are in memory, whatever its length. An answer that says a length
//! has it, or the connection breaks off. A packed one ends as it should, or the connection breaks
//! off.
//!
//! Does not do: several ranges in one answer, or conditions. Such a request gets the whole file,
//! plain, as HTTP permits. Nothing that it could be conditional on is told.

use std::io::Write as _;
use std::ops::Range;

use axum::BoxError;
use axum::body::{Body, Bytes};
use axum::http::header::{
    ACCEPT_ENCODING, ACCEPT_RANGES, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE,
    IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE, RANGE, VARY,
};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use flate2::Compression;
use flate2::write::GzEncoder;
use forkd_engine::guest::{FileEntry, FileKind, FileLink};
use forkd_types::limit;
use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt as _, stream};

use super::at::At;
use super::upload::Packing;
use crate::failure::{Failure, Kind};

/// What makes an answer plain.
const PLAIN_FOR: [axum::http::HeaderName; 6] =
    [RANGE, IF_RANGE, IF_MATCH, IF_NONE_MATCH, IF_MODIFIED_SINCE, IF_UNMODIFIED_SINCE];

type Pieces = BoxStream<'static, Result<Bytes, BoxError>>;

/// The answer to a request for what is at a path.
pub(super) async fn answer(
    at: &At,
    path: &str,
    entry: &FileEntry,
    headers: &HeaderMap,
) -> Result<Response, Failure> {
    let packing = packing_for(headers)?;
    let bytes = length_of(entry);
    let part = match bytes {
        Some(bytes) if !headers.contains_key(IF_RANGE) => range_of(headers, bytes)?,
        _ => None,
    };
    let pieces = pieces(at, path, part.clone().or(bytes.map(|bytes| 0..bytes))).await?;
    let mut response = match packing {
        Packing::Gzip => Body::from_stream(packed(pieces)).into_response(),
        Packing::None => Body::from_stream(pieces).into_response(),
    };
    let told = response.headers_mut();
    told.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    told.insert(VARY, HeaderValue::from_static("Accept-Encoding"));
    if packing == Packing::Gzip {
        told.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        return Ok(response);
    }
    let Some(bytes) = bytes else { return Ok(response) };
    told.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    let length = part.as_ref().map_or(bytes, |part| part.end - part.start);
    told.insert(CONTENT_LENGTH, length.into());
    if let Some(Range { start, end }) = part {
        let shown = format!("bytes {start}-{}/{bytes}", end.saturating_sub(1));
        told.insert(CONTENT_RANGE, HeaderValue::try_from(shown).map_err(not_shown)?);
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    Ok(response)
}

fn not_shown(error: axum::http::header::InvalidHeaderValue) -> Failure {
    Failure::new(Kind::Internal, error.to_string())
}

/// How long it is, if that is known before it is read: of what the kernel makes up it is not,
/// whatever is said.
fn length_of(entry: &FileEntry) -> Option<u64> {
    let (path, kind, bytes) = match &entry.link {
        Some(FileLink::To { path, kind, bytes, .. }) => (path, *kind, *bytes),
        Some(FileLink::Nowhere) | None => (&entry.path, entry.kind, entry.bytes),
    };
    let is_made_up = ["/proc/", "/sys/"].iter().any(|made_up| path.starts_with(made_up));
    (kind == FileKind::File && bytes > 0 && !is_made_up).then_some(bytes)
}

/// The pieces of a part of a file, or of all that it turns out to have.
async fn pieces(at: &At, path: &str, part: Option<Range<u64>>) -> Result<Pieces, Failure> {
    let (engine, most) = (&at.shared.engine, limit::DOWNLOAD_BYTES_MAX);
    let file = match part {
        Some(part) if part.end - part.start > most => {
            let text = format!("the file has more than {most} bytes");
            return Err(Failure::new(Kind::TooLarge, text));
        }
        Some(part) => engine.open_file_part(&at.id, path, part).await?,
        None => engine.open_file(&at.id, path, most).await?,
    };
    let pieces = stream::try_unfold(file, |mut file| async move {
        Ok::<_, BoxError>(file.next().await?.map(|piece| (Bytes::from(piece), file)))
    });
    Ok(pieces.boxed())
}

/// The same, packed.
fn packed(pieces: Pieces) -> impl Stream<Item = Result<Bytes, BoxError>> + Send {
    // Half of the work of the usual level, for a tenth more bytes.
    let encoder = GzEncoder::new(Vec::new(), Compression::fast());
    stream::try_unfold((pieces, Some(encoder)), |(mut pieces, encoder)| async move {
        let Some(mut encoder) = encoder else { return Ok(None) };
        loop {
            let Some(piece) = pieces.next().await else {
                let last = Bytes::from(encoder.finish()?);
                return Ok(Some((last, (pieces, None))));
            };
            encoder.write_all(&piece?)?;
            let ready = std::mem::take(encoder.get_mut());
            if !ready.is_empty() {
                return Ok(Some((Bytes::from(ready), (pieces, Some(encoder)))));
            }
        }
    })
}

/// How the client wants it.
fn packing_for(headers: &HeaderMap) -> Result<Packing, Failure> {
    let accepted = Accepted::of(headers);
    let must_be_plain = PLAIN_FOR.iter().any(|name| headers.contains_key(name));
    let chosen = if must_be_plain { accepted.plain() } else { accepted.best() };
    chosen.ok_or_else(|| {
        let text = "Accept-Encoding: the file comes plain or, without a range or a condition, as \
                    gzip; the client wants neither";
        Failure::new(Kind::NotAcceptable, text)
    })
}

/// What a client says about the forms of an answer: how much it likes each, from 0 to 1.
struct Accepted(Vec<(String, f32)>);

impl Accepted {
    fn of(headers: &HeaderMap) -> Self {
        let values = headers.get_all(ACCEPT_ENCODING).iter();
        let texts = values.filter_map(|value| value.to_str().ok());
        let words = texts.flat_map(|text| text.split(',')).map(|word| {
            let (name, more) = word.split_once(';').unwrap_or((word, ""));
            let liking = more.trim().strip_prefix("q=").map_or(1.0, number);
            (name.trim().to_ascii_lowercase(), liking)
        });
        Self(words.filter(|(name, _)| !name.is_empty()).collect())
    }

    fn liking(&self, name: &str) -> Option<f32> {
        let of = |name: &str| self.0.iter().find(|(known, _)| known == name);
        of(name).or_else(|| of("*")).map(|(_, liking)| *liking)
    }

    /// Plain is fine unless the client says that it is not.
    fn plain(&self) -> Option<Packing> {
        self.liking("identity").is_none_or(|liking| liking > 0.0).then_some(Packing::None)
    }

    /// The form that it likes best; of two that it likes as much, the one that it names first.
    fn best(&self) -> Option<Packing> {
        let mut best = (0.0, self.plain());
        for (name, liking) in &self.0 {
            let packing = match name.as_str() {
                "gzip" | "x-gzip" => Packing::Gzip,
                "identity" => Packing::None,
                "*" => self.plain().unwrap_or(Packing::Gzip),
                _ => continue,
            };
            if *liking > best.0 {
                best = (*liking, Some(packing));
            }
        }
        best.1
    }
}

/// A number between 0 and 1. What is none is no liking.
fn number(text: &str) -> f32 {
    let text = text.split(';').next().unwrap_or_default().trim();
    text.parse().ok().filter(|number| (0.0..=1.0).contains(number)).unwrap_or(0.0)
}

/// The one range that the client wants of so many bytes. What is no such range is passed over.
fn range_of(headers: &HeaderMap, bytes: u64) -> Result<Option<Range<u64>>, Failure> {
    let mut values = headers.get_all(RANGE).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return Ok(None) };
    let said = value.to_str().ok().and_then(|text| text.trim().strip_prefix("bytes="));
    let Some((from, to)) = said.and_then(|said| said.split_once('-')) else { return Ok(None) };
    let number = |text: &str| {
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| text.parse::<u64>().ok()).flatten()
    };
    let range = match (from.trim(), to.trim()) {
        ("", last) => number(last).map(|last| bytes.saturating_sub(last)..bytes),
        (from, "") => number(from).map(|from| from..bytes),
        (from, to) => match (number(from), number(to)) {
            (Some(from), Some(to)) if from <= to => Some(from..to.saturating_add(1).min(bytes)),
            _ => None,
        },
    };
    match range {
        Some(range) if range.start >= range.end => {
            let text = format!("Range: the file has {bytes} bytes");
            Err(Failure::new(Kind::NoSuchRange { bytes }, text))
        }
        range => Ok(range),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use flate2::read::GzDecoder;

    use super::*;

    fn headers(all: &[(axum::http::HeaderName, &str)]) -> HeaderMap {
        all.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect()
    }

    #[test]
    fn a_file_is_packed_only_for_those_who_like_that_best() {
        let (gzip, plain) = (Some(Packing::Gzip), Some(Packing::None));
        for (said, expected) in [
            ("gzip, deflate", gzip),
            ("GZIP;q=0.5", gzip),
            ("gzip;q=0.5, identity", plain),
            ("identity, gzip", plain),
            ("gzip, identity", gzip),
            ("br, deflate", plain),
            ("*", plain),
            ("", plain),
            ("gzip;q=0", plain),
            ("gzip;q=x", plain),
            ("*, identity;q=0", gzip),
            ("gzip;q=0.001, *;q=0", gzip),
            ("identity;q=0", None),
            ("br, *;q=0", None),
            ("gzip;q=0, identity;q=0", None),
        ] {
            let packing = packing_for(&headers(&[(ACCEPT_ENCODING, said)]));
            match expected {
                Some(expected) => assert_eq!(packing.unwrap(), expected, "{said}"),
                None => assert_eq!(packing.unwrap_err().kind, Kind::NotAcceptable, "{said}"),
            }
        }
        assert_eq!(packing_for(&HeaderMap::new()).unwrap(), Packing::None);
        for name in PLAIN_FOR {
            let ask = |said| packing_for(&headers(&[(name.clone(), "x"), (ACCEPT_ENCODING, said)]));
            assert_eq!(ask("gzip").unwrap(), Packing::None, "{name}");
            assert_eq!(ask("gzip, identity;q=0").unwrap_err().kind, Kind::NotAcceptable, "{name}");
        }
    }

    #[test]
    fn a_length_is_said_of_a_file_alone_and_of_none_that_the_kernel_makes_up() {
        let entry = |path: &str, kind, link| FileEntry {
            name: "a".to_owned(),
            path: path.to_owned(),
            kind,
            bytes: 4096,
            mode: 0o644,
            modified_at: std::time::UNIX_EPOCH,
            owner: None,
            group: None,
            attributes: [].into(),
            link,
        };
        let to = |path: &str, kind| {
            let (path, bytes, mode) = (path.to_owned(), 7, 0o644);
            Some(FileLink::To { path, kind, bytes, mode })
        };
        let (file, link) = (FileKind::File, FileKind::Symlink);
        for (entry, expected) in [
            (entry("/a", file, None), Some(4096)),
            (entry("/a", link, to("/b", file)), Some(7)),
            (entry("/a", link, to("/b", FileKind::Other)), None),
            (entry("/a", link, to("/sys/a", file)), None),
            (entry("/a", link, None), None),
            (entry("/a", FileKind::Other, None), None),
            (entry("/sys/kernel/a", file, None), None),
        ] {
            assert_eq!(length_of(&entry), expected, "{entry:?}");
        }
    }

    #[test]
    fn a_range_lies_in_the_file_and_several_are_none() {
        let of = |said: &str| range_of(&headers(&[(RANGE, said)]), 10);
        for (said, expected) in [
            ("bytes=0-3", Some(0..4)),
            ("bytes=4-", Some(4..10)),
            ("bytes=-3", Some(7..10)),
            ("bytes=-30", Some(0..10)),
            ("bytes=9-99", Some(9..10)),
            ("bytes=0-18446744073709551615", Some(0..10)),
            ("bytes=0-1,3-4", None),
            ("bytes=4-3", None),
            ("bytes=-", None),
            ("bytes=+1-2", None),
            ("bytes=a-b", None),
            ("lines=0-3", None),
        ] {
            assert_eq!(of(said).unwrap(), expected, "{said}");
        }
        for said in ["bytes=10-", "bytes=10-12", "bytes=-0"] {
            assert_eq!(of(said).unwrap_err().kind, Kind::NoSuchRange { bytes: 10 }, "{said}");
        }
    }

    #[tokio::test]
    async fn packed_pieces_leave_before_the_last_has_come_and_are_the_same_content() {
        let taken = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&taken);
        let mut state = 1_u32;
        let source = stream::iter(0..100).map(move |_| {
            count.fetch_add(1, Ordering::Relaxed);
            // Nothing that can be packed well.
            let mut next = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                state.to_be_bytes()[0]
            };
            Ok(Bytes::from_iter((0..64 << 10).map(|_| next())))
        });
        let mut packed = std::pin::pin!(packed(source.boxed()));
        let (mut all, mut longest) = (packed.next().await.unwrap().unwrap().to_vec(), 0);
        assert!(taken.load(Ordering::Relaxed) < 5, "it waits for no more");
        while let Some(piece) = packed.next().await {
            let piece = piece.unwrap();
            longest = longest.max(piece.len());
            all.extend(piece);
        }
        assert!(longest < 1 << 20, "{longest}");
        let mut content = Vec::new();
        GzDecoder::new(&*all).read_to_end(&mut content).unwrap();
        assert_eq!(content.len(), 100 * (64 << 10));
    }

    #[tokio::test]
    async fn a_packed_file_that_breaks_off_does_not_end_well() {
        let broken = || Err(BoxError::from("the guest is gone"));
        let source = stream::iter([Ok(Bytes::from_static(b"some")), broken()]);
        let packed: Vec<_> = packed(source.boxed()).collect().await;
        assert!(packed.last().unwrap().is_err());
    }
}
