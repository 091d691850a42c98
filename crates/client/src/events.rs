//! Server-sent events, one by one.

use reqwest::Response;
use serde::Serialize;

use crate::ClientError;

/// Longest event that is accepted, in bytes.
const EVENT_BYTES_MAX: usize = 4 << 20;

/// Which events of the daemon.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct EventFilter {
    /// Only types that begin so.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Only what concerns this sandbox.
    pub sandbox: Option<String>,
    /// Only what concerns this snapshot.
    pub snapshot: Option<String>,
}

/// A server-sent event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerEvent {
    /// To be given when the stream is opened anew, to go on after it. Of the last event that had
    /// one.
    pub id: Option<String>,
    /// Its type.
    pub kind: String,
    /// JSON.
    pub data: String,
}

/// A stream of server-sent events.
#[derive(Debug)]
pub struct EventStream {
    response: Response,
    target: String,
    parser: Parser,
}

impl EventStream {
    pub(crate) fn new(response: Response, target: String) -> Self {
        Self { response, target, parser: Parser::default() }
    }

    /// The next event; `None` when the stream is over.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn next(&mut self) -> Result<Option<ServerEvent>, ClientError> {
        loop {
            if let Some(event) = self.parser.next() {
                return Ok(Some(event));
            }
            if self.parser.pending.len() + self.parser.event.data.len() > EVENT_BYTES_MAX {
                return Err(ClientError::NotUnderstood {
                    target: self.target.clone(),
                    status: self.response.status().as_u16(),
                    problem: "an event does not end".to_owned(),
                });
            }
            let chunk = self.response.chunk().await;
            let broken = |source| ClientError::Broken { target: self.target.clone(), source };
            match chunk.map_err(broken)? {
                Some(bytes) => self.parser.pending.extend_from_slice(&bytes),
                None => return Ok(None),
            }
        }
    }
}

/// Bytes that have come and are not yet an event.
#[derive(Debug, Default)]
struct Parser {
    pending: Vec<u8>,
    event: ServerEvent,
}

impl Parser {
    /// The next whole event with data.
    fn next(&mut self) -> Option<ServerEvent> {
        loop {
            let end = self.pending.iter().position(|byte| *byte == b'\n')?;
            let line: Vec<u8> = self.pending.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            let line = line.trim_end_matches(['\n', '\r']);
            if !line.is_empty() {
                self.field(line);
                continue;
            }
            // The id stays for the events after this one.
            let next = ServerEvent { id: self.event.id.clone(), ..ServerEvent::default() };
            let event = std::mem::replace(&mut self.event, next);
            if !event.data.is_empty() {
                return Some(event);
            }
        }
    }

    fn field(&mut self, line: &str) {
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "id" => self.event.id = Some(value.to_owned()),
            "event" => value.clone_into(&mut self.event.kind),
            "data" => {
                if !self.event.data.is_empty() {
                    self.event.data.push('\n');
                }
                self.event.data.push_str(value);
            }
            // A comment has no name; other fields are of no use here.
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_whole_however_they_are_cut_and_comments_are_passed_over() {
        let text =
            ": hello\n\nid: 7\nevent: a\ndata: {\"x\":1}\n\n: \nid: 9\n\ndata:y\r\ndata: z\n\n";
        for cut in 0..text.len() {
            let mut parser = Parser::default();
            let mut events = Vec::new();
            for part in [&text[..cut], &text[cut..]] {
                parser.pending.extend_from_slice(part.as_bytes());
                while let Some(event) = parser.next() {
                    events.push((event.id.unwrap(), event.kind, event.data));
                }
            }
            let of = |id: &str, kind: &str, data: &str| (id.into(), kind.into(), data.into());
            assert_eq!(events, [of("7", "a", "{\"x\":1}"), of("9", "", "y\nz")], "cut at {cut}");
        }
    }
}
