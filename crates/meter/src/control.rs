//! How a program in the background is asked: one line over a Unix socket, one line as answer, both
//! JSON.

use std::fs;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use forkd_meter_protocol::{Question, from_line, to_line};
use serde::Serialize;

/// In memory: nothing of ours reaches the disk.
const DIRECTORY: &str = "/run/forkd-meter";

/// Longest question, in bytes.
const QUESTION_BYTES_MAX: u64 = 256;

/// Whether the program goes on after an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    Continue,
    Stop,
}

/// The socket of a program.
pub(crate) fn socket(program: &str) -> PathBuf {
    Path::new(DIRECTORY).join(format!("{program}.sock"))
}

/// Asks the program that listens on `socket`; the question is one line.
pub(crate) fn ask(socket: &Path, question: &str) -> io::Result<String> {
    let mut stream = UnixStream::connect(socket).map_err(|error| {
        io::Error::new(error.kind(), format!("{} does not answer: {error}", socket.display()))
    })?;
    writeln!(stream, "{question}")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    match answer.trim_end() {
        "" => Err(io::Error::other(format!("{} does not know `{question}`", socket.display()))),
        line => Ok(line.to_owned()),
    }
}

/// Listens on `socket`, in place of one that was left behind.
pub(crate) fn listen(socket: &Path) -> Result<UnixListener, String> {
    if UnixStream::connect(socket).is_ok() {
        return Err(format!("it runs already: {} answers", socket.display()));
    }
    if let Some(directory) = socket.parent() {
        fs::create_dir_all(directory).map_err(|error| format!("create its folder: {error}"))?;
    }
    fs::remove_file(socket).ok();
    UnixListener::bind(socket).map_err(|error| format!("listen on {}: {error}", socket.display()))
}

/// Answers until an answer says that it was the last. `None` means that the question is none for
/// this program.
pub(crate) fn serve<A: Serialize>(
    listener: &UnixListener,
    socket: &Path,
    mut answer: impl FnMut(Question) -> Option<(A, After)>,
) {
    for stream in listener.incoming() {
        // Somebody who goes away before the answer is not our concern.
        let Ok(mut stream) = stream else { continue };
        let mut line = String::new();
        if BufReader::new(&stream).take(QUESTION_BYTES_MAX).read_line(&mut line).is_err() {
            continue;
        }
        let question = from_line(line.trim()).ok();
        let Some((message, after)) = question.and_then(&mut answer) else { continue };
        if after == After::Stop {
            // Before the answer: whoever reads it may start the next program at once.
            fs::remove_file(socket).ok();
        }
        if let Ok(line) = to_line(&message) {
            writeln!(stream, "{line}").ok();
        }
        if after == After::Stop {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_answers_until_it_is_told_to_stop_and_its_name_is_free_then() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("s");
        let listener = listen(&socket).unwrap();
        let path = socket.clone();
        let program = std::thread::spawn(move || {
            serve(&listener, &path, |question| match question {
                Question::CountWritten => Some((7, After::Continue)),
                Question::StopStall => Some((8, After::Stop)),
                Question::DirtyAgain => None,
            });
        });
        assert_eq!(ask(&socket, r#""count_written""#).unwrap(), "7");
        assert!(listen(&socket).unwrap_err().contains("runs already"));
        for unknown in [r#""dirty_again""#, "dance"] {
            assert!(ask(&socket, unknown).unwrap_err().to_string().contains(unknown));
        }
        assert_eq!(ask(&socket, r#""stop_stall""#).unwrap(), "8");
        assert!(listen(&socket).is_ok(), "the socket is gone before the last answer comes");
        program.join().unwrap();
    }

    #[test]
    fn nobody_there_is_an_error_that_names_the_socket() {
        let error = ask(Path::new("/nonexistent/stall.sock"), "x").unwrap_err();
        assert!(error.to_string().contains("stall.sock"), "{error}");
    }
}
