//! `forkd eval`: run Python code in a sandbox.

use std::io::Read as _;
use std::process::ExitCode;

use anyhow::Context as _;
use forkd_api::{EvalRequest, text_to_bytes};
use forkd_types::limit;

use crate::console::{output, report};
use crate::daemon::connect;
use crate::exit::{self, Exit};
use crate::options::Global;

/// Run Python code in a sandbox
///
/// The interpreter keeps its variables between calls. Prints what the code prints, then the value
/// of its last expression.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    forkd eval sb-0123456789ab 'x = 6 * 7'\n  \
    forkd eval sb-0123456789ab x\n  \
    forkd eval sb-0123456789ab - < script.py")]
pub(crate) struct Options {
    /// The sandbox
    sandbox: String,
    /// The code, or `-` to read it from standard input
    #[arg(allow_hyphen_values = true)]
    code: String,
    /// Interrupt the code after this many seconds
    #[arg(long, value_name = "SECS", default_value_t = limit::EXEC_TIMEOUT_DEFAULT.as_secs())]
    timeout_secs: u64,
}

pub(crate) async fn run(global: &Global, options: Options) -> anyhow::Result<ExitCode> {
    let mut code = options.code;
    if code == "-" {
        code.clear();
        std::io::stdin().read_to_string(&mut code).context("read standard input")?;
    }
    let request = EvalRequest { code, timeout_secs: options.timeout_secs };
    let answer = connect::client(global).await?.eval(&options.sandbox, &request).await?;
    if global.json {
        output::json(&answer)?;
    } else {
        let stdout = text_to_bytes(&answer.stdout, answer.stdout_base64.as_deref());
        let stderr = text_to_bytes(&answer.stderr, answer.stderr_base64.as_deref());
        output::guest_streams(&stdout, &stderr)?;
        if let Some(result) = &answer.result {
            output::line(result)?;
        }
        if let Some(error) = &answer.error {
            report::note(report::printable(error).trim_end());
        }
    }
    if answer.timed_out {
        report::note(&format!("interrupted the code after {} s", request.timeout_secs));
        return Ok(Exit::TimedOut.into());
    }
    Ok(exit::of_program(answer.exit_code))
}
