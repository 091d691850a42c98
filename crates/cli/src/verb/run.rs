//! `forkd run`: a program in a sandbox of its own, which is removed afterwards.

use std::process::ExitCode;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use forkd_api::{CreateProcess, CreateSandboxes, ExecAnswer, OutputText};
use forkd_client::{Client, ClientError};

use crate::attach::{Collected, End, Input, Joined, Sink};
use crate::console::report::{self, Hinted};
use crate::console::signals::{Caught, Signals};
use crate::console::{output, progress, terminal};
use crate::daemon::connect;
use crate::options::image_program::ImageProgram;
use crate::options::program::{self, Program};
use crate::options::{Global, Network};
use crate::start;

/// For a program that got our signal to end by itself.
const GRACE: Duration = Duration::from_secs(5);

/// Run a program in a new sandbox
///
/// NAME is the tag of a snapshot. If there is no such snapshot, forkd first builds one from the
/// image of that name. If the snapshot was built from an OCI image, ARGS follow its entrypoint and
/// replace its command; without ARGS, its command runs. The program reads your standard input, and
/// you see its output at once. forkd removes the sandbox when the program ends. If you interrupt
/// this command, the program gets the signal and has 5 s to end.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    forkd run python -- python3 -c 'print(6 * 7)'\n  \
    echo 'print(6 * 7)' | forkd run python -- python3 -\n  \
    forkd run py312 -- -c 'print(6 * 7)'   after the entrypoint of an OCI image\n  \
    forkd run python                       a shell on your terminal\n  \
    forkd run python --keep -- pip list    the sandbox stays; its id is printed")]
pub(crate) struct Options {
    /// A snapshot or an image
    name: String,
    #[command(flatten)]
    program: Program,
    /// Give the program your terminal, as `forkd shell` does; the default without ARGS
    #[arg(short, long)]
    tty: bool,
    /// Give the program no input
    #[arg(long, conflicts_with = "tty")]
    no_stdin: bool,
    /// Run ARGS alone, without the entrypoint of the image
    #[arg(long)]
    no_entrypoint: bool,
    /// Keep the sandbox, and print its id on standard error
    #[arg(long)]
    keep: bool,
    #[command(flatten)]
    network: Network,
    /// The program and its arguments; no shell interprets them
    #[arg(last = true, value_name = "ARGS")]
    args: Vec<String>,
}

/// Whether the image of the sandbox has a say in what runs.
#[derive(Clone, Copy)]
enum Image {
    Asked,
    Ignored,
}

/// How the program ended.
enum Ended {
    /// By itself or by a signal that was passed on.
    Program(End),
    /// We were interrupted before it was there, or it did not end in time.
    Caught(Caught),
}

pub(crate) async fn run(global: &Global, options: Options) -> anyhow::Result<ExitCode> {
    let is_interactive = terminal::is_interactive();
    if options.tty && !is_interactive {
        return Err(no_terminal().into());
    }
    let on_terminal = options.tty || options.args.is_empty() && is_interactive;
    let body = options.program.request(options.args);
    let body = CreateProcess {
        stdin: !on_terminal && !options.no_stdin,
        tty: on_terminal.then(terminal::size),
        hold_output: true,
        ..body
    };
    let mut signals = Signals::catch()?;
    let begun = async {
        let client = connect::client(global).await?;
        start::prepare(&client, &options.name).await?;
        anyhow::Ok(client)
    };
    let client = match signals.or(begun).await {
        Ok(client) => client?,
        // A template that is being built goes on to be: others may wait for it too.
        Err(caught) => return Ok(caught.exit()),
    };
    // Not interrupted: what came to be could not be removed without its name.
    let network = options.network.policy();
    let body_of_one = CreateSandboxes { network, ..CreateSandboxes::new(&options.name, 1) };
    let sandbox = start::one(&client, &body_of_one).await?.id;
    let collected = global.json.then(Arc::default);
    let sink = collected.clone().map_or(Sink::Streams, Sink::Memory);
    let image = if options.no_entrypoint { Image::Ignored } else { Image::Asked };
    let ended = in_sandbox(&client, &sandbox, &body, image, sink, &mut signals).await;
    if options.keep {
        report::note(&sandbox);
    } else {
        remove(&client, &sandbox).await?;
    }
    let ended = ended?;
    if let Some(collected) = collected {
        let collected = collected.lock().unwrap_or_else(PoisonError::into_inner);
        print(&sandbox, &ended, &collected)?;
    }
    match ended {
        Ended::Program(end) => end.exit_code(body.timeout_secs),
        Ended::Caught(caught) => Ok(caught.exit()),
    }
}

fn no_terminal() -> Hinted {
    Hinted::usage(
        "standard input and output must be a terminal",
        "name a program after `--`, and leave out --tty",
    )
}

/// As `forkd exec` prints it, with the sandbox.
fn print(sandbox: &str, ended: &Ended, collected: &Collected) -> anyhow::Result<()> {
    let Ended::Program(End::Exited(exit)) = ended else { return Ok(()) };
    let stdout = OutputText::of(collected.stdout.clone());
    let stderr = OutputText::of(collected.stderr.clone());
    let answer = ExecAnswer {
        stdout: stdout.text,
        stderr: stderr.text,
        exit_code: exit.exit_code,
        timed_out: exit.timed_out,
        stdout_base64: stdout.base64,
        stderr_base64: stderr.base64,
        signal: exit.signal,
    };
    let mut answer = serde_json::to_value(answer)?;
    answer["sandbox"] = sandbox.into();
    output::json(&answer)
}

async fn in_sandbox(
    client: &Client,
    sandbox: &str,
    body: &CreateProcess,
    image: Image,
    sink: Sink,
    signals: &mut Signals,
) -> anyhow::Result<Ended> {
    let begun = async {
        let program = match image {
            Image::Asked => ImageProgram::of(client, sandbox).await?,
            Image::Ignored => ImageProgram::default(),
        };
        let args = program.arguments(&body.args);
        if args.is_empty() && body.tty.is_none() {
            return Err(no_terminal().into());
        }
        let body = CreateProcess { args: program::or_shell(args), ..body.clone() };
        anyhow::Ok(client.create_process(sandbox, &body).await?)
    };
    let started = match signals.or(begun).await {
        Ok(started) => started?,
        Err(caught) => return Ok(Ended::Caught(caught)),
    };
    let input = match (&body.tty, body.stdin) {
        (Some(_), _) => Input::Keys,
        (None, true) => Input::Stream,
        (None, false) => Input::None,
    };
    let mut joined = Joined {
        client: client.clone(),
        sandbox: sandbox.to_owned(),
        process: started.id,
        from: Some(0),
        input,
        sink,
    };
    match joined.follow(signals).await? {
        End::Caught(caught) => after_signal(joined, caught, signals).await,
        end => Ok(Ended::Program(end)),
    }
}

/// Passes a signal on and waits for the program's end, until another signal or for a while.
async fn after_signal(
    mut joined: Joined,
    caught: Caught,
    signals: &mut Signals,
) -> anyhow::Result<Ended> {
    joined.client.signal_process(&joined.sandbox, &joined.process, caught.for_guest()).await?;
    joined.input = Input::None;
    match tokio::time::timeout(GRACE, joined.follow(signals)).await {
        Ok(Ok(end @ End::Exited(_))) => Ok(Ended::Program(end)),
        Ok(Err(error)) => Err(error),
        Ok(Ok(_)) | Err(_) => Ok(Ended::Caught(caught)),
    }
}

async fn remove(client: &Client, sandbox: &str) -> anyhow::Result<()> {
    match progress::during("remove the sandbox", client.delete_sandbox(sandbox)).await {
        // Somebody else has removed it.
        Err(ClientError::Api(failure)) if failure.code == "sandbox_not_found" => Ok(()),
        Err(error) => Err(anyhow::Error::new(error).context(format!("remove {sandbox}"))),
        Ok(()) => Ok(()),
    }
}
