//! A start step: a process that runs on, and the wait until it is ready.

use std::time::{Duration, Instant};

use forkd_api::{OutputEvent, Process};
use forkd_recipe::{Check, Ready, Settings, Start};
use forkd_types::ProcessState;

use super::failure::ProgramFailed;
use super::machine::Machine;

/// Between two looks.
const LOOK: Duration = Duration::from_millis(50);

/// Starts the process and waits until it is ready.
pub(super) async fn start(
    machine: &Machine,
    start: &Start,
    settings: &Settings,
) -> anyhow::Result<()> {
    let body = machine.process(&start.command, settings);
    let process = machine.client.create_process(&machine.id, &body).await?.id;
    let Some(ready) = &start.ready else { return Ok(()) };
    let begun = Instant::now();
    loop {
        if is_ready(machine, ready, settings, begun).await? {
            return Ok(());
        }
        let process = machine.client.process(&machine.id, &process).await?;
        let how = if process.state != ProcessState::Running {
            let code = process.exit_code.map_or("no exit code".to_owned(), |code| code.to_string());
            format!("the process ended before it was ready, with {code}")
        } else if begun.elapsed() > ready.timeout() {
            format!("the process is not ready after {} s", ready.timeout_secs)
        } else {
            tokio::time::sleep(LOOK).await;
            continue;
        };
        let wrote = written(machine, &process).await?;
        return Err(ProgramFailed::new(&how, process.exit_code, wrote).into());
    }
}

/// What a process has written until now, as far as it is kept.
async fn written(machine: &Machine, process: &Process) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    if process.output_from == process.output_to {
        return Ok(String::new());
    }
    let from = Some(process.output_from);
    let mut stream = machine.client.process_output(&machine.id, &process.id, from).await?;
    while stream.offset() < process.output_to {
        match stream.next().await? {
            Some(OutputEvent::Stdout(data) | OutputEvent::Stderr(data)) => {
                bytes.extend(data.bytes().unwrap_or_default());
            }
            Some(OutputEvent::Lost { .. }) => {}
            Some(OutputEvent::Exit(_) | OutputEvent::Gone { .. }) | None => break,
        }
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

async fn is_ready(
    machine: &Machine,
    ready: &Ready,
    settings: &Settings,
    begun: Instant,
) -> anyhow::Result<bool> {
    match &ready.check {
        Check::Port(port) => {
            let ports = machine.client.ports(&machine.id).await?;
            Ok(ports.iter().any(|found| found.port == *port))
        }
        Check::Command(command) => {
            let mut body = machine.exec(command, settings);
            let left = ready.timeout().saturating_sub(begun.elapsed());
            body.timeout_secs = left.as_secs().max(1);
            let answer = machine.client.exec(&machine.id, &body).await?;
            Ok(answer.exit_code == 0 && !answer.timed_out)
        }
    }
}
