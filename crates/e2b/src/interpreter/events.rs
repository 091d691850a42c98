//! What happens while code runs, as lines of JSON that E2B's clients read.
//!
//! Guarantees: a line has no bytes outside ASCII, because clients split lines at characters that
//! JSON leaves as they are, and decode pieces of a line by themselves. Pure.

use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use forkd_engine::guest::{CellEnd, CellError, EvalPart};
use serde_json::{Map, Value, json};

/// Media types that have a field of their own.
const FIELDS: [(&str, &str); 14] = [
    ("text/plain", "text"),
    ("text/html", "html"),
    ("text/markdown", "markdown"),
    ("image/svg+xml", "svg"),
    ("image/png", "png"),
    ("image/jpeg", "jpeg"),
    ("application/pdf", "pdf"),
    ("text/latex", "latex"),
    ("application/json", "json"),
    ("application/javascript", "javascript"),
    ("e2b/data", "data"),
    ("e2b/chart", "chart"),
    ("application/vnd.forkd.table+json", "data"),
    ("application/vnd.forkd.chart+json", "chart"),
];

/// An event as a line.
pub(super) fn line(event: &Value) -> Vec<u8> {
    let mut line = String::new();
    // Only strings hold other characters than ASCII.
    for letter in event.to_string().chars() {
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
pub(super) fn started(execution_count: u64) -> Value {
    json!({"type": "number_of_executions", "execution_count": execution_count})
}

/// It has printed to the stream of this name.
pub(super) fn printed(stream: &str, text: &str) -> Value {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let nanos = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
    json!({"type": stream, "text": text, "timestamp": nanos})
}

/// A value, in all forms that it has.
pub(super) fn result(parts: &[EvalPart], is_main: bool) -> Value {
    let (mut event, mut extra) = (Map::new(), Map::new());
    event.insert("type".to_owned(), "result".into());
    event.insert("is_main_result".to_owned(), is_main.into());
    for EvalPart { mime, data } in parts {
        match FIELDS.iter().find(|(known, _)| known == mime) {
            Some((_, field)) => event.insert((*field).to_owned(), form(mime, data)),
            None => extra.insert(mime.clone(), form(mime, data)),
        };
    }
    if !extra.is_empty() {
        event.insert("extra".to_owned(), extra.into());
    }
    Value::Object(event)
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
pub(super) fn ended(end: &CellEnd) -> Vec<Value> {
    let mut events = Vec::new();
    if !end.value.is_empty() {
        events.push(result(&end.value, true));
    }
    if let Some(CellError { exception, text }) = &end.error {
        let (name, value) = match exception {
            Some((name, value)) => (&**name, &**value),
            None => ("InterpreterEnded", &**text),
        };
        events.push(json!({"type": "error", "name": name, "value": value, "traceback": text}));
    }
    events.push(json!({"type": "end_of_execution"}));
    events
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(result(&parts, true), expected);
    }

    #[test]
    fn a_line_is_ascii_without_a_break_and_says_the_same() {
        let said = "a\nb\u{2028}\u{85}\u{e9}\u{1F600}\\\"";
        let line = line(&printed("stdout", said));
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
            events.map(|event| event["type"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
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
        assert_eq!(ended(&failed)[0], expected);
        assert_eq!(kinds(&CellEnd::default()), ["end_of_execution"]);
    }

    #[test]
    fn only_a_pair_of_quotes_is_taken_off() {
        for (text, shown) in [("'a'", "a"), ("\"a'\"", "a'"), ("'a", "'a"), ("'", "'"), ("1", "1")]
        {
            assert_eq!(unquoted(text), shown);
        }
    }
}
