//! What is said of each route.

use serde_json::json;

use super::events::Event;
use super::{ContextShown, Execute, NewContext};
use crate::document::operation::{Operation, Schemas};
use crate::failure::{ErrorBody, NoServer};

/// How a request may fail; the body is text.
const FAILS: [u16; 9] = [400, 404, 409, 413, 429, 500, 501, 503, 507];

pub(crate) fn operations(schemas: &mut Schemas) -> Vec<Operation> {
    let [execute, new] = [schemas.of::<Execute>(), schemas.of::<NewContext>()];
    let [context, contexts] = [schemas.of::<ContextShown>(), schemas.list::<ContextShown>()];
    let lines = json!({"application/x-ndjson": {"schema": schemas.of::<Event>()}});
    let text = json!({"type": "string"});
    let open = [
        Operation::new("GET", "/contexts", "Lists contexts.").gives(200, "All of them.", &contexts),
        Operation::new("POST", "/contexts", "Makes a context.").takes(&new).gives(
            200,
            "It is made.",
            &context,
        ),
        Operation::new("POST", "/contexts/{id}/restart", "Starts a context anew.")
            .says(200, "It has forgotten everything."),
        Operation::new("DELETE", "/contexts/{id}", "Ends a context.").says(200, "It is gone."),
    ]
    .map(|it| it.opens_to(&["", "traffic"]));
    let said = "Lines, each with an object of this schema, in ASCII. The connection breaks when \
                the sandbox ends.";
    let code = Operation::new("POST", "/execute", "Runs code and tells what happens.")
        .takes(&execute)
        .gives_content(200, said, &lines)
        .fails(&schemas.of::<ErrorBody>(), &[401])
        .opens_to(&["token"]);
    let health = Operation::new("GET", "/health", "Whether the interpreter is there.")
        .says(200, "It is.")
        .opens_to(&["", "traffic"]);
    let mut all = vec![health];
    all.extend(open.into_iter().chain([code]).map(|it| it.refuses("text/plain", &text, &FAILS)));
    let refused = schemas.of::<NoServer>();
    let for_some = |it: Operation| it.fails(&refused, &[403]);
    all.into_iter().map(|it| for_some(it).at_port(schemas)).collect()
}
