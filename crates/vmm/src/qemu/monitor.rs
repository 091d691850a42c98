//! One QMP monitor: typed commands, replies with a deadline, and commands that are sent ahead.
//!
//! QEMU reads a monitor socket one byte at a time, with several system calls for each. So what must
//! be fast is *loaded*: sent except for its last byte, while nothing is at stake. *Firing* it sends
//! that byte. A loaded command that is not needed is *unloaded*: the byte 0xFF can be part of no
//! JSON text and makes QEMU's parser give up what it has.
//!
//! For the same reason a monitor is not connected before it is needed: each handshake costs QEMU
//! 0.4 ms of processor time, and most children are never branched.
//!
//! QEMU answers the commands of one monitor in their order. A reply that did not come in time is
//! still owed: it is read and put aside before the next command's reply is believed.

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use qapi::qmp::QmpCommand;
use serde::Deserialize;
use serde_json::Value;

use crate::VmmError;

/// Longest message that a VMM may send; the longest real ones are a few KiB.
const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// At most this much of an unexpected message is repeated in an error.
const SHOWN_BYTES_MAX: usize = 200;

/// What a monitor is used for. One for each command of the pause window, so that all can be loaded
/// at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Everything outside the pause window.
    General,
    /// `stop`.
    Pause,
    /// `xen-save-devices-state`.
    SaveDeviceState,
    /// `blockdev-snapshot`.
    FreezeDisk,
    /// `cont`.
    Resume,
}

impl Role {
    pub(crate) const COUNT: usize = 5;
    pub(crate) const ALL: [Self; Self::COUNT] =
        [Self::General, Self::Pause, Self::SaveDeviceState, Self::FreezeDisk, Self::Resume];

    /// The name of the monitor's socket in the VM's directory.
    pub(crate) fn socket_name(self) -> &'static str {
        match self {
            Self::General => "qmp.sock",
            Self::Pause => "qmp-pause.sock",
            Self::SaveDeviceState => "qmp-save.sock",
            Self::FreezeDisk => "qmp-freeze.sock",
            Self::Resume => "qmp-resume.sock",
        }
    }
}

/// When the VMM says that it stopped and resumed the vCPUs, in microseconds since the epoch.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Transitions {
    pub(crate) stopped_at_us: Option<u64>,
    pub(crate) resumed_at_us: Option<u64>,
}

/// One QMP monitor.
#[derive(Debug)]
pub(crate) struct Monitor {
    /// Where it listens.
    socket: PathBuf,
    /// The connection, past its handshake.
    stream: Option<UnixStream>,
    /// Received and not yet consumed; at most one message and the beginning of the next.
    received: Vec<u8>,
    /// The final byte of a loaded command.
    loaded: Option<(u8, &'static str)>,
    /// Replies that QEMU owes: to the command under way, and to earlier ones that were given up.
    owed: usize,
    transitions: Transitions,
}

#[derive(Deserialize)]
struct EventStamp {
    event: String,
    timestamp: Stamp,
}

#[derive(Deserialize)]
struct Stamp {
    seconds: u64,
    microseconds: u64,
}

impl Monitor {
    /// The monitor that listens on `socket`. It is not connected yet.
    pub(crate) fn at(socket: PathBuf) -> Self {
        Self {
            socket,
            stream: None,
            received: Vec::new(),
            loaded: None,
            owed: 0,
            transitions: Transitions::default(),
        }
    }

    /// Connects and shakes hands, unless that has been done.
    pub(crate) fn connect(&mut self, deadline: Duration) -> Result<(), VmmError> {
        if self.stream.is_some() {
            return Ok(());
        }
        let failed = |source| VmmError::Monitor { command: "greeting", source };
        let stream = UnixStream::connect(&self.socket).map_err(failed)?;
        self.shake_hands(stream, deadline)
    }

    /// A monitor on a connection that is there, with which it shakes hands.
    pub(crate) fn greet(stream: UnixStream, deadline: Duration) -> Result<Self, VmmError> {
        let mut monitor = Self::at(PathBuf::new());
        monitor.shake_hands(stream, deadline).map(|()| monitor)
    }

    fn shake_hands(&mut self, stream: UnixStream, deadline: Duration) -> Result<(), VmmError> {
        self.stream = Some(stream);
        let shaken = (|| {
            let greeting = self.message("greeting", Instant::now() + deadline, deadline)?;
            if greeting.get("QMP").is_none() {
                return Err(garbage("greeting", greeting.to_string().as_bytes()));
            }
            let handshake = qapi::qmp::qmp_capabilities { enable: None };
            self.execute(&handshake, deadline).map(drop)
        })();
        if shaken.is_err() {
            // Nothing is owed by a connection that is gone.
            *self = Self::at(std::mem::take(&mut self.socket));
        }
        shaken
    }

    /// Sends a command and waits for its reply.
    pub(crate) fn execute<C: QmpCommand>(
        &mut self,
        command: &C,
        deadline: Duration,
    ) -> Result<C::Ok, VmmError> {
        self.load(command)?;
        self.fire::<C>(deadline)
    }

    /// Sends a command together with a descriptor.
    pub(crate) fn execute_with_fd<C: QmpCommand>(
        &mut self,
        command: &C,
        fd: BorrowedFd<'_>,
        deadline: Duration,
    ) -> Result<C::Ok, VmmError> {
        use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
        let bytes = encode(command);
        let fds = [fd];
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&fds));
        let parts = [std::io::IoSlice::new(&bytes)];
        let flags = SendFlags::NOSIGNAL;
        rustix::net::sendmsg(self.stream(C::NAME)?.as_fd(), &parts, &mut ancillary, flags)
            .map_err(|errno| VmmError::Monitor { command: C::NAME, source: errno.into() })?;
        self.owed += 1;
        self.reply::<C>(deadline)
    }

    /// Sends all of a command but its last byte.
    ///
    /// # Panics
    /// When a command is loaded already.
    pub(crate) fn load<C: QmpCommand>(&mut self, command: &C) -> Result<(), VmmError> {
        assert!(self.loaded.is_none(), "one command at a time on a monitor");
        let bytes = encode(command);
        if let [most @ .., last] = bytes.as_slice() {
            self.send(C::NAME, most)?;
            self.loaded = Some((*last, C::NAME));
        }
        Ok(())
    }

    /// Completes the loaded command and waits for its reply.
    pub(crate) fn fire<C: QmpCommand>(&mut self, deadline: Duration) -> Result<C::Ok, VmmError> {
        self.complete::<C>()?;
        self.reply::<C>(deadline)
    }

    /// Completes the loaded command. Its reply is owed.
    pub(crate) fn complete<C: QmpCommand>(&mut self) -> Result<(), VmmError> {
        let loaded = self.loaded.take();
        let (last, _) = loaded
            .filter(|(_, name)| *name == C::NAME)
            .unwrap_or_else(|| panic!("`{}` was not loaded on this monitor", C::NAME));
        self.send(C::NAME, &[last])?;
        self.owed += 1;
        Ok(())
    }

    /// Takes back a loaded command, if there is one.
    pub(crate) fn unload(&mut self, deadline: Duration) -> Result<(), VmmError> {
        let Some((_, name)) = self.loaded.take() else { return Ok(()) };
        self.send(name, b"\xFF\n")?;
        self.owed += 1;
        // The parser's complaint is the reply.
        self.answer(name, deadline).map(drop)
    }

    /// Whether QEMU owes a reply to a command that was given up.
    pub(crate) fn owes_reply(&self) -> bool {
        self.owed > 0
    }

    /// Waits for the replies that are owed. Tells whether the last of them was a success, or
    /// nothing if none was owed.
    pub(crate) fn collect_replies(&mut self, deadline: Duration) -> Result<Option<bool>, VmmError> {
        if self.owed == 0 {
            return Ok(None);
        }
        let late = self.answer("an earlier command", deadline)?;
        Ok(Some(late.get("return").is_some()))
    }

    /// The last transitions that this monitor has heard of.
    pub(crate) fn transitions(&self) -> Transitions {
        self.transitions
    }

    fn send(&mut self, command: &'static str, bytes: &[u8]) -> Result<(), VmmError> {
        self.stream(command)?
            .write_all(bytes)
            .map_err(|source| VmmError::Monitor { command, source })
    }

    fn stream(&self, command: &'static str) -> Result<&UnixStream, VmmError> {
        let source = || std::io::ErrorKind::NotConnected.into();
        self.stream.as_ref().ok_or_else(|| VmmError::Monitor { command, source: source() })
    }

    /// Waits for the reply to the command that was given last.
    pub(crate) fn reply<C: QmpCommand>(&mut self, deadline: Duration) -> Result<C::Ok, VmmError> {
        let message = self.answer(C::NAME, deadline)?;
        match result_in::<C::Ok>(&message) {
            Some(Ok(value)) => Ok(value),
            Some(Err(error)) => {
                Err(VmmError::Refused { command: C::NAME, description: error.desc })
            }
            None => Err(garbage(C::NAME, message.to_string().as_bytes())),
        }
    }

    /// The last reply that is owed. Late ones before it belong to commands that were given up.
    fn answer(&mut self, command: &'static str, deadline: Duration) -> Result<Value, VmmError> {
        let until = Instant::now() + deadline;
        loop {
            let message = self.message(command, until, deadline);
            if let Ok(event) = &message
                && event.get("event").is_some()
            {
                self.note_event(event);
                continue;
            }
            // A line that is not QMP stood where the reply belongs.
            if matches!(message, Ok(_) | Err(VmmError::Garbage { .. })) {
                self.owed = self.owed.saturating_sub(1);
            }
            if message.is_err() || self.owed == 0 {
                return message;
            }
        }
    }

    fn note_event(&mut self, message: &Value) {
        let Ok(event) = EventStamp::deserialize(message) else { return };
        let Stamp { seconds, microseconds } = event.timestamp;
        let at_us = seconds.saturating_mul(1_000_000).saturating_add(microseconds);
        match event.event.as_str() {
            "STOP" => self.transitions.stopped_at_us = Some(at_us),
            "RESUME" => self.transitions.resumed_at_us = Some(at_us),
            _ => {}
        }
    }

    /// The next message of any kind.
    fn message(
        &mut self,
        command: &'static str,
        until: Instant,
        deadline: Duration,
    ) -> Result<Value, VmmError> {
        loop {
            if let Some(end) = self.received.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.received.drain(..=end).collect();
                if line.trim_ascii().is_empty() {
                    continue;
                }
                return serde_json::from_slice(&line).map_err(|_| garbage(command, &line));
            }
            if self.received.len() > MESSAGE_BYTES_MAX {
                return Err(garbage(command, &self.received));
            }
            self.receive(command, until, deadline)?;
        }
    }

    fn receive(
        &mut self,
        command: &'static str,
        until: Instant,
        deadline: Duration,
    ) -> Result<(), VmmError> {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(VmmError::Silent { command, deadline });
        }
        let failed = |source| VmmError::Monitor { command, source };
        let mut stream = self.stream(command)?;
        stream.set_read_timeout(Some(left)).map_err(failed)?;
        let mut buffer = [0u8; 4096];
        match stream.read(&mut buffer) {
            Ok(0) => Err(failed(std::io::ErrorKind::UnexpectedEof.into())),
            Ok(bytes) => {
                self.received.extend_from_slice(&buffer[..bytes]);
                Ok(())
            }
            Err(error) => match error.kind() {
                std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => {
                    Err(VmmError::Silent { command, deadline })
                }
                std::io::ErrorKind::Interrupted => Ok(()),
                _ => Err(failed(error)),
            },
        }
    }
}

/// The result in a reply, or `None` when the message is not a reply of this type.
fn result_in<T: serde::de::DeserializeOwned>(message: &Value) -> Option<Result<T, qapi::Error>> {
    if message.get("error").is_some() {
        return qapi::Error::deserialize(message).ok().map(Err);
    }
    message.get("return").and_then(|value| T::deserialize(value).ok()).map(Ok)
}

/// Only with what it needs: each byte is dear.
fn encode<C: QmpCommand>(command: &C) -> Vec<u8> {
    // Commands are plain structures with string keys: they always have a JSON form.
    let arguments = serde_json::to_value(command).unwrap_or_default();
    let mut message = serde_json::json!({ "execute": C::NAME });
    if arguments.as_object().is_some_and(|all| !all.is_empty()) {
        message["arguments"] = arguments;
    }
    message.to_string().into_bytes()
}

fn garbage(command: &'static str, bytes: &[u8]) -> VmmError {
    let shown = &bytes[..bytes.len().min(SHOWN_BYTES_MAX)];
    VmmError::Garbage { command, shown: shown.escape_ascii().to_string() }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::*;

    const GREETING: &[u8] = b"{\"QMP\":{\"version\":{\"qemu\":{\"micro\":0,\"minor\":2,\
        \"major\":7},\"package\":\"\"},\"capabilities\":[]}}\r\n";
    const SOON: Duration = Duration::from_millis(300);

    /// A monitor whose other end sends `greeting`, then for each newline- or brace-complete command
    /// the next of `replies`.
    fn against(
        greeting: &'static [u8],
        replies: &'static [&'static [u8]],
    ) -> Result<Monitor, VmmError> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("q");
        let listener = UnixListener::bind(&path).unwrap();
        thread::spawn(move || {
            let (mut peer, _) = listener.accept().unwrap();
            peer.write_all(greeting).unwrap();
            let mut replies = replies.iter();
            let mut buffer = [0u8; 4096];
            let mut depth = 0i32;
            while let Ok(bytes) = peer.read(&mut buffer) {
                if bytes == 0 {
                    return;
                }
                for byte in &buffer[..bytes] {
                    depth += match byte {
                        b'{' => 1,
                        b'}' => -1,
                        0xFF => -depth,
                        _ => 0,
                    };
                    if depth == 0 && (*byte == b'}' || *byte == 0xFF) {
                        let Some(reply) = replies.next() else { continue };
                        peer.write_all(reply).unwrap();
                    }
                }
            }
        });
        let mut monitor = Monitor::at(path);
        monitor.connect(SOON).map(|()| monitor)
    }

    #[test]
    fn a_greeting_that_is_not_qmp_is_named_and_shown() {
        let error = against(b"HTTP/1.1 400 Bad Request\r\n", &[]).unwrap_err();
        assert!(matches!(error, VmmError::Garbage { command: "greeting", .. }), "{error}");
        assert!(error.to_string().contains("HTTP/1.1"), "{error}");
        let error = against(b"{\"no\":1}\n", &[]).unwrap_err();
        assert!(matches!(error, VmmError::Garbage { .. }), "{error}");
    }

    #[test]
    fn a_silent_monitor_is_an_error_after_the_deadline() {
        let error = against(b"", &[]).unwrap_err();
        assert!(matches!(error, VmmError::Silent { command: "greeting", .. }), "{error}");
    }

    #[test]
    fn a_monitor_that_was_silent_at_first_can_be_connected_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("q");
        let listener = UnixListener::bind(&path).unwrap();
        let mut monitor = Monitor::at(path);
        let early = monitor.load(&qapi::qmp::stop {}).unwrap_err();
        assert!(matches!(early, VmmError::Monitor { command: "stop", .. }), "{early}");
        let error = monitor.connect(Duration::from_millis(20)).unwrap_err();
        assert!(matches!(error, VmmError::Silent { .. }) && !monitor.owes_reply(), "{error}");
        drop(listener.accept().unwrap());
        let peer = thread::spawn(move || {
            let (mut peer, _) = listener.accept().unwrap();
            peer.write_all(GREETING).unwrap();
            // Not a byte more than is needed: QEMU reads each alone.
            let mut handshake = [0; br#"{"execute":"qmp_capabilities"}"#.len()];
            peer.read_exact(&mut handshake).unwrap();
            peer.write_all(b"{\"return\":{}}\r\n").unwrap();
            (handshake, peer)
        });
        monitor.connect(SOON).unwrap();
        let (handshake, _peer) = peer.join().unwrap();
        assert_eq!(&handshake, br#"{"execute":"qmp_capabilities"}"#);
        assert!(!monitor.owes_reply());
    }

    #[test]
    fn events_before_the_reply_are_noted_and_skipped() {
        const STOP: &[u8] = b"{\"timestamp\":{\"seconds\":2,\"microseconds\":5},\
            \"event\":\"STOP\"}\r\n{\"return\":{}}\r\n";
        let mut monitor = against(GREETING, &[b"{\"return\":{}}\r\n", STOP]).unwrap();
        monitor.execute(&qapi::qmp::stop {}, SOON).unwrap();
        assert_eq!(monitor.transitions().stopped_at_us, Some(2_000_005));
    }

    #[test]
    fn an_event_of_an_impossible_time_harms_nothing() {
        const STOP: &[u8] = b"{\"timestamp\":{\"seconds\":18446744073709551615,\
            \"microseconds\":5},\"event\":\"STOP\"}\r\n{\"return\":{}}\r\n";
        let mut monitor = against(GREETING, &[b"{\"return\":{}}\r\n", STOP]).unwrap();
        monitor.execute(&qapi::qmp::stop {}, SOON).unwrap();
        assert_eq!(monitor.transitions().stopped_at_us, Some(u64::MAX));
    }

    #[test]
    fn a_refusal_carries_the_command_and_the_vmms_words() {
        const NO: &[u8] = b"{\"error\":{\"class\":\"GenericError\",\"desc\":\"disk on fire\"}}\r\n";
        let mut monitor = against(GREETING, &[b"{\"return\":{}}\r\n", NO]).unwrap();
        let error = monitor.execute(&qapi::qmp::cont {}, SOON).unwrap_err();
        assert_eq!(error.to_string(), "the VMM refused `cont`: disk on fire");
    }

    #[test]
    fn a_reply_that_comes_late_is_not_taken_for_that_of_the_next_command() {
        const LATE: &[u8] = b"{\"error\":{\"class\":\"GenericError\",\"desc\":\"late\"}}\r\n\
            {\"return\":{}}\r\n";
        let mut monitor = against(GREETING, &[b"{\"return\":{}}\r\n", b"", LATE]).unwrap();
        let error = monitor.execute(&qapi::qmp::stop {}, SOON).unwrap_err();
        assert!(matches!(error, VmmError::Silent { command: "stop", .. }), "{error}");
        assert!(monitor.owes_reply());
        monitor.execute(&qapi::qmp::cont {}, SOON).unwrap();
        assert!(!monitor.owes_reply());
    }

    #[test]
    fn garbage_instead_of_a_reply_is_an_error_and_not_a_hang() {
        let mut monitor = against(GREETING, &[b"{\"return\":{}}\r\n", b"\x00\xfe{]\n"]).unwrap();
        let error = monitor.execute(&qapi::qmp::cont {}, SOON).unwrap_err();
        assert!(matches!(error, VmmError::Garbage { command: "cont", .. }), "{error}");
    }

    #[test]
    fn an_unloaded_command_leaves_the_monitor_usable() {
        const COMPLAINT: &[u8] =
            b"{\"error\":{\"class\":\"GenericError\",\"desc\":\"JSON parse error\"}}\r\n";
        let replies: &[&[u8]] = &[b"{\"return\":{}}\r\n", COMPLAINT, b"{\"return\":{}}\r\n"];
        let mut monitor = against(GREETING, replies).unwrap();
        monitor.load(&qapi::qmp::stop {}).unwrap();
        monitor.unload(SOON).unwrap();
        monitor.execute(&qapi::qmp::cont {}, SOON).unwrap();
    }
}
