//! Server-sent events: cutting a stream of bytes into events.

use reqwest::Response;

use crate::ClientError;

/// Longest event that is accepted, in bytes.
const EVENT_BYTES_MAX: usize = 8 << 20;

/// One event as it was sent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RawEvent {
    /// Its kind.
    pub(crate) name: String,
    /// Its id; empty when it has none.
    pub(crate) id: String,
    /// Its content.
    pub(crate) data: String,
}

/// The events of one answer, in order.
#[derive(Debug)]
pub(crate) struct SseStream {
    response: Response,
    target: String,
    pending: Vec<u8>,
}

impl SseStream {
    pub(crate) fn new(response: Response, target: String) -> Self {
        Self { response, target, pending: Vec::new() }
    }

    /// The next event; `None` when the stream is over.
    pub(crate) async fn next(&mut self) -> Result<Option<RawEvent>, ClientError> {
        loop {
            if let Some(event) = take_event(&mut self.pending) {
                return Ok(Some(event));
            }
            if self.pending.len() > EVENT_BYTES_MAX {
                return Err(self.not_understood("an event does not end"));
            }
            let chunk = self
                .response
                .chunk()
                .await
                .map_err(|source| ClientError::Broken { target: self.target.clone(), source })?;
            match chunk {
                Some(bytes) => self.pending.extend_from_slice(&bytes),
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

/// Removes the first complete event from `pending`. Comments are skipped.
fn take_event(pending: &mut Vec<u8>) -> Option<RawEvent> {
    loop {
        let end = pending.windows(2).position(|pair| pair == b"\n\n")?;
        let rest = pending.split_off(end + 2);
        let block = std::mem::replace(pending, rest);
        let text = String::from_utf8_lossy(&block);
        let mut event = RawEvent::default();
        for line in text.lines() {
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "event" => value.clone_into(&mut event.name),
                "id" => value.clone_into(&mut event.id),
                "data" => {
                    if !event.data.is_empty() {
                        event.data.push('\n');
                    }
                    event.data.push_str(value);
                }
                // A comment, or something newer than this client.
                _ => {}
            }
        }
        if event != RawEvent::default() {
            return Some(event);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_whole_however_they_are_cut_and_comments_are_none() {
        let wire =
            b":\n\nevent: stdout\nid: 7\ndata: {\"text\":\"a: b\"}\n\n: x\n\ndata: 1\ndata: 2\n\n";
        for size in 1..wire.len() {
            let mut pending = Vec::new();
            let mut events = Vec::new();
            for piece in wire.chunks(size) {
                pending.extend_from_slice(piece);
                events.extend(std::iter::from_fn(|| take_event(&mut pending)));
            }
            assert_eq!(events.len(), 2);
            assert_eq!((events[0].name.as_str(), events[0].id.as_str()), ("stdout", "7"));
            assert_eq!(events[0].data, r#"{"text":"a: b"}"#);
            assert_eq!(events[1].data, "1\n2");
        }
    }
}
