//! What a VMM says on its monitor: after any words the conversation ends, with an answer or an
//! error, and no command takes the reply of another.

use std::io::Write as _;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Long enough for nothing: all is said before the first question.
const DEADLINE: Duration = Duration::from_secs(2);
/// What a socket holds without a reader.
const WORDS_BYTES_MAX: usize = 64 << 10;

/// Everything that the VMM says, from its greeting on.
pub fn check(words: &[u8]) {
    let words = &words[..words.len().min(WORDS_BYTES_MAX)];
    let (ours, mut theirs) = UnixStream::pair().expect("a pair of sockets");
    theirs.write_all(words).expect("the socket holds the words");
    theirs.shutdown(Shutdown::Write).expect("nothing more is said");
    let replies = words.iter().filter(|byte| **byte == b'\n').count();
    let answered = forkd_vmm::fuzzing::converse(ours, DEADLINE);
    assert!(answered < replies.max(1), "{answered} commands were answered by {replies} lines");
}

/// Conversations that go well, with events, refusals and noise between.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    const GREETING: &str = concat!(
        r#"{"QMP":{"version":{"qemu":{"micro":22,"minor":2,"major":7},"package":"x"},"#,
        r#""capabilities":["oob"]}}"#,
    );
    const STOP: &str =
        r#"{"timestamp":{"seconds":1700000000,"microseconds":5},"event":"STOP","data":{}}"#;
    const RESUME: &str =
        r#"{"timestamp":{"seconds":18446744073709551615,"microseconds":5},"event":"RESUME"}"#;
    const STATUS: &str = r#"{"return":{"status":"running","singlestep":false,"running":true}}"#;
    const DONE: &str = r#"{"return":{}}"#;
    const REFUSED: &str = r#"{"error":{"class":"GenericError","desc":"no"}}"#;
    let lines = |lines: &[&str]| (lines.join("\r\n") + "\r\n").into_bytes();
    vec![
        lines(&[GREETING, DONE, STATUS, STOP, DONE, REFUSED, RESUME, DONE, DONE]),
        lines(&[GREETING, DONE, RESUME, STATUS, "", DONE, DONE]),
        lines(&[GREETING, REFUSED]),
        lines(&["HTTP/1.1 400 Bad Request"]),
        lines(&[GREETING, DONE, "\u{0}", "[[[[[[[[", STATUS]),
        Vec::new(),
    ]
}
