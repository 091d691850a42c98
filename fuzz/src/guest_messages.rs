//! The messages in a guest's frames, without the frame, whose checksum a search would not find:
//! they are read or refused, with a short reason, and what was read can be said again.

use forkd_protocol::{
    ChangeDetail, EvalContext, EvalException, FrameDecoder, LinkTarget, Reply, decode_reply,
    decode_request, encode_reply, encode_request,
};

/// A message, as the daemon and as an agent would read it.
pub fn check(message: &[u8]) {
    match decode_reply(message) {
        Ok(reply) => {
            let mut frame = Vec::new();
            // Its text may need more bytes than a frame has.
            if encode_reply(3, &reply, &mut frame).is_ok() {
                let again = only_message(&frame);
                assert_eq!(decode_reply(&again).as_ref(), Ok(&reply), "said again, it differs");
            }
        }
        Err(error) => assert!(error.to_string().chars().count() < 300, "a long error"),
    }
    match decode_request(message) {
        Ok(request) => {
            let mut frame = Vec::new();
            if encode_request(3, &request, &mut frame).is_ok() {
                let again = only_message(&frame);
                assert_eq!(decode_request(&again).as_ref(), Ok(&request), "said again, it differs");
            }
        }
        Err(error) => assert!(error.to_string().chars().count() < 300, "a long error"),
    }
}

fn only_message(stream: &[u8]) -> Vec<u8> {
    let mut messages = Vec::new();
    FrameDecoder::new().feed(stream, |frame| {
        let frame = frame.expect("what was encoded is a frame");
        messages.push(frame.message.to_vec());
    });
    assert_eq!(messages.len(), 1);
    messages.remove(0)
}

/// One of each kind that carries something.
pub(crate) fn replies() -> Vec<Reply> {
    let text = || "text".to_owned();
    vec![
        Reply::Welcome {
            protocol: 1,
            nonce: u64::MAX,
            agent_version: text(),
            kernel_release: text(),
            boot_id: text(),
            has_root_disk: true,
            python: true,
            is_init: true,
            epoch: 2,
            users: true,
            contexts: true,
            kept: Some(1),
        },
        Reply::Pong { uptime_ns: 1, epoch: 2, requests_running: 3, frames_rejected: 4 },
        Reply::Started { pid: 1 },
        Reply::Kept { name: text(), record: text(), pid: 1, inherited: true },
        Reply::Followed { from: u64::MAX, takes_input: true },
        Reply::Stdout { data: b"out".to_vec() },
        Reply::Stderr { data: b"err".to_vec() },
        Reply::Credit { bytes: u64::MAX },
        Reply::Exited { exit_code: -1, signal: Some(9), timed_out: false },
        Reply::CellStarted { execution_count: 1 },
        Reply::Contexts { contexts: vec![EvalContext { id: text(), cwd: text() }] },
        Reply::EvalPart { mime: text(), data: vec![0, 255], more: true, display: 1, last: false },
        Reply::EvalDone {
            result: Some(text()),
            error: None,
            exception: Some(EvalException { name: text(), value: text() }),
            timed_out: false,
            state_lost: true,
        },
        Reply::FileData { data: vec![1; 40] },
        Reply::FileEnd { bytes: 40 },
        Reply::Written { bytes: 40 },
        Reply::Entry {
            name: text(),
            kind: "file".to_owned(),
            bytes: 1,
            mode: 0o644,
            modified_unix_s: -1,
            owner: Some(text()),
            group: None,
            attributes: [("user.a".to_owned(), text())].into(),
            link: Some(LinkTarget { path: text(), kind: "file".to_owned(), bytes: 1, mode: 0o644 }),
        },
        Reply::Change {
            kind: "created".to_owned(),
            path: text(),
            from: None,
            entry: None,
            detail: ChangeDetail::Put,
        },
        Reply::Done {},
    ]
}

/// Messages that are understood.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let framed = |reply: &Reply| {
        let mut frame = Vec::new();
        encode_reply(1, reply, &mut frame).expect("a short reply fits");
        only_message(&frame)
    };
    replies().iter().map(framed).collect()
}
