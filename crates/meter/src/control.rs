//! How a program in the background is asked: one line over a Unix socket, one line as answer.

use std::fs;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

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

/// Asks the program that listens on `socket`.
pub(crate) fn ask(socket: &Path, word: &str) -> io::Result<String> {
    let mut stream = UnixStream::connect(socket).map_err(|error| {
        io::Error::new(error.kind(), format!("{} does not answer: {error}", socket.display()))
    })?;
    writeln!(stream, "{word}")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    match answer.trim_end() {
        "" => Err(io::Error::other(format!("{} does not know `{word}`", socket.display()))),
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

/// Answers until an answer says that it was the last. `None` means that the word is not known.
pub(crate) fn serve(
    listener: &UnixListener,
    socket: &Path,
    mut answer: impl FnMut(&str) -> Option<(String, After)>,
) {
    for stream in listener.incoming() {
        // Somebody who goes away before the answer is not our concern.
        let Ok(mut stream) = stream else { continue };
        let mut word = String::new();
        if BufReader::new(&stream).take(QUESTION_BYTES_MAX).read_line(&mut word).is_err() {
            continue;
        }
        let Some((line, after)) = answer(word.trim()) else { continue };
        if after == After::Stop {
            // Before the answer: whoever reads it may start the next program at once.
            fs::remove_file(socket).ok();
        }
        writeln!(stream, "{line}").ok();
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
            serve(&listener, &path, |word| match word {
                "count" => Some(("7".to_owned(), After::Continue)),
                "stop" => Some(("bye".to_owned(), After::Stop)),
                _ => None,
            });
        });
        assert_eq!(ask(&socket, "count").unwrap(), "7");
        assert!(listen(&socket).unwrap_err().contains("runs already"));
        assert!(ask(&socket, "dance").unwrap_err().to_string().contains("dance"));
        assert_eq!(ask(&socket, "stop").unwrap(), "bye");
        assert!(listen(&socket).is_ok(), "the socket is gone before the last answer comes");
        program.join().unwrap();
    }

    #[test]
    fn nobody_there_is_an_error_that_names_the_socket() {
        let error = ask(Path::new("/nonexistent/stall.sock"), "stop").unwrap_err();
        assert!(error.to_string().contains("stall.sock"), "{error}");
    }
}
