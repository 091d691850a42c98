//! E2B's code interpreter: what would listen on its port in the guest. The interpreters are forkd's
//! own, in guest memory; so a fork has them, with all variables.
//!
//! Guarantees: a client that goes away interrupts its code; output comes as it is printed, and a
//! client that does not read holds up its code alone.
//!
//! Does not do: languages other than Python.

#[cfg(test)]
pub(crate) mod described;
mod events;

use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::time::Duration;

use axum::Json;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::Request;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use forkd_engine::guest::{CellEvent, CellRequest, Context};
use forkd_engine::{EngineError, RunningCell};
use futures_util::future::BoxFuture;
use futures_util::stream;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use self::events::Event;
use crate::connect::json_of;
use crate::envd::at::At;
use crate::failure::{Failure, bad_gateway};
use crate::id;

/// The port that E2B's interpreter in the guest listens on. We answer where nothing does.
pub(crate) const INTERPRETER_PORT: NonZeroU16 = NonZeroU16::new(49_999).unwrap();

/// What is answered to other requests.
const NO_ROUTE: &str = "the interpreter has no such route";

/// A message is held whole. The guest's own limit for code is smaller.
const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// Between two signs of life: a client that has gone is noticed by them.
const KEEPALIVE: Duration = Duration::from_secs(5);

/// Code to run.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[schema(as = ExecuteRequest)]
struct Execute {
    #[serde(default)]
    code: String,
    /// Where it runs, unless in the context that there is by itself.
    context_id: Option<String>,
    /// Python; not together with a context.
    language: Option<String>,
    /// Variables of its environment, while it runs.
    env_vars: Option<BTreeMap<String, String>>,
}

/// A wish for a context.
#[derive(Debug, Default, Deserialize, ToSchema)]
struct NewContext {
    /// Python.
    language: Option<String>,
    /// Where its code begins.
    cwd: Option<String>,
}

/// A context.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Context)]
struct ContextShown {
    id: String,
    /// Always `python`.
    language: &'static str,
    cwd: String,
}

/// A refusal: clients read plain text.
struct Refused(StatusCode, String);

impl From<Failure> for Refused {
    fn from(failure: Failure) -> Self {
        Self(failure.status(), failure.to_string())
    }
}

impl From<EngineError> for Refused {
    fn from(error: EngineError) -> Self {
        let is_unknown = matches!(
            &error,
            EngineError::Guest(forkd_engine::guest::GuestError::Remote { code, .. })
                if code == "context_not_found"
        );
        match is_unknown {
            true => Self(StatusCode::NOT_FOUND, "the context was not found".to_owned()),
            false => Failure::from(error).into(),
        }
    }
}

type Answered<'a> = BoxFuture<'a, Result<Response, Refused>>;

/// A route: all there are, and all that the document describes.
pub(crate) struct Route {
    pub(crate) method: &'static str,
    /// `{id}` in it is a context.
    pub(crate) path: &'static str,
    answer: for<'a> fn(&'a At, &'a str, Body) -> Answered<'a>,
}

macro_rules! route {
    ($method:ident, $path:literal, |$at:pat, $id:pat, $body:pat_param| $answer:expr) => {
        Route {
            method: stringify!($method),
            path: $path,
            answer: |$at, $id, $body| Box::pin($answer),
        }
    };
}

/// All routes.
pub(crate) const ROUTES: &[Route] = &[
    route!(GET, "/health", |_, _, _| async { Ok::<_, Refused>(StatusCode::OK.into_response()) }),
    route!(POST, "/execute", |at, _, body| execute(at, body)),
    route!(GET, "/contexts", |at, _, _| list(at)),
    route!(POST, "/contexts", |at, _, body| make(at, body)),
    route!(POST, "/contexts/{id}/restart", |at, id, _| end(at, id, true)),
    route!(DELETE, "/contexts/{id}", |at, id, _| end(at, id, false)),
];

impl Route {
    /// The context that a path of this route names, or nothing for one that names none.
    fn context_in<'a>(&self, path: &'a str) -> Option<&'a str> {
        let (mut known, mut said, mut context) = (self.path.split('/'), path.split('/'), "");
        loop {
            match (known.next(), said.next()) {
                (None, None) => return Some(context),
                (Some("{id}"), Some(id)) => context = id,
                (Some(known), Some(said)) if known == said => {}
                _ => return None,
            }
        }
    }
}

/// Answers a request for the interpreter of a sandbox that runs. The client may.
pub(crate) async fn answer(at: At, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let (method, path) = (parts.method.as_str(), parts.uri.path());
    let mut routes = ROUTES.iter().filter(|route| route.method == method);
    let found = routes.find_map(|route| Some((route, route.context_in(path)?)));
    let answered = match found {
        Some((route, context)) => (route.answer)(&at, context, body).await,
        None => Err(Refused(StatusCode::NOT_FOUND, NO_ROUTE.to_owned())),
    };
    match answered {
        Ok(answer) => answer,
        // It has ended meanwhile.
        Err(Refused(StatusCode::BAD_GATEWAY, _)) => bad_gateway(&id::shown(&at.id), None),
        Err(Refused(status, text)) => (status, text).into_response(),
    }
}

async fn message<T: DeserializeOwned>(body: Body) -> Result<T, Refused> {
    let bytes = to_bytes(body, MESSAGE_BYTES_MAX).await;
    let bytes = bytes.map_err(|error| Refused(StatusCode::BAD_REQUEST, error.to_string()))?;
    Ok(json_of(&bytes)?)
}

fn check_language(language: Option<&str>) -> Result<(), Refused> {
    match language.map(str::to_ascii_lowercase).as_deref() {
        None | Some("" | "python" | "python3") => Ok(()),
        Some(other) => {
            let other: String = other.chars().take(40).collect();
            let text = format!(
                "forkd runs Python here, not {other}: run it as a command, such as \
                 `node -e CODE`, in a template that has it"
            );
            Err(Refused(StatusCode::INTERNAL_SERVER_ERROR, text))
        }
    }
}

async fn execute(at: &At, body: Body) -> Result<Response, Refused> {
    let Execute { code, context_id, language, env_vars } = message(body).await?;
    if context_id.is_some() && language.is_some() {
        let text = "give a context or a language, not both".to_owned();
        return Err(Refused(StatusCode::BAD_REQUEST, text));
    }
    check_language(language.as_deref())?;
    let record = at.shared.records.get(&at.id).unwrap_or_default();
    let mut env = record.env;
    env.extend(env_vars.into_iter().flatten());
    if env
        .iter()
        .any(|(name, value)| name.is_empty() || has_stop(name, "=\0") || has_stop(value, "\0"))
    {
        let text = "env_vars: a name is empty, or has `=` or a zero byte in it".to_owned();
        return Err(Refused(StatusCode::BAD_REQUEST, text));
    }
    env.insert("E2B_SANDBOX".to_owned(), "true".to_owned());
    env.insert("E2B_SANDBOX_ID".to_owned(), crate::id::shown(&at.id));
    let request = CellRequest { code, context: context_id, env: env.into_iter().collect() };
    let mut cell = at.shared.engine.run_cell(&at.id, request).await?;
    // What the guest refuses is an answer of its own, and no stream.
    let first = cell.next().await?;
    let running =
        Running { cell: Some(cell), first: Some(first), partial: [Vec::new(), Vec::new()] };
    let lines = stream::unfold(running, Running::advance);
    let kind = [(CONTENT_TYPE, "application/x-ndjson")];
    Ok((kind, Body::from_stream(lines)).into_response())
}

fn has_stop(text: &str, stops: &str) -> bool {
    text.contains(|letter| stops.contains(letter))
}

/// Code that runs for a client. Dropping it interrupts the code.
struct Running {
    /// None when all has been said.
    cell: Option<RunningCell>,
    first: Option<CellEvent>,
    /// The beginning of a character at the end of what was printed to each stream.
    partial: [Vec<u8>; 2],
}

impl Running {
    /// The next lines. An error breaks the connection: clients find out by that what became of the
    /// sandbox.
    async fn advance(mut self) -> Option<(Result<Bytes, EngineError>, Self)> {
        let cell = self.cell.as_mut()?;
        let event = match self.first.take() {
            Some(event) => Ok(event),
            None => match tokio::time::timeout(KEEPALIVE, cell.next()).await {
                Ok(event) => event,
                Err(_) => {
                    return Some((Ok(events::line(&Event::Keepalive).into()), self));
                }
            },
        };
        let said = match event {
            Err(error) => {
                self.cell = None;
                return Some((Err(error), self));
            }
            Ok(CellEvent::Started { execution_count }) => vec![events::started(execution_count)],
            Ok(CellEvent::Stdout(data)) => self.printed(0, data),
            Ok(CellEvent::Stderr(data)) => self.printed(1, data),
            Ok(CellEvent::Displayed(parts)) => vec![events::result(&parts, false)],
            Ok(CellEvent::Ended(end)) => {
                self.cell = None;
                events::ended(&end)
            }
        };
        let lines: Vec<u8> = said.iter().flat_map(events::line).collect();
        Some((Ok(lines.into()), self))
    }

    fn printed(&mut self, stream: usize, data: Vec<u8>) -> Vec<Event> {
        let partial = &mut self.partial[stream];
        partial.extend(data);
        let text = whole_characters(partial);
        if text.is_empty() {
            return Vec::new();
        }
        let event = [Event::Stdout, Event::Stderr][stream];
        vec![event(events::printed(text))]
    }
}

/// Takes what is complete of a text that comes in pieces.
fn whole_characters(bytes: &mut Vec<u8>) -> String {
    let rest = match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() => bytes.split_off(error.valid_up_to()),
        _ => Vec::new(),
    };
    let text = String::from_utf8_lossy(bytes).into_owned();
    *bytes = rest;
    text
}

/// `home` is where a context without a directory of its own begins.
fn shown(context: Context, home: &str) -> ContextShown {
    let cwd = context.cwd.unwrap_or_else(|| home.to_owned());
    ContextShown { id: context.id, language: "python", cwd }
}

async fn list(at: &At) -> Result<Response, Refused> {
    let contexts = at.shared.engine.contexts(&at.id).await?;
    let home = at.home(None).await?;
    let shown: Vec<_> = contexts.into_iter().map(|context| shown(context, &home)).collect();
    Ok(Json(shown).into_response())
}

async fn make(at: &At, body: Body) -> Result<Response, Refused> {
    let NewContext { language, cwd } = message(body).await?;
    check_language(language.as_deref())?;
    let home = at.home(None).await?;
    let made = at.shared.engine.make_context(&at.id, cwd).await?;
    Ok(Json(shown(made, &home)).into_response())
}

async fn end(at: &At, id: &str, restart: bool) -> Result<Response, Refused> {
    at.shared.engine.end_context(&at.id, id, restart).await?;
    Ok(StatusCode::OK.into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_character_that_comes_in_pieces_is_told_whole() {
        let mut bytes = Vec::new();
        let mut told = String::new();
        for byte in "a\u{e9}\u{1F600}b".bytes() {
            bytes.push(byte);
            told.push_str(&whole_characters(&mut bytes));
        }
        assert_eq!(told, "a\u{e9}\u{1F600}b");
        let mut wrong = b"a\xFFb".to_vec();
        assert_eq!(whole_characters(&mut wrong), "a\u{FFFD}b");
    }

    #[test]
    fn only_python_is_a_language_and_another_is_named() {
        assert!(check_language(None).is_ok() && check_language(Some("Python")).is_ok());
        let Err(Refused(status, text)) = check_language(Some("java")) else { panic!("refused") };
        assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
        assert!(text.contains("not java"), "{text}");
    }
}
