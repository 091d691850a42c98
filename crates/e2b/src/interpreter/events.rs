//! What happens while code runs, as lines of JSON that E2B's clients read.
//!
//! Guarantees: a line has no bytes outside ASCII, because clients split lines at characters that
//! JSON leaves as they are, and decode pieces of a line by themselves. Pure.

use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use forkd_engine::guest::{CellEnd, CellError, EvalPart};
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// A line: something that happens while code runs.
#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schema(as = InterpreterEvent)]
pub(super) enum Event {
    /// First: its turn has come.
    NumberOfExecutions {
        /// From 1 on, in each context.
        execution_count: u64,
    },
    Stdout(Printed),
    Stderr(Printed),
    Result(Box<Shown>),
    /// It has failed.
    Error {
        name: String,
        value: String,
        traceback: String,
    },
    /// Nothing: a sign of life.
    Keepalive,
    /// Last.
    EndOfExecution,
}

/// What was printed.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = InterpreterOutput)]
pub(super) struct Printed {
    text: String,
    /// In nanoseconds since 1970.
    timestamp: u64,
}

/// A value, in all forms that it has. Images and documents are in base64.
#[derive(Debug, Default, Serialize, ToSchema)]
#[schema(as = InterpreterResult)]
pub(super) struct Shown {
    /// Whether it is the value of the last expression, and not something displayed before.
    is_main_result: bool,
    #[serde(flatten)]
    forms: Forms,
    /// Other forms, by their media type.
    #[serde(skip_serializing_if = "Map::is_empty")]
    #[schema(value_type = Object)]
    extra: Map<String, Value>,
}

/// Forms that have a field of their own.
#[derive(Debug, Default, Serialize, ToSchema)]
#[schema(as = InterpreterForms)]
struct Forms {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    text: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    html: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    markdown: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    svg: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    png: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    jpeg: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    pdf: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    latex: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    javascript: Option<Value>,
    /// Any value.
    #[serde(skip_serializing_if = "Option::is_none")]
    json: Option<Value>,
    /// A table: lists by the names of their columns.
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<Value>,
    /// What a chart shows.
    #[serde(skip_serializing_if = "Option::is_none")]
    chart: Option<Value>,
}

/// Where a form goes.
type Field = fn(&mut Forms) -> &mut Option<Value>;

/// Media types that have a field of their own.
const FIELDS: [(&str, Field); 14] = [
    ("text/plain", |forms| &mut forms.text),
    ("text/html", |forms| &mut forms.html),
    ("text/markdown", |forms| &mut forms.markdown),
    ("image/svg+xml", |forms| &mut forms.svg),
    ("image/png", |forms| &mut forms.png),
    ("image/jpeg", |forms| &mut forms.jpeg),
    ("application/pdf", |forms| &mut forms.pdf),
    ("text/latex", |forms| &mut forms.latex),
    ("application/json", |forms| &mut forms.json),
    ("application/javascript", |forms| &mut forms.javascript),
    ("e2b/data", |forms| &mut forms.data),
    ("e2b/chart", |forms| &mut forms.chart),
    ("application/vnd.forkd.table+json", |forms| &mut forms.data),
    ("application/vnd.forkd.chart+json", |forms| &mut forms.chart),
];

/// An event as a line.
pub(super) fn line(event: &Event) -> Vec<u8> {
    let mut line = String::new();
    // Events have nothing that JSON cannot say.
    let text = serde_json::to_string(event).unwrap_or_default();
    // Only strings hold other characters than ASCII.
    for letter in text.chars() {
        match letter {
            ' '..='~' => line.push(letter),
            _ => {
                for unit in letter.encode_utf16(&mut [0; 2]) {
                    line.push_str(&format!("\\u{unit:04x}"));
                }
            }
        }
    }
    line.push('\n');
    line.into_bytes()
}

/// Its turn has come.
pub(super) const fn started(execution_count: u64) -> Event {
    Event::NumberOfExecutions { execution_count }
}

/// It has printed something just now.
pub(super) fn printed(text: String) -> Printed {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Printed { text, timestamp: u64::try_from(since.as_nanos()).unwrap_or(u64::MAX) }
}

/// A value, in all forms that it has.
pub(super) fn result(parts: &[EvalPart], is_main_result: bool) -> Event {
    let mut shown = Shown { is_main_result, ..Shown::default() };
    for EvalPart { mime, data } in parts {
        let form = form(mime, data);
        match FIELDS.iter().find(|(known, _)| known == mime) {
            Some((_, field)) => *field(&mut shown.forms) = Some(form),
            None => drop(shown.extra.insert(mime.clone(), form)),
        }
    }
    Event::Result(Box::new(shown))
}

fn form(mime: &str, data: &[u8]) -> Value {
    let text = || String::from_utf8_lossy(data).into_owned();
    let is_json = mime.ends_with("json") || mime.starts_with("e2b/");
    let is_text = mime.starts_with("text/") || mime.ends_with("xml") || mime.ends_with("script");
    match mime {
        "text/plain" => unquoted(&text()).into(),
        _ if is_json => serde_json::from_slice(data).unwrap_or_else(|_| text().into()),
        _ if is_text => text().into(),
        _ => STANDARD.encode(data).into(),
    }
}

/// Without the quotes of a string's `repr`, as E2B shows it.
fn unquoted(text: &str) -> &str {
    let without = |quote| text.strip_prefix(quote)?.strip_suffix(quote);
    without('\'').or_else(|| without('"')).unwrap_or(text)
}

/// How it ended, in the order in which clients expect it.
pub(super) fn ended(end: &CellEnd) -> Vec<Event> {
    let mut events = Vec::new();
    if !end.value.is_empty() {
        events.push(result(&end.value, true));
    }
    if let Some(CellError { exception, text }) = &end.error {
        let (name, value) = match exception {
            Some((name, value)) => (&**name, &**value),
            None => ("InterpreterEnded", &**text),
        };
        let (name, value, traceback) = (name.to_owned(), value.to_owned(), text.clone());
        events.push(Event::Error { name, value, traceback });
    }
    events.push(Event::EndOfExecution);
    events
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::document::Document;

    fn part(mime: &str, data: &[u8]) -> EvalPart {
        EvalPart { mime: mime.to_owned(), data: data.to_vec() }
    }

    #[test]
    fn each_form_has_its_field_and_others_their_media_type() {
        let parts = [
            part("text/plain", b"'a'"),
            part("text/html", b"<b>"),
            part("image/png", &[0x89, 0]),
            part("application/json", b"{\"a\":1}"),
            part("application/x-own", b"\xFF"),
            part("application/vnd.forkd.chart+json", b"{\"type\":\"pie\"}"),
        ];
        let expected = json!({
            "type": "result", "is_main_result": true, "text": "a", "html": "<b>", "png": "iQA=",
            "json": {"a": 1}, "chart": {"type": "pie"}, "extra": {"application/x-own": "/w=="},
        });
        assert_eq!(json!(result(&parts, true)), expected);
    }

    #[test]
    fn a_line_is_ascii_without_a_break_and_says_the_same() {
        let said = "a\nb\u{2028}\u{85}\u{e9}\u{1F600}\\\"";
        let line = line(&Event::Stdout(printed(said.to_owned())));
        assert!(line.is_ascii());
        assert_eq!(line.iter().position(|byte| *byte == b'\n'), Some(line.len() - 1));
        let read: Value = serde_json::from_slice(&line).unwrap();
        assert_eq!(read["text"], said);
        assert!(read["timestamp"].is_u64());
    }

    #[test]
    fn the_end_tells_the_value_or_what_went_wrong_and_that_it_is_the_end() {
        let kinds = |end: &CellEnd| {
            let events = ended(end).into_iter();
            events
                .map(|event| json!(event)["type"].as_str().unwrap().to_owned())
                .collect::<Vec<_>>()
        };
        let value = CellEnd { value: vec![part("text/plain", b"1")], ..CellEnd::default() };
        assert_eq!(kinds(&value), ["result", "end_of_execution"]);
        let exception = Some(("ValueError".to_owned(), "v".to_owned()));
        let error = CellError { exception, text: "Traceback".to_owned() };
        let failed = CellEnd { error: Some(error), ..CellEnd::default() };
        assert_eq!(kinds(&failed), ["error", "end_of_execution"]);
        let expected = json!({
            "type": "error", "name": "ValueError", "value": "v", "traceback": "Traceback",
        });
        assert_eq!(json!(ended(&failed)[0]), expected);
        assert_eq!(kinds(&CellEnd::default()), ["end_of_execution"]);
    }

    #[test]
    fn every_line_is_as_the_document_says() {
        let mut forms: Vec<_> = FIELDS.iter().map(|(mime, _)| part(mime, b"{}")).collect();
        forms.push(part("application/x-own", b"1"));
        let error = CellError { exception: None, text: "Traceback".to_owned() };
        let end = CellEnd { value: forms, error: Some(error), ..CellEnd::default() };
        let print = |text: &str| printed(text.to_owned());
        let mut events = vec![started(1), Event::Stdout(print("a")), Event::Stderr(print("b"))];
        events.extend([Event::Keepalive, result(&[], false)]);
        events.extend(ended(&end));
        let mut kinds = std::collections::BTreeSet::new();
        for event in events {
            let said: Value = serde_json::from_slice(&line(&event)).unwrap();
            assert_eq!(Document::of_crate().check_named("InterpreterEvent", &said), Ok(()));
            kinds.insert(said["type"].to_string());
        }
        let all = &Document::of_crate().root()["components"]["schemas"]["InterpreterEvent"];
        assert_eq!(kinds.len(), all["oneOf"].as_array().unwrap().len(), "{kinds:?}");
    }

    #[test]
    fn only_a_pair_of_quotes_is_taken_off() {
        for (text, shown) in [("'a'", "a"), ("\"a'\"", "a'"), ("'a", "'a"), ("'", "'"), ("1", "1")]
        {
            assert_eq!(unquoted(text), shown);
        }
    }
}
