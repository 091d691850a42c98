//! Background processes: one method for each route, and the stream of their output.

use forkd_api::{CreateProcess, OutputEvent, Process, SignalName, SignalRequest, TtySize};
use reqwest::Method;
use serde::de::DeserializeOwned;

use crate::client::segment;
use crate::sse::SseStream;
use crate::{Client, ClientError};

/// Whether input follows what is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputEnd {
    /// More may follow.
    Open,
    /// This was the last.
    Eof,
}

impl Client {
    /// `POST /v1/sandboxes/:id/processes`: starts a program in the background.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn create_process(
        &self,
        sandbox: &str,
        body: &CreateProcess,
    ) -> Result<Process, ClientError> {
        self.post(&format!("/v1/sandboxes/{}/processes", segment(sandbox)), body).await
    }

    /// `GET /v1/sandboxes/:id/processes`.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn processes(&self, sandbox: &str) -> Result<Vec<Process>, ClientError> {
        self.get(&format!("/v1/sandboxes/{}/processes", segment(sandbox))).await
    }

    /// `GET /v1/sandboxes/:id/processes/:process`.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn process(&self, sandbox: &str, process: &str) -> Result<Process, ClientError> {
        self.get(&path(sandbox, process, "")).await
    }

    /// `GET /v1/sandboxes/:id/processes/:process/wait`: waits for its end, at the longest for so
    /// many seconds.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn wait_process(
        &self,
        sandbox: &str,
        process: &str,
        timeout_secs: u64,
    ) -> Result<Process, ClientError> {
        let request = self.request(Method::GET, &path(sandbox, process, "/wait"));
        self.json(request.query(&[("timeout_secs", timeout_secs)])).await
    }

    /// `DELETE /v1/sandboxes/:id/processes/:process`: kills it if it runs, and forgets it.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn delete_process(&self, sandbox: &str, process: &str) -> Result<(), ClientError> {
        self.send(self.request(Method::DELETE, &path(sandbox, process, ""))).await.map(drop)
    }

    /// `GET /v1/sandboxes/:id/processes/:process/output`: follows its output from the offset `from`
    /// on, or from the oldest byte that is kept.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn process_output(
        &self,
        sandbox: &str,
        process: &str,
        from: Option<u64>,
    ) -> Result<OutputStream, ClientError> {
        let mut request = self.request(Method::GET, &path(sandbox, process, "/output"));
        if let Some(from) = from {
            request = request.query(&[("from", from)]);
        }
        let events = self.sse(request).await?;
        Ok(OutputStream { events, offset: from.unwrap_or(0) })
    }

    /// `POST /v1/sandboxes/:id/processes/:process/stdin`.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn send_stdin(
        &self,
        sandbox: &str,
        process: &str,
        data: Vec<u8>,
        end: InputEnd,
    ) -> Result<(), ClientError> {
        let mut request = self.request(Method::POST, &path(sandbox, process, "/stdin"));
        if end == InputEnd::Eof {
            request = request.query(&[("eof", "true")]);
        }
        let request = request.header("content-type", "application/octet-stream").body(data);
        self.send(request).await.map(drop)
    }

    /// `POST /v1/sandboxes/:id/processes/:process/signal`.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn signal_process(
        &self,
        sandbox: &str,
        process: &str,
        signal: SignalName,
    ) -> Result<(), ClientError> {
        let request = self.request(Method::POST, &path(sandbox, process, "/signal"));
        self.send(request.json(&SignalRequest { signal })).await.map(drop)
    }

    /// `POST /v1/sandboxes/:id/processes/:process/resize`.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn resize_process(
        &self,
        sandbox: &str,
        process: &str,
        size: TtySize,
    ) -> Result<(), ClientError> {
        let request = self.request(Method::POST, &path(sandbox, process, "/resize"));
        self.send(request.json(&size)).await.map(drop)
    }
}

fn path(sandbox: &str, process: &str, rest: &str) -> String {
    format!("/v1/sandboxes/{}/processes/{}{rest}", segment(sandbox), segment(process))
}

/// The output of one process, event by event.
#[derive(Debug)]
pub struct OutputStream {
    events: SseStream,
    offset: u64,
}

impl OutputStream {
    /// The next event; `None` when the stream is over. Safe to cancel. A stream that ends without
    /// [`OutputEvent::Exit`] or [`OutputEvent::Gone`] was cut off: read on from
    /// [`OutputStream::offset`].
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn next(&mut self) -> Result<Option<OutputEvent>, ClientError> {
        while let Some((id, event)) = next_event(&mut self.events).await? {
            if let Some(offset) = id {
                self.offset = offset;
            }
            if let Some(event) = event {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    /// Offset after the last event.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }
}

/// The next event with its id. The event is `None` when its kind is newer than this client.
pub(crate) async fn next_event<T: DeserializeOwned>(
    events: &mut SseStream,
) -> Result<Option<(Option<u64>, Option<T>)>, ClientError> {
    let Some(raw) = events.next().await? else { return Ok(None) };
    let data: serde_json::Value =
        serde_json::from_str(&raw.data).map_err(|error| events.not_understood(error))?;
    let content = serde_json::json!({ "event": raw.kind, "data": data });
    let id = raw.id.and_then(|id| id.parse().ok());
    Ok(Some((id, serde_json::from_value(content).ok())))
}
