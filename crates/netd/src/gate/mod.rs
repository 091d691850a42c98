//! The first bytes of a connection that only a name allows, or that may be for a host with header
//! rules: they are looked at before they are passed on.
//!
//! ```text
//!            TLS record --------> ClientHello: its server name must be allowed, then all passes
//!  first    /
//!  bytes --<--- line with HTTP/ -> every request's host must be allowed
//!           \
//!            anything else ------> passes: the address was given for an allowed name
//! ```
//!
//! A ClientHello or a first request that names a host with rules goes to the gateway's own proxy
//! and not to the server. Where the address is allowed whatever the name, nothing else is refused,
//! and only the first request is looked at.
//!
//! Guarantees: nothing is passed on before it is understood, and no more than
//! [`HELD_BYTES_MAX`] is held. What could be read in two ways is refused.
//!
//! Does not do: look at answers, except for whether a connection changes to another protocol; look
//! inside TLS, so a server may serve other names on a connection that began with an allowed one.

mod decision;
mod http;
mod refusal;
mod tls;

use forkd_types::network::DomainName;

use crate::limit::HELD_BYTES_MAX;
pub(crate) use decision::{Decision, Ended};
use http::Requests;
pub(crate) use http::host_name;
pub(crate) use refusal::Refusal;
use tls::Hello;

/// What a gate is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// The name must be allowed.
    Names,
    /// Hosts with rules are found; all else passes as it is.
    Rules,
}

/// Looks at what a client sends.
pub(crate) struct Gate {
    mode: Mode,
    state: State,
    ended: Option<Ended>,
    /// What has come and is not passed on.
    held: Vec<u8>,
    /// How much of it may be.
    passed: usize,
    /// How much of the first line is known to be text. A line that comes in single bytes is not
    /// read again for each.
    text: usize,
}

enum State {
    Unknown,
    Tls(Box<Hello>),
    Http(Requests),
    Open,
}

/// What a first line may be.
#[derive(PartialEq, Eq)]
enum Kind {
    Tls,
    Http,
    Other,
}

impl Gate {
    pub(crate) fn new(mode: Mode) -> Self {
        Self { mode, state: State::Unknown, ended: None, held: Vec::new(), passed: 0, text: 0 }
    }

    /// A connection that the gateway ends, once: what passes from here on is for the proxy.
    pub(crate) fn take_ended(&mut self) -> Option<Ended> {
        self.ended.take()
    }

    /// Whether everything passes from now on and nothing is held.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.state, State::Open) && self.held.is_empty()
    }

    /// How much more it takes now.
    pub(crate) fn room(&self) -> usize {
        HELD_BYTES_MAX - self.held.len()
    }

    /// Looks at more of what the client sends; `decide` decides about names.
    pub(crate) fn feed(
        &mut self,
        bytes: &[u8],
        mut decide: impl FnMut(&DomainName) -> Decision,
    ) -> Result<(), Refusal> {
        self.held.extend_from_slice(bytes);
        self.look_or_open(&mut decide)
    }

    fn look_or_open(
        &mut self,
        decide: &mut impl FnMut(&DomainName) -> Decision,
    ) -> Result<(), Refusal> {
        let looked = self.look(decide);
        if self.mode == Mode::Rules && (looked.is_err() || self.passed > 0) {
            self.open();
            return Ok(());
        }
        looked
    }

    fn look(&mut self, decide: &mut impl FnMut(&DomainName) -> Decision) -> Result<(), Refusal> {
        loop {
            let unseen = &self.held[self.passed..];
            match &mut self.state {
                State::Unknown => match kind(self.mode, unseen, &mut self.text) {
                    None => return self.wait(),
                    Some(Kind::Tls) => self.state = State::Tls(Box::default()),
                    Some(Kind::Http) => self.state = State::Http(Requests::default()),
                    Some(Kind::Other) => self.state = State::Open,
                },
                State::Tls(hello) => match hello.look(unseen)? {
                    None => return self.wait(),
                    Some(name) => match decide(&name) {
                        Decision::Passes => self.state = State::Open,
                        Decision::Refused => return Err(Refusal::Name(name)),
                        Decision::Ends => self.end(Ended { name, tls: true }),
                    },
                },
                State::Http(requests) => match requests.look(unseen, decide) {
                    Ok(passed) => {
                        self.passed += passed;
                        return self.wait();
                    }
                    Err(Refusal::Plain(name)) if requests.is_first() => {
                        self.end(Ended { name, tls: false });
                    }
                    Err(refusal) => return Err(refusal),
                },
                State::Open => {
                    self.passed = self.held.len();
                    return Ok(());
                }
            }
        }
    }

    fn end(&mut self, ended: Ended) {
        self.ended = Some(ended);
        self.state = State::Open;
    }

    fn open(&mut self) {
        self.state = State::Open;
        self.passed = self.held.len();
    }

    fn wait(&self) -> Result<(), Refusal> {
        match self.held.len() - self.passed < HELD_BYTES_MAX {
            true => Ok(()),
            false => Err(Refusal::Unclear("the first bytes are too long")),
        }
    }

    /// What may be passed on.
    pub(crate) fn passed(&self) -> &[u8] {
        &self.held[..self.passed]
    }

    /// That so much of it has been.
    pub(crate) fn consume(&mut self, bytes: usize) {
        self.held.drain(..bytes);
        self.passed -= bytes;
    }

    /// The client sends nothing more. What is still held will never be understood.
    pub(crate) fn finish(&mut self) -> Result<(), Refusal> {
        if self.mode == Mode::Rules {
            self.open();
            return Ok(());
        }
        match self.held.len() == self.passed {
            true => Ok(()),
            false => Err(Refusal::Unclear("the connection ends within its first bytes")),
        }
    }

    /// Looks at the server's first bytes, which tell whether it has changed the protocol.
    pub(crate) fn answer(
        &mut self,
        bytes: &[u8],
        mut decide: impl FnMut(&DomainName) -> Decision,
    ) -> Result<(), Refusal> {
        if let State::Http(requests) = &mut self.state {
            match requests.answer(bytes) {
                Some(true) => self.state = State::Open,
                Some(false) => {}
                None => return Ok(()),
            }
            return self.look_or_open(&mut decide);
        }
        Ok(())
    }
}

/// The first byte of a ClientHello, and of the version behind it.
const TLS_HANDSHAKE: u8 = 0x16;
const TLS_MAJOR: u8 = 3;

/// What the first bytes are; none while that is open. The first `text` of them are text.
fn kind(mode: Mode, bytes: &[u8], text: &mut usize) -> Option<Kind> {
    match mode {
        Mode::Names => kind_by_line(bytes, text),
        // Nobody who waits for an answer is kept waiting for the end of a line.
        Mode::Rules => match bytes {
            [] | [TLS_HANDSHAKE] => None,
            [TLS_HANDSHAKE, TLS_MAJOR, ..] => Some(Kind::Tls),
            _ => http::is_request(bytes).map(|is| if is { Kind::Http } else { Kind::Other }),
        },
    }
}

fn kind_by_line(bytes: &[u8], text: &mut usize) -> Option<Kind> {
    let is_text = |b: u8| b >= b' ' && b != 0x7f || b == b'\t';
    let end = bytes[*text..].iter().position(|&b| !is_text(b));
    let Some(end) = end.map(|end| *text + end) else {
        *text = bytes.len();
        return None;
    };
    let line = &bytes[..end];
    let begins_http = http::begins_with_method(line)
        || line.windows(5).any(|part| part.eq_ignore_ascii_case(b"HTTP/"));
    match (end, bytes[end]) {
        (0, TLS_HANDSHAKE) => Some(Kind::Tls),
        // Servers may take empty lines before a request; here they are refused with it.
        (0, b'\r' | b'\n') => Some(Kind::Http),
        _ if begins_http => Some(Kind::Http),
        _ => Some(Kind::Other),
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
