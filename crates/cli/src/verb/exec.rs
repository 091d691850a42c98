//! `forkd exec`: run a program in a sandbox.

use std::io::Read as _;
use std::process::ExitCode;

use anyhow::Context as _;
use forkd_api::{ExecRequest, OutputText, text_to_bytes};
use forkd_types::limit;

use crate::console::{output, report};
use crate::daemon::connect;
use crate::exit::{self, Exit};
use crate::options::Global;
use crate::options::program::Environment;

/// Run a program in a sandbox
///
/// Prints its output when it has ended. Interrupting this command kills the program.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    forkd exec sb-0123456789ab -- uname -a\n  \
    forkd exec sb-0123456789ab --env LANG=C --cwd /tmp -- sh -c 'echo $LANG'\n  \
    tar c . | forkd exec sb-0123456789ab --stdin -- tar x -C /work")]
pub(crate) struct Options {
    /// The sandbox
    sandbox: String,
    /// Kill the program after this many seconds
    #[arg(long, value_name = "SECS", default_value_t = limit::EXEC_TIMEOUT_DEFAULT.as_secs())]
    timeout_secs: u64,
    #[command(flatten)]
    environment: Environment,
    /// Read all of standard input first, then give it to the program
    #[arg(long)]
    stdin: bool,
    /// The program and its arguments; no shell interprets them
    #[arg(last = true, required = true, value_name = "ARGS")]
    args: Vec<String>,
}

pub(crate) async fn run(global: &Global, options: Options) -> anyhow::Result<ExitCode> {
    let sandbox = options.sandbox.clone();
    let timeout_secs = options.timeout_secs;
    let request = request(options)?;
    let answer = connect::client(global).await?.exec(&sandbox, &request).await?;
    if global.json {
        output::json(&answer)?;
    } else {
        let stdout = text_to_bytes(&answer.stdout, answer.stdout_base64.as_deref());
        let stderr = text_to_bytes(&answer.stderr, answer.stderr_base64.as_deref());
        output::guest_streams(&stdout, &stderr)?;
    }
    if answer.timed_out {
        report::note(&format!("killed the program after {timeout_secs} s"));
        return Ok(Exit::TimedOut.into());
    }
    Ok(exit::of_program(answer.exit_code))
}

fn request(options: Options) -> anyhow::Result<ExecRequest> {
    let (mut stdin, mut stdin_base64) = (None, None);
    if options.stdin {
        let mut bytes = Vec::new();
        std::io::stdin().read_to_end(&mut bytes).context("read standard input")?;
        let wire = OutputText::of(bytes);
        match wire.base64 {
            Some(encoded) => stdin_base64 = Some(encoded),
            None => stdin = Some(wire.text),
        }
    }
    Ok(ExecRequest {
        timeout_secs: options.timeout_secs,
        env: options.environment.env.into_iter().collect(),
        cwd: options.environment.cwd,
        user: options.environment.user,
        stdin,
        stdin_base64,
        ..ExecRequest::new(options.args)
    })
}
