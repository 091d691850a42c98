//! Server-sent events: cutting a stream of bytes into events.

use reqwest::Response;

use crate::ClientError;

/// Longest event that is accepted, in bytes.
const EVENT_BYTES_MAX: usize = 8 << 20;

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

/// The events of one answer, in order.
#[derive(Debug)]
pub(crate) struct SseStream {
    response: Response,
    target: String,
    parser: Parser,
}

impl SseStream {
    pub(crate) fn new(response: Response, target: String) -> Self {
        Self { response, target, parser: Parser::default() }
    }

    /// The next event; `None` when the stream is over. Safe to cancel.
    pub(crate) async fn next(&mut self) -> Result<Option<ServerEvent>, ClientError> {
        loop {
            if let Some(event) = self.parser.next() {
                return Ok(Some(event));
            }
            if self.parser.held() > EVENT_BYTES_MAX {
                return Err(self.not_understood("an event does not end"));
            }
            let chunk = self.response.chunk().await;
            let broken = |source| ClientError::Broken { target: self.target.clone(), source };
            match chunk.map_err(broken)? {
                Some(bytes) => self.parser.pending.extend_from_slice(&bytes),
                None => return Ok(None),
            }
        }
    }

    pub(crate) fn not_understood(&self, problem: impl ToString) -> ClientError {
        ClientError::NotUnderstood {
            target: self.target.clone(),
            status: self.response.status().as_u16(),
            problem: problem.to_string(),
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
    /// Bytes that wait for the rest of their event.
    fn held(&self) -> usize {
        self.pending.len() + self.event.data.len()
    }

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

    /// What a client makes of `wire` when it comes in these parts: id, kind, data.
    fn events(parts: &[&[u8]]) -> Vec<(String, String, String)> {
        let mut parser = Parser::default();
        let mut events = Vec::new();
        for part in parts {
            parser.pending.extend_from_slice(part);
            while let Some(event) = parser.next() {
                events.push((event.id.unwrap_or_default(), event.kind, event.data));
            }
        }
        events
    }

    fn of(id: &str, kind: &str, data: &str) -> (String, String, String) {
        (id.into(), kind.into(), data.into())
    }

    #[test]
    fn events_come_whole_however_they_are_cut_and_comments_are_none() {
        let wire = b": hello\n\nid: 7\nevent: stdout\ndata: {\"text\":\"a: \xc3\xa9\"}\n\n: \n\
            id: 9\n\ndata:y\r\ndata: z\r\n\r\nevent: exit\ndata: {}\n\n";
        let expected =
            [of("7", "stdout", "{\"text\":\"a: é\"}"), of("9", "", "y\nz"), of("9", "exit", "{}")];
        for size in 1..wire.len() {
            let parts: Vec<&[u8]> = wire.chunks(size).collect();
            assert_eq!(events(&parts), expected, "in parts of {size} bytes");
        }
    }

    #[test]
    fn an_event_without_its_end_is_none_yet_and_counts_as_held() {
        let mut parser = Parser::default();
        parser.pending.extend_from_slice(b"data: 12345\nda");
        assert_eq!(parser.next(), None);
        assert_eq!(parser.held(), 7);
    }
}
