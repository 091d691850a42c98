//! A template build that tells of its steps, line by line.

use forkd_api::BuildEvent;
use reqwest::Response;

use crate::ClientError;

/// Longest line that is accepted, in bytes.
const LINE_BYTES_MAX: usize = 1 << 20;

/// The events of one build, in order.
#[derive(Debug)]
pub struct BuildStream {
    response: Response,
    target: String,
    pending: Vec<u8>,
}

impl BuildStream {
    pub(crate) fn new(response: Response, target: String) -> Self {
        Self { response, target, pending: Vec::new() }
    }

    /// The next event; `None` when the stream is over. A stream that ends without
    /// [`BuildEvent::Snapshot`] or [`BuildEvent::Error`] was cut off: the daemon is gone.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn next(&mut self) -> Result<Option<BuildEvent>, ClientError> {
        loop {
            if let Some(line) = take_line(&mut self.pending) {
                if line.iter().all(u8::is_ascii_whitespace) {
                    continue;
                }
                let event = serde_json::from_slice(&line);
                return event.map(Some).map_err(|error| self.not_understood(error.to_string()));
            }
            if self.pending.len() > LINE_BYTES_MAX {
                return Err(self.not_understood("a line does not end".to_owned()));
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

    fn not_understood(&self, problem: String) -> ClientError {
        let status = self.response.status().as_u16();
        ClientError::NotUnderstood { target: self.target.clone(), status, problem }
    }
}

/// Removes the first complete line from `pending`, without its end.
fn take_line(pending: &mut Vec<u8>) -> Option<Vec<u8>> {
    let end = pending.iter().position(|byte| *byte == b'\n')?;
    let rest = pending.split_off(end + 1);
    let mut line = std::mem::replace(pending, rest);
    line.pop();
    Some(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_whole_however_they_are_cut() {
        let mut pending = b"one\ntw".to_vec();
        assert_eq!(take_line(&mut pending).unwrap(), b"one");
        assert_eq!(take_line(&mut pending), None);
        pending.extend_from_slice(b"o\n");
        assert_eq!(take_line(&mut pending).unwrap(), b"two");
        assert!(pending.is_empty());
    }
}
