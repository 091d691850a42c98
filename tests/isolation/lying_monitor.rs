//! A VMM that answers its monitor as somebody who has taken it over would.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};

/// Ends what was sent of a command; see QEMU's documentation of its monitor.
const TAKEN_BACK: u8 = 0xFF;

/// Answers a command; the second argument asks the VMM for what it would answer.
pub(crate) trait Lie: Fn(&Value, &mut dyn FnMut() -> Value) -> Value + Send + Sync {}

impl<T: Fn(&Value, &mut dyn FnMut() -> Value) -> Value + Send + Sync> Lie for T {}

/// From now on, who connects to this monitor of a VMM hears `lie`. The VMM is the real one.
pub(crate) fn put_before(socket: &Path, lie: impl Lie + 'static) {
    let moved = socket.with_extension("moved");
    fs::rename(socket, &moved).unwrap();
    let listener = UnixListener::bind(socket).unwrap();
    let lie = Arc::new(lie);
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            // It is gone when the VMM is.
            let Ok(vmm) = UnixStream::connect(&moved) else { return };
            let lie = Arc::clone(&lie);
            std::thread::spawn(move || serve(client, vmm, lie.as_ref()));
        }
    });
}

/// Until one of them closes its connection.
fn serve(mut client: UnixStream, mut vmm: UnixStream, lie: &dyn Lie) -> Option<()> {
    let mut lines = BufReader::new(vmm.try_clone().ok()?).lines();
    send(&mut client, &lines.next()?.ok()?)?;
    let mut received = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let count = client.read(&mut buffer).ok().filter(|count| *count > 0)?;
        received.extend_from_slice(&buffer[..count]);
        if let Some(at) = received.iter().position(|byte| *byte == TAKEN_BACK) {
            received.drain(..=at);
            send(&mut client, &json!({"error": {"class": "GenericError", "desc": "taken back"}}))?;
        }
        while let Some(command) = next_command(&mut received) {
            let mut ask = || {
                vmm.write_all(command.to_string().as_bytes()).ok();
                let mut answers = lines.by_ref().map_while(Result::ok);
                let answer = answers.find_map(|line| {
                    let message: Value = serde_json::from_str(&line).ok()?;
                    if message.get("event").is_none() {
                        return Some(message);
                    }
                    send(&mut client, &message).and(None)
                });
                answer.unwrap_or(Value::Null)
            };
            let answer = lie(&command, &mut ask);
            send(&mut client, &answer)?;
        }
    }
}

fn next_command(received: &mut Vec<u8>) -> Option<Value> {
    let mut commands = serde_json::Deserializer::from_slice(received).into_iter();
    let command = commands.next()?.ok()?;
    let end = commands.byte_offset();
    received.drain(..end);
    Some(command)
}

fn send(client: &mut UnixStream, message: &impl ToString) -> Option<()> {
    client.write_all(format!("{}\r\n", message.to_string()).as_bytes()).ok()
}
