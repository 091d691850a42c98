//! Building a template, with or without telling of its steps.

use std::sync::Arc;

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use forkd_api::BuildEvent;
use forkd_engine::{Engine, NoProgress, ProgressSink, Snapshot, TemplateRequest};
use tokio::io::{AsyncWriteExt as _, DuplexStream};
use tokio::sync::mpsc;
use tokio_util::io::ReaderStream;
use tracing::Instrument as _;

use crate::app::{App, to_the_end};
use crate::failure::Failure;

/// Media type of a stream of JSON lines.
pub(crate) const STREAM_TYPE: &str = "application/x-ndjson";

/// Bytes of the stream that may wait for a slow client.
const STREAM_BUFFER_BYTES: usize = 64 << 10;

/// Hands steps to the task that writes them. There are a few dozen per build at most.
struct Steps(mpsc::UnboundedSender<String>);

impl ProgressSink for Steps {
    fn step(&self, name: &str) {
        // Nobody reads any more when the client is gone; the build goes on.
        self.0.send(name.to_owned()).ok();
    }
}

/// Builds and answers at the end.
pub(crate) async fn plain(engine: Engine, request: TemplateRequest) -> Result<Snapshot, Failure> {
    to_the_end(async move { engine.build_template(request, Arc::new(NoProgress)).await }).await
}

/// Answers with the snapshot that is being written; the build goes on.
pub(crate) fn begun(engine: &Engine, request: TemplateRequest) -> Result<Snapshot, Failure> {
    let begun = engine.begin_template(request, Arc::new(NoProgress))?;
    Ok(begun.snapshot)
}

/// Answers at once with a stream of the steps; its last line is the outcome.
pub(crate) fn streamed(app: App, request: TemplateRequest) -> Response {
    let engine = app.engine.clone();
    let (sender, steps) = mpsc::unbounded_channel();
    let (writer, reader) = tokio::io::duplex(STREAM_BUFFER_BYTES);
    let build = async move {
        let sink: Arc<dyn ProgressSink> = Arc::new(Steps(sender));
        let built = to_the_end(async move { engine.build_template(request, sink).await }).await;
        built.map(|snapshot| app.snapshot(snapshot))
    };
    tokio::spawn(write_events(writer, steps, build).in_current_span());
    let body = Body::from_stream(ReaderStream::new(reader));
    ([(CONTENT_TYPE, STREAM_TYPE)], body).into_response()
}

/// Writes each step as it comes and then what `build` gave.
async fn write_events(
    mut writer: DuplexStream,
    mut steps: mpsc::UnboundedReceiver<String>,
    build: impl Future<Output = Result<forkd_api::Snapshot, Failure>>,
) {
    let mut build = std::pin::pin!(build);
    let outcome = loop {
        tokio::select! {
            biased;
            Some(step) = steps.recv() => write_line(&mut writer, &BuildEvent::Step(step)).await,
            outcome = &mut build => break outcome,
        }
    };
    while let Ok(step) = steps.try_recv() {
        write_line(&mut writer, &BuildEvent::Step(step)).await;
    }
    let last = match outcome {
        Ok(snapshot) => BuildEvent::Snapshot(Box::new(snapshot)),
        Err(failure) => {
            failure.log();
            BuildEvent::Error(failure.body())
        }
    };
    write_line(&mut writer, &last).await;
}

async fn write_line(writer: &mut DuplexStream, event: &BuildEvent) {
    match serde_json::to_vec(event) {
        Ok(mut line) => {
            line.push(b'\n');
            if writer.write_all(&line).await.is_err() {
                tracing::debug!("nobody watches the build any more");
            }
        }
        Err(error) => tracing::error!(%error, "an event cannot be written"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forkd_api::ErrorCode;
    use tokio::io::AsyncReadExt as _;

    async fn lines(read: bool) -> String {
        let (sender, steps) = mpsc::unbounded_channel();
        let (writer, mut reader) = tokio::io::duplex(1024);
        let build = async move {
            Steps(sender.clone()).step("boot");
            tokio::task::yield_now().await;
            Steps(sender).step("warm");
            Err(Failure::new(ErrorCode::WarmFailed, "no"))
        };
        let mut text = String::new();
        if read {
            write_events(writer, steps, build).await;
            reader.read_to_string(&mut text).await.unwrap();
        } else {
            drop(reader);
            write_events(writer, steps, build).await;
        }
        text
    }

    #[tokio::test]
    async fn all_steps_come_before_the_outcome() {
        let text = lines(true).await;
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[..2], [r#"{"step":"boot"}"#, r#"{"step":"warm"}"#]);
        assert!(lines[2].starts_with(r#"{"error":{"error":"no","code":"warm_failed""#), "{text}");
    }

    #[tokio::test]
    async fn a_build_ends_although_nobody_reads_its_steps() {
        assert_eq!(lines(false).await, "");
    }
}
