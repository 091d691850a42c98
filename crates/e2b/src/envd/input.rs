//! Input of programs, signals to them, and the size of their terminals.

use axum::extract::Request;
use axum::http::HeaderMap;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use forkd_engine::EngineError;
use forkd_engine::guest::{InputPiece, ProcessError, ProcessView};
use futures_util::{StreamExt as _, stream};
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::at::At;
use super::process::Pty;
use super::said::{Said, Selector};
use crate::connect::{Broken, Decoder, Empty, Envelope, ended, json_of, message, streamed};
use crate::failure::{Failure, Kind};

/// Input for a program.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[schema(as = SendInputRequest)]
pub(super) struct SendRequest {
    #[serde(default)]
    process: Selector,
    #[serde(default)]
    input: Input,
}

/// One of the two, in base64.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[schema(as = ProcessInput)]
struct Input {
    stdin: Option<String>,
    pty: Option<String>,
}

/// A program whose input ends.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[schema(as = CloseStdinRequest)]
pub(super) struct CloseRequest {
    #[serde(default)]
    process: Selector,
}

/// A signal for a program.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[schema(as = SendSignalRequest)]
pub(super) struct SignalRequest {
    #[serde(default)]
    process: Selector,
    /// `SIGNAL_SIGKILL` or `SIGNAL_SIGTERM`, or the number of one of them.
    #[serde(default)]
    signal: Value,
}

/// A new size for a program's terminal.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(super) struct UpdateRequest {
    #[serde(default)]
    process: Selector,
    pty: Option<Pty>,
}

/// A message of streamed input. The first one has `start`.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[schema(as = StreamInputRequest)]
pub(super) struct StreamedInput {
    start: Option<StreamedStart>,
    data: Option<StreamedData>,
}

/// For which program the others are.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[schema(as = StreamInputStart)]
struct StreamedStart {
    #[serde(default)]
    process: Selector,
}

/// A piece of input.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[schema(as = StreamInputData)]
struct StreamedData {
    #[serde(default)]
    input: Input,
}

/// Input that the program does not take is E2B's `internal`, and its client's to know.
fn not_taken(error: EngineError) -> Failure {
    match error {
        EngineError::Process(ProcessError::NoInput { .. } | ProcessError::NoTerminal { .. }) => {
            Failure::new(Kind::Internal, "the program takes no such input")
        }
        other => other.into(),
    }
}

async fn give(at: &At, process: &ProcessView, input: Input) -> Result<(), Failure> {
    let on_terminal = Said::of(process).map(|said| said.on_terminal);
    let (text, is_for_terminal) = match (input.stdin, input.pty) {
        (Some(text), None) => (text, false),
        (None, Some(text)) => (text, true),
        _ => return Err(Failure::field("input", "must have one of `stdin` and `pty`")),
    };
    if on_terminal.is_some_and(|on_terminal| on_terminal != is_for_terminal) {
        return Err(Failure::new(Kind::Internal, "the program takes no such input"));
    }
    let data = STANDARD.decode(text).map_err(|_| Failure::field("input", "is no base64"))?;
    if data.is_empty() {
        return Ok(());
    }
    let piece = InputPiece { data, eof: false };
    let given = at.shared.engine.give_process_input(&at.id, &process.id, piece).await;
    given.map_err(not_taken)
}

pub(super) async fn send(at: &At, _: &HeaderMap, ask: SendRequest) -> Result<Empty, Failure> {
    give(at, &at.process(&ask.process).await?, ask.input).await?;
    Ok(Empty {})
}

/// The first message says for which program the others are.
pub(super) async fn stream(at: At, request: Request) -> Response {
    let taken = take(&at, request).await;
    streamed(taken.map(|()| {
        let answer: [Result<_, Broken>; 2] = [Ok(message(&Empty {})), Ok(ended(Ok(())))];
        stream::iter(answer)
    }))
}

async fn take(at: &At, request: Request) -> Result<(), Failure> {
    let mut body = request.into_body().into_data_stream();
    let (mut decoder, mut process) = (Decoder::default(), None);
    loop {
        while let Some(envelope) = decoder.next()? {
            let Envelope::Message(bytes) = envelope else { return Ok(()) };
            let StreamedInput { start, data } = json_of(&bytes)?;
            if let Some(start) = start {
                process = Some(at.process(&start.process).await?);
            }
            if let Some(data) = data {
                let first = || Failure::field("start", "must be in the first message");
                give(at, process.as_ref().ok_or_else(first)?, data.input).await?;
            }
        }
        match body.next().await {
            Some(Ok(bytes)) => decoder.feed(&bytes),
            None if !decoder.is_in_the_middle() => return Ok(()),
            None | Some(Err(_)) => {
                return Err(Failure::new(Kind::InvalidArgument, "the messages broke off"));
            }
        }
    }
}

pub(super) async fn close(at: &At, _: &HeaderMap, ask: CloseRequest) -> Result<Empty, Failure> {
    let process = at.process(&ask.process).await?;
    if Said::of(&process).is_some_and(|said| said.on_terminal) {
        let text = "a terminal has no end of input of its own: send Ctrl+D";
        return Err(Failure::new(Kind::InvalidArgument, text));
    }
    let piece = InputPiece { data: Vec::new(), eof: true };
    match at.shared.engine.give_process_input(&at.id, &process.id, piece).await {
        // It is closed already.
        Ok(()) | Err(EngineError::Process(ProcessError::NoInput { .. })) => Ok(Empty {}),
        Err(error) => Err(error.into()),
    }
}

/// The number of a signal, by its name or its number.
fn signal_of(signal: &Value) -> Result<i32, Failure> {
    match (signal.as_str(), signal.as_i64()) {
        (Some("SIGNAL_SIGKILL"), _) | (_, Some(9)) => Ok(9),
        (Some("SIGNAL_SIGTERM"), _) | (_, Some(15)) => Ok(15),
        _ => Err(Failure::new(Kind::Unimplemented, "signal: must be SIGKILL or SIGTERM")),
    }
}

pub(super) async fn signal(at: &At, _: &HeaderMap, ask: SignalRequest) -> Result<Empty, Failure> {
    let number = signal_of(&ask.signal)?;
    let process = at.process(&ask.process).await?;
    at.shared.engine.signal_process(&at.id, &process.id, number).await?;
    // It may have been a server.
    at.shared.listening.changed(&at.id);
    Ok(Empty {})
}

pub(super) async fn update(at: &At, _: &HeaderMap, ask: UpdateRequest) -> Result<Empty, Failure> {
    let process = at.process(&ask.process).await?;
    if let Some(pty) = ask.pty {
        let size = pty.size()?;
        let resized = at.shared.engine.resize_process(&at.id, &process.id, size).await;
        resized.map_err(not_taken)?;
    }
    Ok(Empty {})
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn two_signals_are_known_by_name_and_number_and_no_other() {
        assert_eq!(signal_of(&json!("SIGNAL_SIGKILL")).unwrap(), 9);
        assert_eq!(signal_of(&json!(15)).unwrap(), 15);
        for other in [json!("SIGNAL_UNSPECIFIED"), json!(0), json!(2), Value::Null] {
            assert_eq!(signal_of(&other).unwrap_err().kind, Kind::Unimplemented, "{other}");
        }
    }
}
