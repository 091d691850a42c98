//! Programs that run in the background of a sandbox: started by one request, followed, fed and
//! ended by others.
//!
//! ```text
//!  agent --> call --> supervisor --> log (1 MiB) --> readers, any number, from any kept offset
//!              ^          |            |
//!              +--credit--+<---room----+
//! ```
//!
//! Guarantees, against any guest:
//! * While a reader is attached nothing that it has not read is dropped: the program is held back.
//!   Without a reader the oldest output is dropped, so that the program never waits.
//! * Memory is bounded: per process one log, one window of credit, and two pieces of input.
//! * A reader always comes to an end: the process's, or the loss of its guest agent.
//! * Output is never cut inside a character of UTF-8, unless the rest of it does not come.
//!
//! Programs outlive the conversation with their guest: a branch's child and a later daemon go on
//! with those that the agent keeps ([`kept`]), from the output on that nobody was given yet.
//!
//! What it does not do: give a child the output that its source's programs wrote before the branch.
//! It is with the source.

mod error;
mod kept;
mod log;
#[expect(clippy::module_inception, reason = "the one process among those who care for it")]
mod process;
mod split;
mod supervise;
mod table;

use std::time::Duration;

use forkd_protocol::{Keep, Reply, Request};
use tokio::sync::mpsc;

pub use error::ProcessError;
pub use log::Stream;
pub use process::{OutputEvent, OutputReader, ProcessEnd, ProcessView};
pub use table::ProcessTable;

use super::agent::millis;
use super::call::{Call, Deadline, InputPiece};
use super::{GuestAgent, GuestError};

/// For a program to be started; generous, because emulation is slow.
const START_DEADLINE: Duration = Duration::from_secs(30);

/// What a program reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessInput {
    /// Nothing.
    Empty,
    /// What it is given while it runs.
    Open,
}

/// How much a terminal shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TerminalSize {
    /// Lines.
    pub rows: u16,
    /// Characters of a line.
    pub cols: u16,
}

/// A program to run in the background.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessRequest {
    /// Program and arguments.
    pub args: Vec<String>,
    /// Added to the agent's default environment.
    pub env: Vec<(String, String)>,
    /// Working directory; the agent's default when absent.
    pub cwd: Option<String>,
    /// `USER[:GROUP]`, names of the guest or numbers; the image's user when absent.
    pub user: Option<String>,
    /// Its standard input; open in any case on a terminal.
    pub input: ProcessInput,
    /// After this time its process group is killed; never when absent.
    pub timeout: Option<Duration>,
    /// The size of its terminal, if it shall have one: all output is standard output then.
    pub terminal: Option<TerminalSize>,
    /// Who follows its output from the beginning.
    pub audience: Audience,
    /// What its starter wants to find with it again, in forks too.
    pub note: Option<String>,
}

/// Whether somebody will read the output of a program that begins to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Audience {
    /// Perhaps nobody: the program does not wait for a reader, and the oldest output is dropped.
    Unknown,
    /// A reader is about to come: until it does nothing is dropped, and the program waits when as
    /// much is there as is kept.
    Expected,
}

impl ProcessRequest {
    /// A program without input and without a limit of time.
    #[must_use]
    pub fn new<T: Into<String>>(args: impl IntoIterator<Item = T>) -> Self {
        Self {
            args: args.into_iter().map(Into::into).collect(),
            env: Vec::new(),
            cwd: None,
            user: None,
            input: ProcessInput::Empty,
            timeout: None,
            terminal: None,
            audience: Audience::Unknown,
            note: None,
        }
    }
}

/// A program that runs.
struct Started {
    /// Its process id in the guest.
    pid: u32,
    /// The request that it is.
    call: Call,
    /// Where its input goes, if it takes any.
    input: Option<mpsc::Sender<InputPiece>>,
    /// What it wrote before, in bytes.
    from: u64,
}

impl GuestAgent {
    async fn start_process(
        &self,
        request: ProcessRequest,
        keep: Option<Keep>,
    ) -> Result<Started, GuestError> {
        self.check_user(request.user.as_deref())?;
        let mut call = self.call("start process", Deadline::after(START_DEADLINE))?;
        let ProcessRequest { args, env, cwd, user, input, timeout, terminal, .. } = request;
        let takes_input = input == ProcessInput::Open || terminal.is_some();
        let (timeout_ms, output_credit) = (timeout.map(millis), call.window());
        call.begin(&match terminal {
            None => {
                let stdin_follows = takes_input;
                Request::Exec {
                    args,
                    env,
                    cwd,
                    user,
                    stdin_follows,
                    timeout_ms,
                    output_credit,
                    keep,
                }
            }
            Some(TerminalSize { rows, cols }) => Request::Terminal {
                args,
                env,
                cwd,
                user,
                timeout_ms,
                output_credit,
                rows,
                cols,
                keep,
            },
        })?;
        let input = takes_input.then(|| {
            // One piece waits here while another one is on its way.
            let (sender, pieces) = mpsc::channel(1);
            call.open_input(pieces);
            sender
        });
        match call.next().await? {
            Reply::Started { pid } => {
                call.set_deadline(Deadline::never());
                Ok(Started { pid, call, input, from: 0 })
            }
            other => Err(call.unexpected(&other)),
        }
    }
}
