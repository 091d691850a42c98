//! What is said of one operation.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::failure::NoServer;

const JSON: &str = "application/json";
const STREAM: &str = "application/connect+json";

/// Statuses of refusals, and what they mean.
const REFUSALS: [(u16, &str); 15] = [
    (400, "A field is wrong, or forkd does not do what it wishes for."),
    (401, "The key, the token or the signature is missing, or not known."),
    (403, "It is not the client's to do."),
    (404, "There is none."),
    (406, "It comes in no form that the client takes."),
    (409, "It is not in the state for that."),
    (413, "It is too large."),
    (416, "The range is beyond its end."),
    (429, "A limit is reached; nothing is done."),
    (500, "It failed."),
    (501, "forkd, or the guest agent of the sandbox, does not do that."),
    (502, "The sandbox does not run, or nothing listens on the port."),
    (503, "It is busy; nothing is done, and asking again helps."),
    (504, "The time of the call is over."),
    (507, "There is no space left."),
];

/// The schemas that operations refer to, by their names.
#[derive(Default)]
pub(crate) struct Schemas(BTreeMap<String, Value>);

impl Schemas {
    /// A reference to the schema of a type.
    pub(crate) fn of<T: ToSchema>(&mut self) -> Value {
        let name = T::name().into_owned();
        let mut found = vec![(name.clone(), T::schema())];
        T::schemas(&mut found);
        for (name, schema) in found {
            let schema = serde_json::to_value(schema).unwrap();
            let known = self.0.entry(name.clone()).or_insert_with(|| schema.clone());
            assert_eq!(*known, schema, "two types are called {name}");
        }
        json!({"$ref": format!("#/components/schemas/{name}")})
    }

    /// The schema of a list.
    pub(crate) fn list<T: ToSchema>(&mut self) -> Value {
        json!({"type": "array", "items": self.of::<T>()})
    }

    pub(super) fn shown(self) -> Value {
        json!(self.0)
    }
}

/// A parameter of the query.
pub(crate) fn parameter(name: &str, description: &str, schema: Value) -> Value {
    json!({"in": "query", "name": name, "description": description, "schema": schema})
}

/// An operation.
pub(crate) struct Operation {
    pub(super) part: &'static str,
    pub(super) method: &'static str,
    pub(super) path: &'static str,
    summary: &'static str,
    parameters: Vec<Value>,
    request: Option<Value>,
    responses: BTreeMap<String, Value>,
    security: Vec<Value>,
}

impl Operation {
    pub(crate) fn new(method: &'static str, path: &'static str, summary: &'static str) -> Self {
        let mut parameters = Vec::new();
        if path.contains("{id}") {
            let schema = json!({"type": "string"});
            parameters
                .push(json!({"in": "path", "name": "id", "required": true, "schema": schema}));
        }
        Self {
            part: "",
            method,
            path,
            summary,
            parameters,
            request: None,
            responses: BTreeMap::new(),
            security: Vec::new(),
        }
    }

    pub(super) fn of(mut self, part: &'static str) -> Self {
        self.part = part;
        self
    }

    /// Asks for one of these; an empty one is nothing.
    pub(crate) fn opens_to(mut self, schemes: &[&str]) -> Self {
        let each = schemes.iter().map(|scheme| match *scheme {
            "" => json!({}),
            scheme => json!({scheme: []}),
        });
        self.security.extend(each);
        self
    }

    pub(crate) fn with(mut self, parameters: impl IntoIterator<Item = Value>) -> Self {
        self.parameters.extend(parameters);
        self
    }

    /// Takes a body of JSON; none is as an empty object.
    pub(crate) fn takes(mut self, schema: &Value) -> Self {
        self.request = Some(json!({"content": {JSON: {"schema": schema}}}));
        self
    }

    /// Takes a message in an envelope.
    pub(crate) fn takes_stream(mut self, description: &str, schema: &Value) -> Self {
        let content = json!({STREAM: {"schema": schema}});
        self.request =
            Some(json!({"required": true, "description": description, "content": content}));
        self
    }

    /// Takes bodies of these media types.
    pub(crate) fn takes_content(mut self, content: &Value) -> Self {
        self.request = Some(json!({"required": true, "content": content}));
        self
    }

    /// Answers this status with JSON.
    pub(crate) fn gives(self, status: u16, description: &str, schema: &Value) -> Self {
        self.gives_content(status, description, &json!({JSON: {"schema": schema}}))
    }

    /// Answers this status without a body.
    pub(crate) fn says(mut self, status: u16, description: &str) -> Self {
        self.responses.insert(status.to_string(), json!({"description": description}));
        self
    }

    /// Answers 200 with envelopes, each with such a message. Errors are in the last one.
    pub(crate) fn streams(self, schema: &Value) -> Self {
        let text = "Envelopes: one byte of flags, four of the message's length, the first the \
                    highest, and a message of this schema. In the last, whose flags are 2, it is \
                    an `EndOfStream`. The connection breaks when the sandbox ends.";
        self.gives_content(200, text, &json!({STREAM: {"schema": schema}}))
    }

    /// Answers this status with bodies of these media types.
    pub(crate) fn gives_content(mut self, status: u16, description: &str, content: &Value) -> Self {
        let response = json!({"description": description, "content": content});
        self.responses.insert(status.to_string(), response);
        self
    }

    /// A header of an answer that is a success.
    pub(crate) fn with_header(mut self, name: &str, description: &str) -> Self {
        let header = json!({"description": description, "schema": {"type": "string"}});
        for (_, response) in self.responses.iter_mut().filter(|(status, _)| status.starts_with('2'))
        {
            response["headers"] = json!({name: header});
        }
        self
    }

    /// Refuses with these statuses, and bodies of this media type and schema.
    pub(crate) fn refuses(mut self, media_type: &str, schema: &Value, statuses: &[u16]) -> Self {
        for status in statuses {
            let meaning = REFUSALS.iter().find(|(known, _)| known == status);
            let (_, meaning) = meaning.unwrap_or_else(|| panic!("{status}: what does it mean?"));
            self = self.gives_content(*status, meaning, &json!({media_type: {"schema": schema}}));
        }
        self
    }

    /// The same, with bodies of JSON.
    pub(crate) fn fails(self, schema: &Value, statuses: &[u16]) -> Self {
        self.refuses(JSON, schema, statuses)
    }

    /// Is answered in place of a sandbox, or of a server in it.
    pub(crate) fn at_port(self, schemas: &mut Schemas) -> Self {
        let schema = schemas.of::<NoServer>();
        self.fails(&schema, &[502])
    }

    pub(super) fn shown(&self) -> Value {
        let mut shown = json!({
            "tags": [self.part],
            "summary": self.summary,
            "responses": self.responses,
            "security": self.security,
        });
        if !self.parameters.is_empty() {
            shown["parameters"] = json!(self.parameters);
        }
        if let Some(request) = &self.request {
            shown["requestBody"] = request.clone();
        }
        shown
    }
}
