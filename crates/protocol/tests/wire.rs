//! Goal: the wire format holds its promises. Method: every kind of message, cut and corrupted at
//! every byte, and random bytes from a fixed seed.

#![expect(clippy::unwrap_used, reason = "tests")]

use forkd_protocol::{
    ChangeDetail, ChangedEntry, DELIMITER, DecodeError, EvalContext, EvalException,
    FRAME_BYTES_MAX, FileOwner, FrameDecoder, FrameError, HookReport, Keep, LinkTarget, Reply,
    Request, decode_reply, decode_request, encode_frame, encode_reply, encode_request,
};

#[expect(clippy::too_many_lines, reason = "one of each kind")]
fn requests() -> Vec<Request> {
    vec![
        Request::Hello { protocol_min: 1, protocol_max: 3, nonce: u64::MAX },
        Request::Ping {},
        Request::Exec {
            args: vec!["sh".into(), "-c".into(), "é\0".into()],
            env: vec![("A".into(), "b".into())],
            cwd: Some("/tmp".into()),
            user: Some("me:us".into()),
            stdin_follows: true,
            timeout_ms: Some(30_000),
            output_credit: 1 << 20,
            keep: Some(Keep { name: "p-1".into(), record: "{}".into() }),
        },
        Request::Terminal {
            args: vec!["sh".into()],
            env: Vec::new(),
            cwd: None,
            user: None,
            timeout_ms: None,
            output_credit: 1,
            rows: 24,
            cols: 80,
            keep: None,
        },
        Request::Resize { rows: 50, cols: 132 },
        Request::Input { data: vec![0, 0xFF, 0, 1], eof: true },
        Request::Credit { bytes: 77 },
        Request::Kill { signal: 9 },
        Request::Cancel {},
        Request::ListKept { output_credit: 3 },
        Request::Follow { name: "p-1".into(), output_credit: 3 },
        Request::Forget { name: "p-1".into() },
        Request::Eval {
            code: "1+1".into(),
            timeout_ms: None,
            output_credit: 5,
            parts: true,
            displays: true,
            context: Some("c1".into()),
            env: vec![("A".into(), "b".into())],
        },
        Request::MakeContext { cwd: Some("/x".into()) },
        Request::ListContexts {},
        Request::EndContext { context: "c1".into(), restart: true },
        Request::SetClock { wall_clock_unix_ns: 7 },
        Request::ReadFile { path: "/x".into(), offset: 1, length: Some(2), output_credit: 3 },
        Request::WriteFile {
            path: "/x".into(),
            mode: Some(0o644),
            append: false,
            create_parents: true,
            owner: Some(FileOwner::User("me:7".into())),
            attributes: [("user.a".into(), "b".into())].into(),
        },
        Request::ListFiles { path: "/".into(), attributes: None, links: true, output_credit: 3 },
        Request::StatFile {
            path: "/x".into(),
            attributes: Some("user.".into()),
            links: false,
            output_credit: 3,
        },
        Request::RemoveFile { path: "/x".into(), recursive: true },
        Request::MakeDirectory { path: "/x/y".into(), owner: Some(FileOwner::Image) },
        Request::WatchFiles {
            path: "/x".into(),
            recursive: true,
            entries: true,
            local_only: true,
            output_credit: 3,
        },
        Request::KeepWatch {
            keep: Keep { name: "w-1".into(), record: "{}".into() },
            path: "/x".into(),
            recursive: true,
            local_only: false,
        },
        Request::TakeChanges { name: "w-1".into(), output_credit: 3 },
        Request::EndWatch { name: "w-1".into() },
        Request::AskUsage {},
        Request::ListPorts { output_credit: 3 },
        Request::OpenPort { port: 8080 },
        Request::Renew {
            instance_id: "sb-1".into(),
            hostname: "sb-1".into(),
            machine_id: "0".repeat(32),
            wall_clock_unix_ns: -5,
            entropy: vec![0; 64],
            hook_timeout_ms: Some(1),
            announce: true,
        },
        Request::PowerOff {},
    ]
}

#[expect(clippy::too_many_lines, reason = "one of each kind")]
fn replies() -> Vec<Reply> {
    vec![
        Reply::Welcome {
            protocol: 1,
            nonce: 7,
            agent_version: "0.1.0".into(),
            kernel_release: "6.1".into(),
            boot_id: "b".into(),
            has_root_disk: true,
            python: false,
            is_init: true,
            epoch: 2,
            users: true,
            contexts: true,
            kept: Some(3),
        },
        Reply::Pong { uptime_ns: 1, epoch: 2, requests_running: 3, frames_rejected: 4 },
        Reply::Started { pid: 12 },
        Reply::Kept { name: "p-1".into(), record: "{}".into(), pid: 12, inherited: true },
        Reply::Followed { from: 7, takes_input: true },
        Reply::Stdout { data: vec![0; 300] },
        Reply::Stderr { data: vec![1, 0, 2] },
        Reply::Credit { bytes: 9 },
        Reply::Exited { exit_code: 137, signal: Some(9), timed_out: true },
        Reply::CellStarted { execution_count: 3 },
        Reply::Contexts { contexts: vec![EvalContext { id: "c1".into(), cwd: "/x".into() }] },
        Reply::EvalPart {
            mime: "image/png".into(),
            data: vec![0x89, 0],
            more: true,
            display: 2,
            last: true,
        },
        Reply::EvalDone {
            result: Some("2".into()),
            error: None,
            exception: Some(EvalException { name: "E".into(), value: "v".into() }),
            timed_out: false,
            state_lost: false,
        },
        Reply::FileData { data: Vec::new() },
        Reply::FileEnd { bytes: 3 },
        Reply::Written { bytes: 3 },
        Reply::Entry {
            name: "x".into(),
            kind: "file".into(),
            bytes: 1,
            mode: 0o644,
            modified_unix_s: -1,
            owner: Some("me".into()),
            group: Some("7".into()),
            attributes: [("user.a".into(), "b".into())].into(),
            link: Some(LinkTarget {
                path: "/y".into(),
                kind: "file".into(),
                bytes: 1,
                mode: 0o600,
            }),
        },
        Reply::Done {},
        Reply::Watching {},
        Reply::Change {
            kind: "renamed".into(),
            path: "/y".into(),
            from: Some("/x".into()),
            entry: Some(ChangedEntry {
                kind: "file".into(),
                bytes: 1,
                mode: 0o644,
                modified_unix_s: -1,
            }),
            detail: ChangeDetail::Replaced,
        },
        Reply::KeptWatch { record: "{}".into() },
        Reply::Usage {
            cpus: 2,
            cpu_permille: 500,
            memory: 1 << 30,
            memory_used: 1 << 20,
            memory_cached: 1 << 10,
            disk: 1 << 33,
            disk_used: 1 << 32,
        },
        Reply::Port {
            address: "::1".into(),
            port: 8080,
            pid: Some(7),
            program: Some("python3".into()),
        },
        Reply::PortOpened { port: 40_000 },
        Reply::IdentityInEffect {},
        Reply::Renewed {
            instance_id: "sb-1".into(),
            clock_step_ns: -1,
            hooks: vec![HookReport { name: "10-x".into(), exit_code: 0 }],
        },
        Reply::PoweringOff {},
        Reply::Error { code: "busy".into(), message: "too many".into() },
    ]
}

type Event = Result<(u64, Vec<u8>), FrameError>;

fn feed(decoder: &mut FrameDecoder, bytes: &[u8]) -> Vec<Event> {
    let mut events = Vec::new();
    decoder.feed(bytes, |event| {
        events.push(event.map(|frame| (frame.request_id, frame.message.to_vec())));
    });
    events
}

fn sample_stream() -> (Vec<u8>, Vec<(u64, Reply)>) {
    let mut stream = Vec::new();
    let mut sent = Vec::new();
    for (id, reply) in (100u64..).zip(replies()) {
        encode_reply(id, &reply, &mut stream).unwrap();
        sent.push((id, reply));
    }
    (stream, sent)
}

/// A small generator, so that failures repeat.
struct Random(u64);
impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next().to_le_bytes()[3]).collect()
    }
}

#[test]
fn every_message_survives_the_round_trip_and_every_kind_is_listed() {
    let mut kinds = Vec::new();
    for request in requests() {
        let mut wire = Vec::new();
        encode_request(9, &request, &mut wire).unwrap();
        let events = feed(&mut FrameDecoder::new(), &wire);
        let [Ok((9, message))] = events.as_slice() else { panic!("{events:?}") };
        assert_eq!(decode_request(message).unwrap(), request);
        kinds.push(kind_of(message));
    }
    assert_eq!(kinds, Request::KINDS);
    kinds.clear();
    for reply in replies() {
        let mut wire = Vec::new();
        encode_reply(9, &reply, &mut wire).unwrap();
        let events = feed(&mut FrameDecoder::new(), &wire);
        let [Ok((9, message))] = events.as_slice() else { panic!("{events:?}") };
        assert_eq!(decode_reply(message).unwrap(), reply);
        kinds.push(kind_of(message));
    }
    assert_eq!(kinds, Reply::KINDS);
}

/// The key of a one-entry MessagePack map with a short key.
fn kind_of(message: &[u8]) -> String {
    assert_eq!(message[0], 0x81, "a map with one entry");
    let length = usize::from(message[1] & 0x1F);
    String::from_utf8(message[2..2 + length].to_vec()).unwrap()
}

#[test]
fn golden_bytes_of_the_wire_format_do_not_change() {
    let mut wire = Vec::new();
    encode_request(0x0102, &Request::Credit { bytes: 300 }, &mut wire).unwrap();
    let expected: &[u8] = &[
        0x04, 0xF1, 0x02, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x17, 0x81, 0xA6, b'c', b'r', b'e',
        b'd', b'i', b't', 0x81, 0xA5, b'b', b'y', b't', b'e', b's', 0xCD, 0x01, 0x2C, 0xCF, 0x89,
        0xEF, 0xAD, 0x00,
    ];
    assert_eq!(wire, expected, "{wire:02X?}");
}

#[test]
fn details_of_changes_keep_their_numbers_and_an_unknown_one_says_nothing() {
    let change = |more: &[u8]| {
        let mut message = vec![0x81, 0xA6];
        message.extend(b"change");
        message.push(0x82 + u8::from(!more.is_empty()));
        message.extend(b"\xA4kind\xA1k\xA4path\xA2/x");
        message.extend(more);
        let Ok(Reply::Change { detail, .. }) = decode_reply(&message) else { panic!("{more:?}") };
        detail
    };
    let of = |number| change(&[b"\xA6detail", &[number][..]].concat());
    assert_eq!(change(&[]), ChangeDetail::None, "an agent of before");
    let known = [
        ChangeDetail::None,
        ChangeDetail::Made,
        ChangeDetail::Found,
        ChangeDetail::Put,
        ChangeDetail::Replaced,
        ChangeDetail::Content,
        ChangeDetail::Attributes,
    ];
    for (number, detail) in (0..).zip(known) {
        assert_eq!(of(number), detail);
        assert_eq!(u32::from(detail), u32::from(number));
    }
    assert_eq!(of(100), ChangeDetail::None, "an agent of later");
}

#[test]
fn a_stream_cut_at_any_byte_loses_only_the_cut_frame() {
    let (stream, sent) = sample_stream();
    let mut ends: Vec<usize> = Vec::new();
    ends.extend(stream.iter().enumerate().filter(|(_, byte)| **byte == DELIMITER).map(|(i, _)| i));
    for cut in 0..=stream.len() {
        // The receiver starts in the middle of the stream.
        let late: Vec<_> = feed(&mut FrameDecoder::new(), &stream[cut..]);
        let whole = ends.iter().filter(|end| **end >= cut).count();
        let starts_at_frame = cut == 0 || (cut <= stream.len() && stream[cut - 1] == DELIMITER);
        // At a delimiter itself the remainder is empty, which is no loss worth an event.
        let skipped = usize::from(!starts_at_frame && whole > 0);
        let good: Vec<_> = late.iter().filter_map(|event| event.as_ref().ok()).collect();
        assert_eq!(good.len(), whole - skipped, "cut {cut}");
        for (event, expected) in good.iter().rev().zip(sent.iter().rev()) {
            assert_eq!(event.0, expected.0);
            assert_eq!(decode_reply(&event.1).unwrap(), expected.1);
        }

        // The sender stops in the middle, and another one goes on after a delimiter.
        let mut decoder = FrameDecoder::new();
        let before = feed(&mut decoder, &stream[..cut]);
        assert_eq!(before.len(), ends.iter().filter(|end| **end < cut).count());
        let mut next = vec![DELIMITER];
        encode_reply(1, &Reply::Credit { bytes: 1 }, &mut next).unwrap();
        let after = feed(&mut decoder, &next);
        assert_eq!(after.last().unwrap().as_ref().unwrap().0, 1, "cut {cut}");
        // One event for the half frame (or the frame, when only its delimiter was missing).
        assert!(after.len() <= 2, "cut {cut}");
    }
}

#[test]
fn any_corrupted_byte_is_noticed() {
    let (stream, _) = sample_stream();
    let clean = feed(&mut FrameDecoder::new(), &stream);
    for position in 0..stream.len() {
        for flip in [0x01, 0x80, 0xFF] {
            let mut bad = stream.clone();
            bad[position] ^= flip;
            bad.push(DELIMITER);
            let events = feed(&mut FrameDecoder::new(), &bad);
            assert!(events.iter().any(Result::is_err), "byte {position}");
            for event in events.into_iter().filter(Result::is_ok) {
                assert!(clean.contains(&event), "byte {position}: a message nobody sent");
            }
        }
    }
}

#[test]
fn garbage_never_panics_nor_grows_memory_and_the_next_frame_is_understood() {
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let mut decoder = FrameDecoder::new();
    for _ in 0..400 {
        let count = usize::try_from(random.next() % 20_000).unwrap();
        let mut bytes = random.bytes(count);
        if random.next().is_multiple_of(2) {
            bytes.iter_mut().for_each(|byte| *byte |= 1);
        }
        feed(&mut decoder, &bytes);
        assert!(decoder.pending_bytes() <= FRAME_BYTES_MAX + FRAME_BYTES_MAX / 254 + 1);
    }
    let mut wire = vec![DELIMITER];
    encode_request(5, &Request::Ping {}, &mut wire).unwrap();
    assert_eq!(feed(&mut decoder, &wire).last().unwrap().as_ref().unwrap().0, 5);
}

#[test]
fn random_messages_in_good_frames_never_panic() {
    let mut random = Random(42);
    for _ in 0..20_000 {
        let count = usize::try_from(random.next() % 64).unwrap();
        let bytes = random.bytes(count);
        drop(decode_request(&bytes));
        drop(decode_reply(&bytes));
    }
    // Nesting as deep as a frame allows must not exhaust the stack.
    let nested = vec![0x91; FRAME_BYTES_MAX / 2];
    assert!(decode_request(&nested).is_err());
    let mut nested = b"\x81\xA4ping".to_vec();
    nested.resize(FRAME_BYTES_MAX / 2, 0x91);
    assert!(decode_request(&nested).is_err());
}

#[test]
fn an_oversized_frame_is_reported_once_and_skipped() {
    let mut decoder = FrameDecoder::new();
    let mut errors = 0;
    for _ in 0..50 {
        for event in feed(&mut decoder, &[1; 64 * 1024]) {
            assert_eq!(event, Err(FrameError::Oversized));
            errors += 1;
        }
        assert!(decoder.pending_bytes() <= FRAME_BYTES_MAX + FRAME_BYTES_MAX / 254 + 1);
    }
    assert_eq!(errors, 1);
    let mut wire = vec![DELIMITER];
    encode_request(5, &Request::Ping {}, &mut wire).unwrap();
    assert_eq!(feed(&mut decoder, &wire).len(), 1);

    let mut out = vec![3];
    let too_large = vec![0; FRAME_BYTES_MAX];
    assert_eq!(encode_frame(1, &too_large, &mut out), Err(FrameError::Oversized));
    assert_eq!(out, [3]);
}

#[test]
fn the_largest_frame_passes() {
    for fill in [0u8, 1] {
        let message = vec![fill; FRAME_BYTES_MAX - 13];
        let mut wire = Vec::new();
        encode_frame(1, &message, &mut wire).unwrap();
        assert_eq!(feed(&mut FrameDecoder::new(), &wire), [Ok((1, message))]);
    }
}

#[test]
fn unknown_fields_are_ignored_and_unknown_kinds_are_named() {
    // {"credit": {"bytes": 5, "colour": "red"}}
    let newer = b"\x81\xA6credit\x82\xA5bytes\x05\xA6colour\xA3red";
    assert_eq!(decode_request(newer).unwrap(), Request::Credit { bytes: 5 });
    // {"teleport": {"to": 1}}
    let unknown = b"\x81\xA8teleport\x81\xA2to\x01";
    assert_eq!(decode_request(unknown), Err(DecodeError::UnknownKind { kind: "teleport".into() }));
    // A known kind without a field that it needs.
    let lacking = b"\x81\xA6credit\x80";
    assert!(matches!(decode_request(lacking), Err(DecodeError::Malformed { .. })));
    // An agent of before says nothing of links.
    let old = b"\x81\xA5entry\x85\xA4name\xA1a\xA4kind\xA1b\xA5bytes\x00\xA4mode\x00\
        \xAFmodified_unix_s\x00";
    assert!(matches!(decode_reply(old), Ok(Reply::Entry { link: None, .. })));
    // A known kind without optional fields: {"exec": {"args": ["a"]}}
    let old = b"\x81\xA4exec\x81\xA4args\x91\xA1a";
    assert!(matches!(decode_request(old), Ok(Request::Exec { timeout_ms: None, .. })));
}
