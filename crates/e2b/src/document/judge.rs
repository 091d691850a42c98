//! Holds answers to the document.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use jsonschema::Validator;
use serde_json::{Value, json};

use super::{AGENT, CONTROL, INTERPRETER, document};
use crate::Part;

const JSON: &str = "application/json";
/// What is told of a path that no operation has.
const NO_OPERATION: &str = "no operation";

/// A request, as far as it matters.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) part: Part,
    pub(crate) method: String,
    /// Without the query.
    pub(crate) path: String,
}

/// The head of an answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Answered<'a> {
    pub(crate) status: u16,
    /// Empty when there is none.
    pub(crate) media_type: &'a str,
}

/// How the bytes of an answer are read.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Content {
    /// There are none.
    Nothing,
    /// They are not looked at.
    Bytes,
    /// One value of this schema.
    Value(Value),
    /// Envelopes, each with a message of this schema but the last.
    Envelopes(Value),
    /// Lines, each with a value of this schema.
    Lines(Value),
}

/// What an answer is.
#[derive(Debug, Clone)]
pub(crate) struct Expected {
    /// `METHOD /path/{parameter}`.
    pub(crate) operation: String,
    pub(crate) content: Content,
}

/// The document, and what is made of it.
pub(crate) struct Document {
    root: Value,
    /// By schema, as text: making one takes longer than a request.
    validators: Mutex<HashMap<String, Arc<Validator>>>,
}

impl Document {
    /// The one that the crate makes.
    pub(crate) fn of_crate() -> &'static Self {
        static DOCUMENT: OnceLock<Document> = OnceLock::new();
        DOCUMENT.get_or_init(|| Self { root: document(), validators: Mutex::default() })
    }

    pub(crate) fn root(&self) -> &Value {
        &self.root
    }

    /// What the body of an answer must be.
    ///
    /// # Errors
    /// When the document has no such answer; says why.
    pub(crate) fn expects(&self, asked: &Asked, answer: Answered<'_>) -> Result<Expected, String> {
        let Asked { part, method, path } = asked;
        let schema = |name: &str| json!({"$ref": format!("#/components/schemas/{name}")});
        let value = |name: &str| Content::Value(schema(name));
        let tag = match part {
            Part::Control => CONTROL,
            Part::Agent => AGENT,
            Part::Interpreter => INTERPRETER,
            Part::Port | Part::Unclear => {
                let content = match (part, answer.status) {
                    (Part::Unclear, 400) => value("Error"),
                    (Part::Port, 403 | 502) => value("NoServer"),
                    (Part::Port, 200) => Content::Bytes,
                    (_, status) => return Err(format!("{status} to {part:?}")),
                };
                return Ok(Expected { operation: part.name().to_owned(), content });
            }
        };
        let Some((name, operation)) = self.operation(tag, method, path) else {
            let content = match (part, answer.status) {
                (Part::Control, 501) => value("Error"),
                (Part::Agent, 401 | 501) => value("CallError"),
                (Part::Interpreter, 404) => Content::Bytes,
                (Part::Agent | Part::Interpreter, 502) => value("NoServer"),
                (_, status) => return Err(format!("{method} {path} of {tag}: {status}")),
            };
            return Ok(Expected { operation: NO_OPERATION.to_owned(), content });
        };
        let content = content_of(operation, answer).map_err(|what| format!("{name}: {what}"))?;
        Ok(Expected { operation: name, content })
    }

    /// All operations, as `METHOD /path`.
    pub(crate) fn operations(&self) -> Vec<String> {
        let paths = self.root["paths"].as_object().unwrap();
        let all = paths.iter().flat_map(|(path, methods)| {
            let methods = methods.as_object().unwrap().keys();
            methods.map(move |method| format!("{} {path}", method.to_uppercase()))
        });
        all.collect()
    }

    fn operation(&self, tag: &str, method: &str, path: &str) -> Option<(String, &Value)> {
        let paths = self.root["paths"].as_object()?;
        // A literal path is meant before one with a parameter.
        let mut fitting: Vec<_> = paths.iter().filter(|(known, _)| fits(known, path)).collect();
        fitting.sort_by_key(|(path, _)| path.matches('{').count());
        let (known, methods) = fitting.first()?;
        let operation = methods.get(method.to_ascii_lowercase())?;
        let tags = operation["tags"].as_array()?;
        tags.contains(&json!(tag)).then(|| (format!("{method} {known}"), operation))
    }

    /// Whether a value fits a schema.
    ///
    /// # Errors
    /// What does not, and where.
    pub(crate) fn check(&self, schema: &Value, value: &Value) -> Result<(), String> {
        let mut known = self.validators.lock().unwrap_or_else(PoisonError::into_inner);
        let validator = known.entry(schema.to_string()).or_insert_with(|| {
            let whole = json!({"allOf": [schema], "components": self.root["components"]});
            let options = jsonschema::draft202012::options().should_validate_formats(true);
            Arc::new(options.build(&whole).expect("the document's schemas are good"))
        });
        let validator = Arc::clone(validator);
        drop(known);
        validator.validate(value).map_err(|error| {
            let shown: String = error.to_string().chars().take(300).collect();
            format!("{}: {shown}", error.instance_path())
        })
    }

    /// The same, by the name of the schema.
    ///
    /// # Errors
    /// What does not, and where.
    pub(crate) fn check_named(&self, name: &str, value: &Value) -> Result<(), String> {
        self.check(&json!({"$ref": format!("#/components/schemas/{name}")}), value)
    }
}

/// Whether a path of the document is that of a request.
fn fits(documented: &str, asked: &str) -> bool {
    let (mut known, mut given) = (documented.split('/'), asked.split('/'));
    loop {
        match (known.next(), given.next()) {
            (None, None) => return true,
            (Some(known), Some(given)) if known == given => {}
            (Some("{id}"), Some(given)) if !given.is_empty() => {}
            _ => return false,
        }
    }
}

fn content_of(operation: &Value, answer: Answered<'_>) -> Result<Content, String> {
    let Answered { status, media_type } = answer;
    let response = operation["responses"].get(status.to_string());
    let response = response.ok_or_else(|| format!("status {status} is not documented"))?;
    let Some(content) = response.get("content") else {
        let is_none = media_type.is_empty();
        return if is_none { Ok(Content::Nothing) } else { Err(format!("{status} has a body")) };
    };
    let content = content.get(media_type);
    let content =
        content.ok_or_else(|| format!("{status} with {media_type:?} is not documented"))?;
    let schema = content["schema"].clone();
    Ok(match media_type {
        JSON => Content::Value(schema),
        "application/connect+json" => Content::Envelopes(schema),
        "application/x-ndjson" => Content::Lines(schema),
        _ => Content::Bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expects(asked: (Part, &str, &str), answer: (u16, &str)) -> Result<Expected, String> {
        let (part, method, path) = asked;
        let asked = Asked { part, method: method.to_owned(), path: path.to_owned() };
        let answer = Answered { status: answer.0, media_type: answer.1 };
        Document::of_crate().expects(&asked, answer)
    }

    #[test]
    fn an_answer_that_is_not_documented_is_told() {
        let detail = (Part::Control, "GET", "/sandboxes/sb0");
        assert_eq!(expects(detail, (200, JSON)).unwrap().operation, "GET /sandboxes/{id}");
        for (asked, answer, word) in [
            (detail, (201, JSON), "201"),
            (detail, (200, "text/plain"), "text/plain"),
            (detail, (200, ""), "\"\""),
            ((Part::Agent, "GET", "/sandboxes/sb0"), (200, JSON), "of agent"),
            ((Part::Control, "DELETE", "/sandboxes/sb0"), (204, JSON), "has a body"),
            ((Part::Control, "GET", "/volumes"), (404, JSON), "/volumes"),
            ((Part::Port, "GET", "/"), (401, JSON), "401"),
        ] {
            let told = expects(asked, answer).unwrap_err();
            assert!(told.contains(word), "{asked:?}: {told}");
        }
    }

    #[test]
    fn a_value_that_does_not_fit_is_told_with_its_place() {
        let fits = |name: &str, value: Value| Document::of_crate().check_named(name, &value);
        const TIME: &str = "2026-01-02T03:04:05.000006Z";
        let sandbox = json!({
            "templateID": "t", "sandboxID": "s", "clientID": "c", "endAt": TIME, "startedAt": TIME,
            "cpuCount": 1, "memoryMB": 64, "diskSizeMB": 0,
            "state": "running", "envdVersion": "0.6.13", "metadata": {},
        });
        assert_eq!(fits("ListedSandbox", sandbox.clone()), Ok(()));
        for (name, bad) in [
            ("endAt", json!("2026-01-02T03:04:05+00:00")),
            ("endAt", json!("soon, Z")),
            ("endAt", json!(5)),
            ("sandboxID", json!("sb-1")),
            ("cpuCount", json!("1")),
            ("state", json!("starting")),
            ("metadata", Value::Null),
            ("metadata", json!({"a": 1})),
            ("alias", Value::Null),
        ] {
            let mut changed = sandbox.clone();
            changed[name] = bad;
            let told = fits("ListedSandbox", changed).unwrap_err();
            assert!(told.contains(name), "{told}");
        }
        let mut changed = sandbox;
        changed.as_object_mut().unwrap().remove("memoryMB");
        assert!(fits("ListedSandbox", changed).unwrap_err().contains("memoryMB"));
    }
}
