//! Starting programs, and following them.

use std::time::Duration;

use axum::body::Bytes;
use axum::http::HeaderMap;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use forkd_engine::EngineError;
use forkd_engine::guest::{
    Audience, ExecExit, GuestError, OutputEvent, OutputReader, ProcessEnd, ProcessInput,
    ProcessRequest, Stream as Of, TerminalSize,
};
use futures_util::{Stream, stream};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::{Instant, sleep, sleep_until};
use utoipa::ToSchema;

use super::at::{At, keepalive_of, timeout_of};
use super::place::user_of;
use super::said::{ProcessConfig, Said, Selector};
use crate::connect::{Broken, Empty, ended, message};
use crate::failure::{Failure, Kind};

/// Longest word for a program that a client may give it.
const TAG_BYTES_MAX: usize = 1024;

/// A program to start.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(super) struct StartRequest {
    #[serde(default)]
    process: ProcessConfig,
    /// With it, it runs on a terminal.
    pty: Option<Pty>,
    /// A word by which it can be named.
    tag: Option<String>,
    /// Whether it has a standard input; `true` by itself.
    stdin: Option<bool>,
}

/// A terminal.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
pub(super) struct Pty {
    size: Option<PtySize>,
}

/// How large a terminal is, in characters.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
struct PtySize {
    #[serde(default)]
    cols: u32,
    #[serde(default)]
    rows: u32,
}

impl Pty {
    pub(super) fn size(self) -> Result<TerminalSize, Failure> {
        let most = u32::from(forkd_types::limit::TERMINAL_SIDE_MAX);
        let side = |side: u32| u16::try_from(side).ok().filter(|_| (1..=most).contains(&side));
        let size = self.size.and_then(|size| Some((side(size.rows)?, side(size.cols)?)));
        let wrong = || Failure::field("pty.size", &format!("each side must be 1 to {most}"));
        let (rows, cols) = size.ok_or_else(wrong)?;
        Ok(TerminalSize { rows, cols })
    }
}

/// A program to follow.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(super) struct ConnectRequest {
    #[serde(default)]
    process: Selector,
}

/// The programs that run.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ProcessList {
    processes: Vec<ProcessInfo>,
}

/// A program that runs.
#[derive(Debug, Serialize, ToSchema)]
struct ProcessInfo {
    config: ProcessConfig,
    pid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    tag: Option<String>,
}

/// A message about a program that a client follows.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ProcessMessage {
    event: ProcessEvent,
}

/// What happens to a program: `start` first, and `end` last.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum ProcessEvent {
    Start(ProcessStart),
    Data(Output),
    End(End),
    /// Nothing: a sign of life.
    Keepalive(Empty),
}

/// It runs.
#[derive(Debug, Serialize, ToSchema)]
struct ProcessStart {
    pid: u32,
}

/// What a program has written, in base64.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ProcessOutput)]
enum Output {
    Stdout(String),
    Stderr(String),
    Pty(String),
}

/// How a program has ended.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = ProcessEnd)]
struct End {
    /// -1 if a signal has ended it.
    exit_code: i32,
    /// Whether it has ended by itself.
    exited: bool,
    /// `exit status N` or `signal: NAME`.
    status: String,
    /// The same, unless all is well.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    error: Option<String>,
}

/// What E2B lets each program find.
fn environment(at: &At, config: &ProcessConfig, user: Option<&str>) -> Vec<(String, String)> {
    let record = at.shared.records.get(&at.id).unwrap_or_default();
    let mut all: Vec<(String, String)> = Vec::new();
    let mut set = |name: &str, value: &str| {
        all.retain(|(known, _)| known != name);
        all.push((name.to_owned(), value.to_owned()));
    };
    if let Some(user) = user {
        set("USER", user);
        set("LOGNAME", user);
    }
    for (name, value) in &record.env {
        set(name, value);
    }
    set("E2B_SANDBOX", "true");
    set("E2B_SANDBOX_ID", &crate::id::shown(&at.id));
    set("E2B_TEMPLATE_ID", &record.template);
    for (name, value) in &config.envs {
        set(name, value);
    }
    all
}

/// A program that cannot be started is the client's to know, in words that say what is missing.
fn explained(error: EngineError, cmd: &str) -> Failure {
    if let EngineError::Guest(GuestError::Remote { code, .. }) = &error
        && code == "exec_not_found"
    {
        let cmd: String = cmd.chars().take(80).collect();
        let text = format!(
            "the image of this sandbox has no `{cmd}`; E2B's clients run commands with \
             `/bin/bash`, so make the template from an image that has it"
        );
        return Failure::new(Kind::InvalidArgument, text);
    }
    Failure::from(error)
}

pub(super) async fn start(
    at: &At,
    headers: &HeaderMap,
    request: StartRequest,
) -> Result<impl Stream<Item = Result<Bytes, Broken>> + Send + use<>, Failure> {
    let StartRequest { process: config, pty, tag, stdin } = request;
    if config.cmd.is_empty() {
        return Err(Failure::field("process.cmd", "is missing"));
    }
    if tag.as_ref().is_some_and(|tag| tag.len() > TAG_BYTES_MAX) {
        return Err(Failure::field("tag", "is too long"));
    }
    let user = user_of(headers)?;
    let cwd = match config.cwd.as_deref().filter(|cwd| !cwd.is_empty()) {
        Some(cwd) => Some(at.path(cwd, user.as_deref()).await?),
        None => None,
    };
    let timeout = timeout_of(headers);
    let env = environment(at, &config, user.as_deref());
    let said = Said { config, tag, on_terminal: pty.is_some() };
    let config = &said.config;
    let request = ProcessRequest {
        args: std::iter::once(&config.cmd).chain(&config.args).cloned().collect(),
        env,
        cwd,
        user,
        input: if stdin == Some(false) { ProcessInput::Empty } else { ProcessInput::Open },
        timeout,
        terminal: pty.map(Pty::size).transpose()?,
        audience: Audience::Expected,
        note: said.note(),
    };
    let (engine, id) = (at.shared.engine.clone(), at.id.clone());
    let started = async move { engine.start_process(&id, request).await };
    let started = tokio::spawn(started).await;
    let started = started.map_err(|_| Failure::new(Kind::Internal, "a task died"))?;
    // It may be a server.
    at.shared.listening.changed(&at.id);
    let view = started.map_err(|error| explained(error, &config.cmd))?;
    let reader = at.shared.engine.process_output(&at.id, &view.id, Some(0)).await?;
    Ok(followed(Follow::new(reader, view.pid, pty.is_some(), timeout, headers)))
}

pub(super) async fn connect(
    at: &At,
    headers: &HeaderMap,
    request: ConnectRequest,
) -> Result<impl Stream<Item = Result<Bytes, Broken>> + Send + use<>, Failure> {
    let view = at.process(&request.process).await?;
    let timeout = timeout_of(headers);
    // What it wrote before went to others.
    let reader = at.shared.engine.process_output(&at.id, &view.id, Some(view.output_to)).await?;
    let on_terminal = Said::of(&view).is_some_and(|said| said.on_terminal);
    Ok(followed(Follow::new(reader, view.pid, on_terminal, timeout, headers)))
}

pub(super) async fn list(at: &At, _: &HeaderMap, _: Value) -> Result<ProcessList, Failure> {
    let all = at.shared.engine.processes(&at.id).await?;
    let shown = all.into_iter().filter(|view| view.end.is_none()).map(|view| {
        let (config, tag) = match Said::of(&view) {
            Some(said) => (said.config, said.tag),
            None => {
                let mut args = view.args.into_iter();
                let cmd = args.next().unwrap_or_default();
                let args = args.collect();
                (ProcessConfig { cmd, args, ..ProcessConfig::default() }, None)
            }
        };
        ProcessInfo { config, pid: view.pid, tag }
    });
    Ok(ProcessList { processes: shown.collect() })
}

/// What a stream has told so far.
enum Told {
    Nothing,
    Start,
    End,
    All,
}

/// A program that a client follows.
struct Follow {
    reader: OutputReader,
    pid: u32,
    on_terminal: bool,
    deadline: Option<Instant>,
    keepalive: Duration,
    told: Told,
}

impl Follow {
    fn new(
        reader: OutputReader,
        pid: u32,
        on_terminal: bool,
        timeout: Option<Duration>,
        headers: &HeaderMap,
    ) -> Self {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let keepalive = keepalive_of(headers);
        Self { reader, pid, on_terminal, deadline, keepalive, told: Told::Nothing }
    }

    async fn next(&mut self) -> Option<Result<Bytes, Broken>> {
        match self.told {
            Told::Nothing => {
                self.told = Told::Start;
                return Some(Ok(event(ProcessEvent::Start(ProcessStart { pid: self.pid }))));
            }
            Told::Start => {}
            Told::End => {
                self.told = Told::All;
                return Some(Ok(ended(Ok(()))));
            }
            Told::All => return None,
        }
        let until = self.deadline.unwrap_or_else(Instant::now);
        loop {
            tokio::select! {
                biased;
                next = self.reader.next() => match next {
                    // What was written before somebody came to read.
                    Some(OutputEvent::Lost { .. }) => {}
                    Some(OutputEvent::Data { stream, data, .. }) => {
                        let data = output_of(stream, self.on_terminal, &data);
                        return Some(Ok(event(ProcessEvent::Data(data))));
                    }
                    Some(OutputEvent::Ended(ProcessEnd::Exited(exit))) => {
                        return Some(Ok(self.end(exit)));
                    }
                    Some(OutputEvent::Ended(ProcessEnd::Lost { .. })) | None => {
                        self.told = Told::All;
                        return Some(Err(Broken));
                    }
                },
                () = sleep_until(until), if self.deadline.is_some() => {
                    return Some(Ok(self.out_of_time()));
                }
                () = sleep(self.keepalive) => {
                    return Some(Ok(event(ProcessEvent::Keepalive(Empty {}))));
                }
            }
        }
    }

    fn end(&mut self, exit: ExecExit) -> Bytes {
        if exit.timed_out {
            return self.out_of_time();
        }
        self.told = Told::End;
        event(ProcessEvent::End(end_of(exit)))
    }

    fn out_of_time(&mut self) -> Bytes {
        self.told = Told::All;
        ended(Err(Failure::new(Kind::DeadlineExceeded, "the time of the call is over")))
    }
}

fn followed(follow: Follow) -> impl Stream<Item = Result<Bytes, Broken>> + Send {
    stream::unfold(follow, |mut follow| async move {
        let next = follow.next().await?;
        Some((next, follow))
    })
}

fn event(event: ProcessEvent) -> Bytes {
    message(&ProcessMessage { event })
}

fn output_of(stream: Of, on_terminal: bool, data: &[u8]) -> Output {
    let data = STANDARD.encode(data);
    match (stream, on_terminal) {
        (_, true) => Output::Pty(data),
        (Of::Stdout, false) => Output::Stdout(data),
        (Of::Stderr, false) => Output::Stderr(data),
    }
}

fn end_of(exit: ExecExit) -> End {
    match exit.signal {
        Some(number) => {
            let status = format!("signal: {}", signal_name(number));
            End { exit_code: -1, exited: false, status: status.clone(), error: Some(status) }
        }
        None => {
            let status = format!("exit status {}", exit.exit_code);
            let error = (exit.exit_code != 0).then(|| status.clone());
            End { exit_code: exit.exit_code, exited: true, status, error }
        }
    }
}

fn signal_name(number: i32) -> String {
    let name = match number {
        1 => "hangup",
        2 => "interrupt",
        3 => "quit",
        6 => "aborted",
        9 => "killed",
        11 => "segmentation fault",
        13 => "broken pipe",
        15 => "terminated",
        _ => return number.to_string(),
    };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::document::Document;

    #[test]
    fn an_end_says_how_it_came_in_the_words_that_clients_read() {
        let exit = |exit_code, signal| ExecExit { exit_code, signal, timed_out: false };
        let normal = json!({"exitCode": 0, "exited": true, "status": "exit status 0"});
        assert_eq!(json!(end_of(exit(0, None))), normal);
        assert_eq!(json!(end_of(exit(3, None)))["error"], "exit status 3");
        let killed = json!(end_of(exit(137, Some(9))));
        assert_eq!(killed["exitCode"], -1);
        assert_eq!(killed["exited"], false);
        assert_eq!(killed["status"], "signal: killed");
    }

    #[test]
    fn every_message_about_a_program_is_as_the_document_says() {
        let exit = |exit_code, signal| ExecExit { exit_code, signal, timed_out: false };
        for (about, expected) in [
            (ProcessEvent::Start(ProcessStart { pid: 7 }), json!({"start": {"pid": 7}})),
            (
                ProcessEvent::Data(output_of(Of::Stdout, false, b"a")),
                json!({"data": {"stdout": "YQ=="}}),
            ),
            (
                ProcessEvent::Data(output_of(Of::Stderr, false, b"a")),
                json!({"data": {"stderr": "YQ=="}}),
            ),
            (
                ProcessEvent::Data(output_of(Of::Stderr, true, b"a")),
                json!({"data": {"pty": "YQ=="}}),
            ),
            (
                ProcessEvent::End(end_of(exit(1, None))),
                json!({"end": {
                    "exitCode": 1, "exited": true,
                    "status": "exit status 1", "error": "exit status 1",
                }}),
            ),
            (ProcessEvent::Keepalive(Empty {}), json!({"keepalive": {}})),
        ] {
            let said: Value = serde_json::from_slice(&event(about)[5..]).unwrap();
            assert_eq!(said, json!({"event": expected}));
            assert_eq!(Document::of_crate().check_named("ProcessMessage", &said), Ok(()));
        }
        let config = ProcessConfig { cmd: "/bin/sh".to_owned(), ..ProcessConfig::default() };
        let list = ProcessList { processes: vec![ProcessInfo { config, pid: 7, tag: None }] };
        let said = json!({"processes": [{"config": {"cmd": "/bin/sh"}, "pid": 7}]});
        assert_eq!(json!(list), said);
        assert_eq!(Document::of_crate().check_named("ProcessList", &said), Ok(()));
    }

    #[test]
    fn a_terminal_has_two_sides_within_bounds() {
        let size = |rows, cols| Pty { size: Some(PtySize { cols, rows }) }.size();
        assert_eq!(size(24, 80).unwrap(), TerminalSize { rows: 24, cols: 80 });
        for (rows, cols) in [(0, 80), (24, 0), (70_000, 80)] {
            assert!(size(rows, cols).is_err(), "{rows} {cols}");
        }
        assert!(Pty::default().size().is_err());
    }
}
