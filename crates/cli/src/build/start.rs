//! A start step: a process that runs on, and the wait until it is ready.

use std::time::{Duration, Instant};

use forkd_recipe::{Check, Ready, Settings, Start};
use forkd_types::ProcessState;

use super::machine::Machine;
use crate::console::report::Hinted;

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
        let hint = "build with --keep, and read `forkd process logs` in the sandbox of the step";
        if process.state != ProcessState::Running {
            let code = process.exit_code.map_or("no exit code".to_owned(), |code| code.to_string());
            let message = format!("the process ended before it was ready, with {code}");
            return Err(Hinted::new(message, hint).into());
        }
        if begun.elapsed() > ready.timeout() {
            let message = format!("the process is not ready after {} s", ready.timeout_secs);
            return Err(Hinted::new(message, hint).into());
        }
        tokio::time::sleep(LOOK).await;
    }
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
