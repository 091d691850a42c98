//! The Python process and the private socket on which it takes code and gives answers.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use forkd_protocol::{DATA_BYTES_MAX, EvalException, Reply, TEXT_BYTES_MAX, code};
use rustix::event::{PollFd, PollFlags};

use super::wake::notify;
use crate::active::{Active, Refusal};
use crate::environment;
use crate::pipes::{Forwarded, OutputPipe, Stream, drain};
use crate::process::{Exit, Processes};
use crate::sync::lock;
use crate::threads;

const DRIVER: &str = include_str!("driver.py");
/// What the driver needs rarely, and runs then.
const NOTEBOOK: &str = include_str!("notebook.py");
const CHARTS: &str = include_str!("charts.py");

/// Kind and length.
const HEADER_BYTES: usize = 1 + 4;

/// Code, and what is wanted of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cell {
    pub(crate) code: String,
    /// The value is wanted in all its forms.
    pub(crate) parts: bool,
    /// What the code shows is wanted too.
    pub(crate) displays: bool,
    /// The environment while it runs.
    pub(crate) env: Vec<(String, String)>,
}

/// What the interpreter said.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// Nothing yet.
    Pending,
    /// A part of the value; more follows.
    Part(Reply),
    /// `repr` of the last expression.
    Value(String),
    /// Success without a value.
    Nothing,
    /// An exception, and its traceback.
    Error(EvalException, String),
    /// Nothing that it may say: user code got hold of the socket, or closed it.
    Broken,
}

/// A running interpreter.
pub(super) struct Interpreter {
    pid: i32,
    channel: UnixStream,
    stdout: OutputPipe,
    stderr: OutputPipe,
    exit: Arc<Mutex<Option<Exit>>>,
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
    broken: bool,
}

impl Interpreter {
    /// Starts Python in a directory; its end makes `wake` readable.
    pub(super) fn start(
        processes: &Processes,
        wake: &Arc<OwnedFd>,
        directory: Option<&Path>,
    ) -> Result<Self, Refusal> {
        let failed = |error: std::io::Error| {
            Refusal::new(code::EVAL_FAILED, format!("cannot start python3: {error}"))
        };
        let Some(python) = environment::python() else {
            let message = "the image has no python3 in its path; use an image with Python";
            return Err(Refusal::new(code::PYTHON_MISSING, message));
        };
        let (channel, theirs) = UnixStream::pair().map_err(failed)?;
        channel.set_nonblocking(true).map_err(failed)?;
        let (stdout, stdout_end) = OutputPipe::new(Stream::Stdout).map_err(failed)?;
        let (stderr, stderr_end) = OutputPipe::new(Stream::Stderr).map_err(failed)?;
        let user = environment::user(None)
            .map_err(|problem| Refusal::new(code::USER_NOT_FOUND, problem))?;
        let user = user.as_ref();
        let mut command = Command::new(python);
        command
            .args(["-u", "-c", DRIVER, NOTEBOOK, CHARTS])
            .env_clear()
            .envs(environment::variables(user, &[]))
            .current_dir(directory.unwrap_or(&environment::default_directory(user)))
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(stdout_end)
            .stderr(stderr_end);
        environment::become_user(&mut command, user);
        let exit = Arc::new(Mutex::new(None));
        let (told, wake) = (Arc::clone(&exit), Arc::clone(wake));
        let pid = processes
            .spawn(&mut command, move |ended| {
                *lock(&told) = Some(ended);
                notify(&wake);
            })
            .map_err(failed)?;
        Ok(Self {
            pid,
            channel,
            stdout,
            stderr,
            exit,
            outgoing: Vec::new(),
            incoming: Vec::new(),
            broken: false,
        })
    }

    pub(super) fn pid(&self) -> i32 {
        self.pid
    }

    /// How it ended, if it did.
    pub(super) fn exit(&self) -> Option<Exit> {
        *lock(&self.exit)
    }

    /// Hands over a piece of code; [`Interpreter::exchange`] does the rest. With `renewed` the
    /// random generators that are loaded are seeded anew before.
    pub(super) fn submit(&mut self, cell: &Cell, renewed: bool) {
        let variables: Vec<String> =
            cell.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let variables = variables.join("\0");
        // A frame bounds both, and a frame's length fits.
        let length = |text: &str| u32::try_from(text.len()).unwrap_or(u32::MAX).to_le_bytes();
        let flags =
            u8::from(cell.parts) | (u8::from(renewed) << 1) | (u8::from(cell.displays) << 2);
        self.outgoing = length(&cell.code).to_vec();
        self.outgoing.push(flags);
        self.outgoing.extend(length(&variables));
        self.outgoing.extend_from_slice(variables.as_bytes());
        self.outgoing.extend_from_slice(cell.code.as_bytes());
        self.incoming.clear();
    }

    /// Sends and receives what is possible without waiting.
    pub(super) fn exchange(&mut self) -> Answer {
        while !self.outgoing.is_empty() && !self.broken {
            match self.channel.write(&self.outgoing) {
                Ok(count) => drop(self.outgoing.drain(..count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => self.broken = true,
            }
        }
        let mut buffer = [0; 4096];
        while !self.broken && self.incoming.len() <= HEADER_BYTES + TEXT_BYTES_MAX {
            match self.channel.read(&mut buffer) {
                Ok(0) => self.broken = true,
                Ok(count) => self.incoming.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => self.broken = true,
            }
        }
        match parse(&self.incoming) {
            (Answer::Pending, _) if self.broken => Answer::Broken,
            (Answer::Broken, _) => {
                self.broken = true;
                Answer::Broken
            }
            (answer, bytes) => {
                self.incoming.drain(..bytes);
                answer
            }
        }
    }

    /// What to wait for on the private socket.
    pub(super) fn channel_poll(&self) -> Option<PollFd<'_>> {
        let mut wanted = PollFlags::IN;
        wanted.set(PollFlags::OUT, !self.outgoing.is_empty());
        (!self.broken).then(|| PollFd::new(&self.channel, wanted))
    }

    /// Forwards one chunk of each stream.
    pub(super) fn forward_output(
        &mut self,
        active: &Active,
        mut attend: impl FnMut(),
    ) -> [Forwarded; 2] {
        [self.stdout.forward(active, &mut attend), self.stderr.forward(active, &mut attend)]
    }

    /// Throws away what was written when no code ran.
    pub(super) fn discard_output(&mut self) {
        for pipe in [&mut self.stdout, &mut self.stderr] {
            pipe.discard();
        }
    }

    /// Standard output and standard error, while they are open.
    pub(super) fn output_slots(&self) -> [Option<&OwnedFd>; 2] {
        [self.stdout.fd(), self.stderr.fd()]
    }

    pub(super) fn outputs(&self) -> impl Iterator<Item = &OwnedFd> {
        self.output_slots().into_iter().flatten()
    }

    /// Forgets an ended interpreter; programs that it left behind keep their pipes.
    pub(super) fn abandon(self) {
        let pipes = vec![self.stdout, self.stderr];
        if pipes.iter().any(OutputPipe::is_open) {
            // Without a thread the pipes are closed, which is all that can be done.
            threads::start("drain", 64 * 1024, move || drain(pipes)).ok();
        }
    }
}

/// The first answer in `bytes`, and how many of them it is.
fn parse(bytes: &[u8]) -> (Answer, usize) {
    let Some((&[kind, a, b, c, d], text)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
        return (Answer::Pending, 0);
    };
    let length = usize::try_from(u32::from_le_bytes([a, b, c, d])).unwrap_or(usize::MAX);
    if length > TEXT_BYTES_MAX || !b"PRNE".contains(&kind) {
        return (Answer::Broken, 0);
    }
    let Some(content) = text.get(..length) else { return (Answer::Pending, 0) };
    let text = || String::from_utf8_lossy(content).into_owned();
    let answer = match kind {
        b'P' => part(content).map_or(Answer::Broken, Answer::Part),
        b'R' => Answer::Value(text()),
        b'N' => Answer::Nothing,
        _ => error(content),
    };
    (answer, HEADER_BYTES + length)
}

/// The exception's name, what it says, the traceback.
fn error(content: &[u8]) -> Answer {
    let mut words = content.splitn(3, |byte| *byte == 0);
    let mut word = || words.next().map(|word| String::from_utf8_lossy(word).into_owned());
    match (word(), word(), word()) {
        (Some(name), Some(value), Some(traceback)) => {
            Answer::Error(EvalException { name, value }, traceback)
        }
        _ => Answer::Broken,
    }
}

/// Whether the part goes on, which display it is of, whether it is the end of that, the length of
/// its media type, the type, the bytes.
fn part(content: &[u8]) -> Option<Reply> {
    let (&[more, a, b, c, d, last, mime_bytes], rest) = content.split_first_chunk::<7>()?;
    let (mime, data) = rest.split_at_checked(usize::from(mime_bytes))?;
    let mime = std::str::from_utf8(mime).ok()?.to_owned();
    // Otherwise no host would ever have room for it.
    (rest.len() <= DATA_BYTES_MAX).then(|| Reply::EvalPart {
        mime,
        data: data.to_vec(),
        more: more != 0,
        display: u32::from_le_bytes([a, b, c, d]),
        last: last != 0,
    })
}

#[cfg(test)]
mod tests {
    use forkd_protocol::{DATA_BYTES_MAX, EVAL_PARTS_BYTES_MAX, TEXT_BYTES_MAX};

    use super::*;

    #[test]
    fn an_answer_is_read_whole_or_not_at_all() {
        let wire = b"R\x02\0\0\0ok";
        for end in 0..wire.len() {
            assert_eq!(parse(&wire[..end]), (Answer::Pending, 0));
        }
        assert_eq!(parse(wire), (Answer::Value("ok".to_owned()), 7));
        let exception = EvalException { name: "N".to_owned(), value: String::new() };
        let error = Answer::Error(exception, "\u{FFFD}\0".to_owned());
        assert_eq!(parse(b"E\x05\0\0\0N\0\0\xFF\0"), (error, 10));
        assert_eq!(parse(b"E\x02\0\0\0N\0").0, Answer::Broken);
        assert_eq!(parse(b"X\0\0\0\0").0, Answer::Broken);
        assert_eq!(parse(b"R\xFF\xFF\xFF\xFF").0, Answer::Broken);
    }

    #[test]
    fn a_part_has_a_type_and_bytes_and_leaves_what_follows_it() {
        let wire = b"P\x0b\0\0\0\x01\x02\0\0\0\x01\x01t\0\xFF\nN\0\0\0\0";
        let reply = Reply::EvalPart {
            mime: "t".to_owned(),
            data: vec![0, 0xFF, b'\n'],
            more: true,
            display: 2,
            last: true,
        };
        assert_eq!(parse(wire), (Answer::Part(reply), 16));
        assert_eq!(parse(&wire[16..]), (Answer::Nothing, 5));
        for bad in [
            &b"P\x06\0\0\0\0\0\0\0\0\0"[..],
            b"P\x08\0\0\0\0\0\0\0\0\0\x02t",
            b"P\x08\0\0\0\0\0\0\0\0\0\x01\xFF",
        ] {
            assert_eq!(parse(bad).0, Answer::Broken, "{bad:?}");
        }
    }

    /// The value of a line such as `name = 4 * 1024 - 1`.
    fn said_by_the_driver(name: &str) -> usize {
        let line =
            DRIVER.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(" = "));
        let product = |term: &str| -> usize {
            term.split('*').map(|factor| factor.trim().parse::<usize>().unwrap()).product()
        };
        line.unwrap().split('-').map(product).reduce(|left, term| left - term).unwrap()
    }

    #[test]
    fn the_driver_keeps_the_limits_of_the_protocol() {
        let parts = said_by_the_driver("parts_bytes_max");
        assert_eq!(
            parts,
            EVAL_PARTS_BYTES_MAX - DATA_BYTES_MAX,
            "the last piece may be a whole one"
        );
        assert!(said_by_the_driver("part_bytes_max") < DATA_BYTES_MAX);
        assert!(said_by_the_driver("text_bytes_max") < TEXT_BYTES_MAX);
    }
}
