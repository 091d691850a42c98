//! What is said of each route.

use serde_json::{Value, json};

use super::files::Written;
use super::filesystem::{AtPath, Entries, ListDirRequest, MoveRequest, OneEntry};
use super::input::{CloseRequest, SendRequest, SignalRequest, StreamedInput, UpdateRequest};
use super::process::{ConnectRequest, ProcessList, ProcessMessage, StartRequest};
use super::watch::{OfWatcher, WatchMessage, Watched, Watcher, WatcherEvents};
use crate::connect::Empty;
use crate::document::operation::{Operation, Schemas, parameter};
use crate::failure::{CallError, ErrorBody};

/// How a call that answers once may fail.
const CALL: [u16; 10] = [400, 401, 403, 404, 409, 429, 500, 501, 503, 504];
/// How a file may fail.
const FILE: [u16; 11] = [400, 401, 403, 404, 409, 413, 429, 500, 501, 503, 507];

pub(crate) fn operations(schemas: &mut Schemas) -> Vec<Operation> {
    let mut all = Vec::new();
    all.extend(files(schemas));
    let mut calls = streams(schemas);
    calls.extend(programs(schemas));
    calls.extend(directories(schemas));
    let names_user = json!({
        "in": "header", "name": "Authorization",
        "description": "`Basic`, with the name of a user and no password: as whom it is done.",
        "schema": {"type": "string"},
    });
    let as_user = |call: Operation| call.with([names_user.clone()]).opens_to(&["token"]);
    all.extend(calls.into_iter().map(as_user));
    all.push(
        Operation::new("GET", "/health", "Whether a sandbox runs.")
            .says(204, "It does.")
            .opens_to(&[""]),
    );
    all.into_iter().map(|it| it.at_port(schemas)).collect()
}

fn files(schemas: &mut Schemas) -> [Operation; 2] {
    let [error, written] = [schemas.of::<ErrorBody>(), schemas.list::<Written>()];
    let text = || json!({"type": "string"});
    let address = [
        parameter("path", "Absolute, or from the home of the user on.", text()),
        parameter("username", "As whom it is done.", text()),
        parameter("signature", "In place of the token.", text()),
        parameter("signature_expiration", "In seconds since 1970.", json!({"type": "integer"})),
    ];
    let bytes = json!({"schema": {"type": "string", "format": "binary"}});
    let part = json!({"type": "string", "format": "binary"});
    let form = json!({"schema": {
        "type": "object", "properties": {"file": {"type": "array", "items": part}},
    }});
    let metadata = json!({
        "in": "header", "name": "X-Metadata-{key}",
        "description": "Said of all files of the upload, and shown with them.",
        "schema": {"type": "string"},
    });
    let header = |name: &str, description: &str| {
        json!({
            "in": "header", "name": name, "description": description,
            "schema": {"type": "string"},
        })
    };
    let wishes = [
        header("Accept-Encoding", "`gzip`, or plain without it."),
        header("Range", "One range in bytes. It comes plain."),
    ];
    let octets = "application/octet-stream";
    [
        Operation::new("GET", "/files", "Reads a file.")
            .with(address.clone().into_iter().chain(wishes))
            .gives_content(200, "Its content.", &json!({octets: bytes}))
            .gives_content(206, "The range of it.", &json!({octets: bytes}))
            .fails(&error, &[406, 416]),
        Operation::new("POST", "/files", "Writes a file, or those of a form under their names.")
            .with(address.into_iter().chain([metadata]))
            .takes_content(&json!({octets: bytes, "multipart/form-data": form}))
            .gives(200, "They are written.", &written),
    ]
    .map(|it| it.fails(&error, &FILE).opens_to(&["token", "signature"]))
}

/// Calls whose answer is a stream. How they fail is in the last message; only what is wrong with
/// the token is a status.
fn streams(schemas: &mut Schemas) -> Vec<Operation> {
    let error = schemas.of::<CallError>();
    let about_program = schemas.of::<ProcessMessage>();
    let call = |path, summary, request: &Value, message: &Value| {
        Operation::new("POST", path, summary)
            .takes_stream("One message, in an envelope.", request)
            .streams(message)
    };
    let input = "Messages in envelopes; the end of the body is the end of the input that is sent.";
    vec![
        call(
            "/process.Process/Start",
            "Starts a program and follows it.",
            &schemas.of::<StartRequest>(),
            &about_program,
        ),
        call(
            "/process.Process/Connect",
            "Follows a program that runs.",
            &schemas.of::<ConnectRequest>(),
            &about_program,
        ),
        call(
            "/filesystem.Filesystem/WatchDir",
            "Follows the changes of a directory.",
            &schemas.of::<Watched>(),
            &schemas.of::<WatchMessage>(),
        ),
        Operation::new(
            "POST",
            "/process.Process/StreamInput",
            "Gives a program input as it comes.",
        )
        .takes_stream(input, &schemas.of::<StreamedInput>())
        .streams(&schemas.of::<Empty>()),
    ]
    .into_iter()
    .map(|it| it.fails(&error, &[401]))
    .collect()
}

/// A call that answers once.
fn call(
    schemas: &mut Schemas,
    path: &'static str,
    summary: &'static str,
    (request, answer): (&Value, &Value),
) -> Operation {
    let call = Operation::new("POST", path, summary).takes(request);
    call.gives(200, "It is done.", answer).fails(&schemas.of::<CallError>(), &CALL)
}

fn programs(schemas: &mut Schemas) -> Vec<Operation> {
    let [empty, list] = [schemas.of::<Empty>(), schemas.of::<ProcessList>()];
    let [input, close] = [schemas.of::<SendRequest>(), schemas.of::<CloseRequest>()];
    let [signal, update] = [schemas.of::<SignalRequest>(), schemas.of::<UpdateRequest>()];
    [
        ("/process.Process/List", "Lists the programs that run.", (&empty, &list)),
        ("/process.Process/SendInput", "Gives a program input.", (&input, &empty)),
        ("/process.Process/CloseStdin", "Ends the input of a program.", (&close, &empty)),
        ("/process.Process/SendSignal", "Sends a signal to a program.", (&signal, &empty)),
        ("/process.Process/Update", "Says how large its terminal is.", (&update, &empty)),
    ]
    .into_iter()
    .map(|(path, summary, bodies)| call(schemas, path, summary, bodies))
    .collect()
}

fn directories(schemas: &mut Schemas) -> Vec<Operation> {
    let [path, entry, empty] =
        [schemas.of::<AtPath>(), schemas.of::<OneEntry>(), schemas.of::<Empty>()];
    let [list, entries] = [schemas.of::<ListDirRequest>(), schemas.of::<Entries>()];
    let [moved, watched] = [schemas.of::<MoveRequest>(), schemas.of::<Watched>()];
    let [which, watcher] = [schemas.of::<OfWatcher>(), schemas.of::<Watcher>()];
    let events = schemas.of::<WatcherEvents>();
    [
        ("/filesystem.Filesystem/Stat", "Shows what is at a path.", (&path, &entry)),
        ("/filesystem.Filesystem/ListDir", "Lists what is in a directory.", (&list, &entries)),
        ("/filesystem.Filesystem/MakeDir", "Makes a directory and those above.", (&path, &entry)),
        ("/filesystem.Filesystem/Move", "Moves a file or a directory.", (&moved, &entry)),
        ("/filesystem.Filesystem/Remove", "Removes what is at a path.", (&path, &empty)),
        ("/filesystem.Filesystem/CreateWatcher", "Watches a directory.", (&watched, &watcher)),
        ("/filesystem.Filesystem/GetWatcherEvents", "What has changed since.", (&which, &events)),
        ("/filesystem.Filesystem/RemoveWatcher", "Watches no longer.", (&which, &empty)),
    ]
    .into_iter()
    .map(|(path, summary, bodies)| call(schemas, path, summary, bodies))
    .collect()
}
