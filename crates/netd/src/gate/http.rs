//! HTTP/1 requests: each one's host, and where it ends.
//!
//! ```text
//!  head --> body of a known length --> head
//!    |  \-> chunks --> trailer ------> head
//!    \----> upgrade: held until the server has answered --> another protocol, or head
//! ```
//!
//! Guarantees: a host is taken from a request only when every server would take the same one, and a
//! request ends where every server would say that it ends. All else is refused: two hosts, a length
//! beside chunks, bare line ends, folded lines.
//!
//! Does not do: HTTP/2 without TLS, proxies' `CONNECT`; both are refused.

use forkd_types::network::DomainName;
use httparse::{Header, Status};

use super::decision::Decision;
use super::refusal::Refusal;

/// Headers of one request.
const HEADERS_MAX: usize = 128;
const HEAD_END: &[u8] = b"\r\n\r\n";
/// A line of a chunk's length, with extensions.
const CHUNK_LINE_BYTES_MAX: usize = 1024;

/// Where in the stream of requests a connection is.
#[derive(Debug, Default)]
pub(super) struct Requests {
    place: Place,
    /// Requests before the one that is looked at.
    seen: usize,
    /// Bytes of a head in which its end is not. One that comes in single bytes is not read again
    /// for each.
    scanned: usize,
    /// The server's first bytes, while they matter.
    answer: Vec<u8>,
    answered: bool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Place {
    #[default]
    Head,
    Body(u64),
    ChunkLine,
    /// Bytes of a chunk and of the line end behind it.
    Chunk(u64),
    Trailer,
    /// The server decides what comes next.
    Upgrade,
}

/// What a head says about what follows.
struct Framing {
    next: Place,
    upgrade: bool,
}

impl Requests {
    /// Looks at bytes that have not been passed on; how many of them may be.
    pub(super) fn look(
        &mut self,
        bytes: &[u8],
        decide: &mut impl FnMut(&DomainName) -> Decision,
    ) -> Result<usize, Refusal> {
        let mut passed = 0;
        loop {
            let rest = &bytes[passed..];
            let step = match self.place {
                Place::Head => self.head(rest, decide)?,
                Place::Body(left) => pass(left, rest).map(|(bytes, left)| match left {
                    0 => (bytes, Place::Head),
                    left => (bytes, Place::Body(left)),
                }),
                Place::Chunk(left) => pass(left, rest).map(|(bytes, left)| match left {
                    0 => (bytes, Place::ChunkLine),
                    left => (bytes, Place::Chunk(left)),
                }),
                Place::ChunkLine => chunk_line(rest)?,
                Place::Trailer => trailer_line(rest)?,
                Place::Upgrade => None,
            };
            let Some((bytes, next)) = step else { return Ok(passed) };
            passed += bytes;
            self.place = next;
        }
    }

    /// Whether no request has passed.
    pub(super) fn is_first(&self) -> bool {
        self.seen == 0
    }

    /// What the server answers to a request that wants another protocol: whether it gets it. None
    /// while that is open, or does not matter.
    pub(super) fn answer(&mut self, bytes: &[u8]) -> Option<bool> {
        const SWITCHED: &[u8] = b"HTTP/1.1 101";
        if self.answered {
            return None;
        }
        self.answer.extend(bytes.iter().take(SWITCHED.len() - self.answer.len()));
        let decided = self.answer.len() == SWITCHED.len();
        self.answered = decided;
        if !decided || self.place != Place::Upgrade {
            return None;
        }
        let switched = self.answer == SWITCHED;
        self.place = Place::Head;
        Some(switched)
    }

    fn head(
        &mut self,
        bytes: &[u8],
        decide: &mut impl FnMut(&DomainName) -> Decision,
    ) -> Result<Option<(usize, Place)>, Refusal> {
        let unclear = Refusal::Unclear("it begins like HTTP, but is none");
        if bytes.first().is_some_and(|&b| b == b'\r' || b == b'\n') {
            return Err(unclear);
        }
        let from = self.scanned.saturating_sub(HEAD_END.len());
        let unread = &bytes[from..];
        let end = unread.windows(HEAD_END.len()).position(|part| part == HEAD_END);
        let is_text = |&b: &u8| b >= b' ' && b != 0x7f || matches!(b, b'\t' | b'\r' | b'\n');
        let known = &unread[..end.unwrap_or(unread.len())];
        // Lines that end so can be read in two ways: there may be no other end to wait for.
        let is_bare = |pair: &[u8]| pair[1] == b'\n' && pair[0] != b'\r';
        if !known.iter().all(is_text) || known.windows(2).any(is_bare) {
            return Err(unclear);
        }
        if end.is_none() {
            self.scanned = bytes.len();
            return Ok(None);
        }
        self.scanned = 0;
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut request = httparse::Request::new(&mut headers);
        let Ok(Status::Complete(length)) = request.parse(bytes) else { return Err(unclear) };
        let head = &bytes[..length];
        let bare = |(at, byte): (usize, &u8)| match byte {
            b'\n' => at == 0 || head[at - 1] != b'\r',
            b'\r' => head.get(at + 1) != Some(&b'\n'),
            _ => false,
        };
        let method = request.method.unwrap_or_default();
        if head.iter().enumerate().any(bare) || method == "PRI" {
            return Err(unclear);
        }
        if method.eq_ignore_ascii_case("CONNECT") {
            return Err(Refusal::Unclear("CONNECT would leave the host"));
        }
        let target = request.path.unwrap_or_default();
        let name = host(request.headers, target)?;
        match decide(&name) {
            Decision::Passes => {}
            Decision::Refused => return Err(Refusal::Name(name)),
            Decision::Ends => return Err(Refusal::Plain(name)),
        }
        let framing = framing(request.headers)?;
        if framing.upgrade && (self.seen > 0 || self.answered || framing.next != Place::Head) {
            return Err(Refusal::Unclear("only a first request without a body may upgrade"));
        }
        self.seen = self.seen.saturating_add(1);
        Ok(Some((length, if framing.upgrade { Place::Upgrade } else { framing.next })))
    }
}

const METHODS: [&[u8]; 9] =
    [b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"CONNECT", b"OPTIONS", b"TRACE", b"PATCH"];

/// Whether a stream begins with a method; none while it may.
pub(super) fn is_request(bytes: &[u8]) -> Option<bool> {
    let is = |method: &[u8]| bytes.strip_prefix(method).is_some_and(|rest| rest.starts_with(b" "));
    match METHODS.into_iter().any(|method| method.starts_with(bytes)) {
        true => None,
        false => Some(METHODS.into_iter().any(is)),
    }
}

/// Whether a line begins as a request does, even one of HTTP/0.9, which has no host.
pub(super) fn begins_with_method(line: &[u8]) -> bool {
    let mut words = line.split(|&b| b == b' ' || b == b'\t');
    let method = words.next().unwrap_or_default();
    let target = words.next().and_then(<[u8]>::first);
    METHODS.iter().any(|known| method.eq_ignore_ascii_case(known)) && target == Some(&b'/')
}

/// Passes on what has come of so many bytes; how many are left.
fn pass(left: u64, bytes: &[u8]) -> Option<(usize, u64)> {
    let now = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
    let nothing = now == 0 && left > 0;
    (!nothing).then(|| (now, left - u64::try_from(now).unwrap_or(left)))
}

fn values<'a>(headers: &'a [Header<'a>], name: &str) -> impl Iterator<Item = &'a [u8]> {
    let name = name.to_owned();
    headers.iter().filter(move |header| header.name.eq_ignore_ascii_case(&name)).map(|h| h.value)
}

/// The one host that a request can mean.
fn host(headers: &[Header<'_>], target: &str) -> Result<DomainName, Refusal> {
    const NO_HOST: Refusal = Refusal::Unclear("a request names no host");
    let mut hosts = values(headers, "host");
    let (Some(host), None) = (hosts.next(), hosts.next()) else { return Err(NO_HOST) };
    let host = std::str::from_utf8(host).map_err(|_| NO_HOST)?.trim_matches([' ', '\t']);
    if !(target.starts_with('/') || target == "*") {
        // A whole URL overrides the header.
        let (_, rest) = target.split_once("://").ok_or(NO_HOST)?;
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        if !authority.eq_ignore_ascii_case(host) {
            return Err(Refusal::Unclear("a request names two hosts"));
        }
    }
    host_name(host.as_bytes()).ok_or(NO_HOST)
}

/// The name in what says where a request goes: `name` or `name:port`.
pub(crate) fn host_name(authority: &[u8]) -> Option<DomainName> {
    let authority = std::str::from_utf8(authority).ok()?;
    let (name, port) = authority.split_once(':').unwrap_or((authority, ""));
    port.bytes().all(|b| b.is_ascii_digit()).then(|| name.parse().ok())?
}

fn framing(headers: &[Header<'_>]) -> Result<Framing, Refusal> {
    const UNCLEAR: Refusal = Refusal::Unclear("it is not clear where a request ends");
    let mut lengths = values(headers, "content-length");
    let mut encodings = values(headers, "transfer-encoding");
    let (length, encoding) = (lengths.next(), encodings.next());
    if lengths.next().is_some() || encodings.next().is_some() {
        return Err(UNCLEAR);
    }
    let next = match (length, encoding) {
        (None, None) | (Some(b"0"), None) => Place::Head,
        (Some(digits), None) if !digits.is_empty() && digits.iter().all(u8::is_ascii_digit) => {
            let digits = std::str::from_utf8(digits).map_err(|_| UNCLEAR)?;
            match digits.parse().map_err(|_| UNCLEAR)? {
                0 => Place::Head,
                length => Place::Body(length),
            }
        }
        (None, Some(encoding)) if encoding.eq_ignore_ascii_case(b"chunked") => Place::ChunkLine,
        _ => return Err(UNCLEAR),
    };
    Ok(Framing { next, upgrade: values(headers, "upgrade").next().is_some() })
}

/// The bytes up to a line's end, without it.
fn line(bytes: &[u8]) -> Result<Option<&[u8]>, Refusal> {
    const UNCLEAR: Refusal = Refusal::Unclear("the chunks of a request are damaged");
    let Some(end) = bytes.iter().position(|&b| b == b'\n') else {
        let too_long = bytes.len() > CHUNK_LINE_BYTES_MAX;
        return if too_long { Err(UNCLEAR) } else { Ok(None) };
    };
    let line = bytes[..end].strip_suffix(b"\r").ok_or(UNCLEAR)?;
    let plain = line.iter().all(|&b| b >= b' ' || b == b'\t');
    if plain && line.len() <= CHUNK_LINE_BYTES_MAX { Ok(Some(line)) } else { Err(UNCLEAR) }
}

fn chunk_line(bytes: &[u8]) -> Result<Option<(usize, Place)>, Refusal> {
    const UNCLEAR: Refusal = Refusal::Unclear("the chunks of a request are damaged");
    const LINE_END_BYTES: usize = 2;
    let Some(line) = line(bytes)? else { return Ok(None) };
    let digits = line.split(|&b| b == b';').next().unwrap_or_default();
    let is_length = (1..=15).contains(&digits.len()) && digits.iter().all(u8::is_ascii_hexdigit);
    let digits = std::str::from_utf8(digits).map_err(|_| UNCLEAR)?;
    let length = u64::from_str_radix(digits, 16).ok().filter(|_| is_length).ok_or(UNCLEAR)?;
    let next = match length {
        0 => Place::Trailer,
        length => Place::Chunk(length + 2),
    };
    Ok(Some((line.len() + LINE_END_BYTES, next)))
}

fn trailer_line(bytes: &[u8]) -> Result<Option<(usize, Place)>, Refusal> {
    let Some(line) = line(bytes)? else { return Ok(None) };
    let next = if line.is_empty() { Place::Head } else { Place::Trailer };
    Ok(Some((line.len() + 2, next)))
}
