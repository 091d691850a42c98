//! What the document says of a request and of its answer. Pure.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use forkd_api::CATALOGUE;
use jsonschema::Validator;
use serde_json::{Map, Value, json};

const JSON: &str = "application/json";

/// A request, as far as it is judged.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked<'a> {
    /// `GET` and so on.
    pub(super) method: &'a str,
    /// Without the query.
    pub(super) path: &'a str,
    /// What follows the question mark, or nothing.
    pub(super) query: &'a str,
    /// The body.
    pub(super) body: &'a [u8],
}

/// An answer, as far as it is judged.
#[derive(Debug, Clone, Copy)]
pub(super) struct Answered<'a> {
    /// The status code.
    pub(super) status: u16,
    /// Its media type, without parameters; empty when there is none.
    pub(super) media_type: &'a str,
    /// The body, when it is JSON.
    pub(super) body: &'a [u8],
}

/// `openapi/v1.json`.
#[derive(Debug)]
pub(super) struct Document {
    root: Value,
    /// By schema, as text: compiling one takes longer than a request.
    validators: Mutex<HashMap<String, Arc<Validator>>>,
}

impl Document {
    /// The committed document.
    ///
    /// # Panics
    /// When it is not there.
    pub(super) fn committed() -> Self {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../openapi/v1.json");
        let text = std::fs::read_to_string(path).expect("the document is in the repository");
        Self::new(serde_json::from_str(&text).expect("the document is JSON"))
    }

    fn new(root: Value) -> Self {
        Self { root, validators: Mutex::default() }
    }

    /// What is wrong with a request and its answer, and the operation that it was, as
    /// `METHOD /path/{parameter}`.
    ///
    /// # Errors
    /// In words.
    pub(super) fn judge(&self, asked: &Asked<'_>, answer: &Answered<'_>) -> Result<String, String> {
        let Some((name, operation)) = self.operation(asked) else {
            let refused = matches!(answer.status, 404 | 405) || asked.path == "/openapi.json";
            let name = format!("{} {}", asked.method, asked.path);
            return if refused { Ok(name) } else { Err(format!("{name} is not documented")) };
        };
        let explain = |what: String| format!("{name}: {what}");
        if let Err(what) = self.judge_request(operation, asked)
            && answer.status < 400
        {
            let status = answer.status;
            return Err(explain(format!("answered with {status} although {what}")));
        }
        self.judge_answer(operation, answer).map_err(explain)?;
        Ok(name)
    }

    fn operation(&self, asked: &Asked<'_>) -> Option<(String, &Value)> {
        let paths = self.root.get("paths")?.as_object()?;
        // A literal path is meant before one with parameters: `/files/list`.
        let mut fitting: Vec<_> = paths.iter().filter(|(path, _)| fits(path, asked.path)).collect();
        fitting.sort_by_key(|(path, _)| path.matches('{').count());
        let (path, methods) = fitting.first()?;
        let operation = methods.get(asked.method.to_ascii_lowercase())?;
        Some((format!("{} {path}", asked.method), operation))
    }

    fn judge_request(&self, operation: &Value, asked: &Asked<'_>) -> Result<(), String> {
        let parameters = operation.get("parameters").and_then(Value::as_array);
        let parameters: Vec<&Value> =
            parameters.into_iter().flatten().filter(|known| known["in"] == "query").collect();
        for pair in asked.query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, text) = pair.split_once('=').unwrap_or((pair, ""));
            let known = parameters.iter().find(|known| is_named(known, name));
            let Some(known) = known else { return Err(format!("it has no parameter {name:?}")) };
            self.fits_schema(&known["schema"], &typed(&known["schema"], text))
                .map_err(|what| format!("parameter {name:?}: {what}"))?;
        }
        let missing = parameters.iter().find(|known| {
            let given = |pair: &str| is_named(known, pair.split('=').next().unwrap_or_default());
            known["required"] == true && !asked.query.split('&').any(given)
        });
        if let Some(missing) = missing {
            return Err(format!("parameter {} is missing", missing["name"]));
        }
        let body = &operation["requestBody"];
        if asked.body.is_empty() {
            return if body["required"] == true && self.needs_fields(&body["content"][JSON]) {
                Err("its body is missing".to_owned())
            } else {
                Ok(())
            };
        }
        match body["content"].get(JSON) {
            Some(content) => {
                let value = serde_json::from_slice(asked.body);
                let value: Value = value.map_err(|error| format!("its body: {error}"))?;
                self.fits_schema(&content["schema"], &value).map_err(|what| format!("body: {what}"))
            }
            None if body.is_null() => Err("it takes no body".to_owned()),
            None => Ok(()),
        }
    }

    /// Whether `{}`, which is what no body means, would not do.
    fn needs_fields(&self, content: &Value) -> bool {
        !content.is_null() && self.fits_schema(&content["schema"], &json!({})).is_err()
    }

    fn judge_answer(&self, operation: &Value, answer: &Answered<'_>) -> Result<(), String> {
        let status = answer.status;
        let general = CATALOGUE.iter().any(|entry| {
            entry.status == status && matches!(status, 401 | 403 | 408 | 413 | 415 | 500..)
        });
        let response = match operation["responses"].get(status.to_string()) {
            Some(response) => response,
            None if general => &json!({"content": {JSON: {"schema": {
                "$ref": "#/components/schemas/ErrorBody"
            }}}}),
            None => return Err(format!("status {status} is not documented")),
        };
        let content = response.get("content").and_then(Value::as_object);
        let empty = Map::new();
        let content = content.unwrap_or(&empty);
        if content.is_empty() && answer.media_type.is_empty() {
            return Ok(());
        }
        let media_type = answer.media_type;
        let Some(content) = content.get(media_type) else {
            return Err(format!("{status} with media type {media_type:?} is not documented"));
        };
        if media_type != JSON {
            return Ok(());
        }
        let value = serde_json::from_slice(answer.body);
        let value: Value = value.map_err(|error| format!("{status} whose body is {error}"))?;
        self.fits_schema(&content["schema"], &value)
            .map_err(|what| format!("{status} with a body that does not fit: {what}"))?;
        if status < 400 {
            return Ok(());
        }
        let code = value["code"].as_str().unwrap_or_default();
        let known = CATALOGUE.iter().any(|e| e.code.name() == code && e.status == status);
        if known { Ok(()) } else { Err(format!("{status} with the code {code:?}")) }
    }

    fn fits_schema(&self, schema: &Value, value: &Value) -> Result<(), String> {
        let key = schema.to_string();
        let mut known = self.validators.lock().unwrap_or_else(PoisonError::into_inner);
        let validator = known.entry(key).or_insert_with(|| {
            let whole = json!({"allOf": [schema], "components": self.root["components"]});
            Arc::new(jsonschema::draft202012::new(&whole).expect("the document's schemas are good"))
        });
        let validator = Arc::clone(validator);
        drop(known);
        validator.validate(value).map_err(|error| {
            let shown: String = error.to_string().chars().take(300).collect();
            format!("{}: {shown}", error.instance_path())
        })
    }
}

/// Whether a path of the document is that of a request.
fn fits(documented: &str, asked: &str) -> bool {
    let (mut known, mut given) = (documented.split('/'), asked.split('/'));
    loop {
        match (known.next(), given.next()) {
            (None, None) => return true,
            (Some(known), Some(given)) if known == given => {}
            (Some(known), Some(given)) if known.starts_with('{') && !given.is_empty() => {}
            _ => return false,
        }
    }
}

/// Whether a parameter of the document has this name; `*` at its end stands for anything.
fn is_named(parameter: &Value, name: &str) -> bool {
    let documented = parameter["name"].as_str().unwrap_or_default();
    match documented.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => documented == name,
    }
}

/// A parameter's text as the type that its schema names.
fn typed(schema: &Value, text: &str) -> Value {
    let types = &schema["type"];
    let is =
        |word: &str| types == word || types.as_array().is_some_and(|t| t.contains(&json!(word)));
    if (is("integer") || is("number") || is("boolean"))
        && let Ok(value) = serde_json::from_str::<Value>(text)
        && !value.is_string()
    {
        return value;
    }
    Value::String(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(asked: (&str, &str, &str, &str), answer: (u16, &str)) -> Result<String, String> {
        let (method, path, query, body) = asked;
        let asked = Asked { method, path, query, body: body.as_bytes() };
        let media_type = if answer.1.is_empty() { "" } else { JSON };
        let answer = Answered { status: answer.0, media_type, body: answer.1.as_bytes() };
        Document::committed().judge(&asked, &answer)
    }

    const BRANCH: (&str, &str) = ("POST", "/v1/sandboxes/sb-0123456789ab/branch");
    const NOT_FOUND: &str =
        r#"{"error":"no sandbox sb-0123456789ab","code":"sandbox_not_found","hint":"x"}"#;

    #[test]
    fn a_request_and_an_error_that_are_documented_pass_with_the_name_of_the_operation() {
        let (method, path) = BRANCH;
        let name = judge((method, path, "", r#"{"n":2}"#), (404, NOT_FOUND));
        assert_eq!(name.unwrap(), "POST /v1/sandboxes/{id}/branch");
        assert!(judge(("GET", "/healthz", "", ""), (200, r#"{"ok":true}"#)).is_ok());
        let list = ("GET", "/v1/sandboxes", "metadata.team=a", "");
        assert!(judge(list, (200, "[]")).is_ok());
        assert!(judge(("GET", "/no/such", "", ""), (404, NOT_FOUND)).is_ok());
    }

    #[test]
    fn an_answer_that_is_not_documented_is_told() {
        let (method, path) = BRANCH;
        let asked = (method, path, "", "{}");
        for (answer, word) in [
            ((418, NOT_FOUND), "418"),
            ((404, r#"{"error":"x"}"#), "does not fit"),
            ((404, r#"{"error":"x","code":"no_such_code","hint":"x"}"#), "no_such_code"),
            ((409, NOT_FOUND), "sandbox_not_found"),
            ((201, "{}"), "does not fit"),
            ((201, ""), "media type"),
        ] {
            let error = judge(asked, answer).unwrap_err();
            assert!(error.contains(word) && error.contains("/branch"), "{error}");
        }
        assert!(judge(("GET", "/secret", "", ""), (200, "{}")).is_err());
    }

    #[test]
    fn a_request_that_is_not_allowed_must_be_refused() {
        let refusal = r#"{"error":"x","code":"bad_request","hint":"x"}"#;
        for asked in [
            ("GET", "/v1/sandboxes", "colour=red", ""),
            ("POST", "/v1/sandboxes", "", ""),
            ("POST", "/v1/sandboxes", "", r#"{"snapshot_tag":"t","n":"two"}"#),
            ("POST", "/v1/sandboxes", "", r#"{"snapshot_tag":"t","n":1001}"#),
            ("POST", "/v1/sandboxes", "", r#"{"snapshot_tag""#),
            ("GET", "/v1/operations/op-0123456789ab/wait", "timeout_secs=soon", ""),
        ] {
            assert!(judge(asked, (400, refusal)).is_ok(), "{asked:?}");
            let good = if asked.0 == "GET" { 200 } else { 201 };
            let error = judge(asked, (good, "[]")).unwrap_err();
            assert!(error.contains("although"), "{asked:?}: {error}");
        }
    }

    #[test]
    fn a_literal_path_comes_before_one_with_parameters() {
        assert!(fits("/a/{id}/c", "/a/b/c"));
        assert!(!fits("/a/{id}", "/a/b/c") && !fits("/a/{id}", "/a/"));
    }
}
