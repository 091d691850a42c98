//! Goal: what a background process of the source writes and reads while the sandbox is branched
//! arrives whole, in order and once. In the child the program runs on, is not held back, and is not
//! told an end of its input; the child's own processes work.
//!
//! Method: a program writes numbered lines as fast as it can, with a reader that keeps up and
//! without one; another echoes its input. Breaks when a branch drops what is on its way between
//! guest and daemon, or sends it twice, or when a child waits for credit that nobody gives.

use std::time::{Duration, Instant};

use forkd_engine::guest::{
    InputPiece, OutputEvent, OutputReader, ProcessEnd, ProcessInput, ProcessRequest, Stream,
};
use forkd_testkit::{Guest, Lab, block_on};

/// Longest wait for something that must happen soon.
const SOON: Duration = Duration::from_secs(120);

/// Prints numbers, and notes each hundredth in a file.
const COUNT: &str = "i=0; while [ ! -e /tmp/stop ]; do i=$((i+1)); echo $i
    case $i in *00) echo $i > /tmp/count; esac; done";

async fn lines(mut reader: OutputReader) -> (String, ProcessEnd) {
    let mut text = Vec::new();
    loop {
        match reader.next().await.expect("an end comes last") {
            OutputEvent::Data { stream: Stream::Stdout, data, .. } => text.extend(data),
            OutputEvent::Ended(end) => return (String::from_utf8(text).unwrap(), end),
            other => panic!("{other:?}"),
        }
    }
}

async fn count_in(guest: &Guest<'_>) -> u64 {
    loop {
        // It is not there at first, and empty for a moment whenever it is written.
        if let Ok(count) = guest.sh("cat /tmp/count 2>/dev/null || true").await.parse() {
            return count;
        }
    }
}

#[test]
fn no_line_is_lost_or_doubled_and_the_childs_programs_run_on() {
    block_on(async {
        let lab = Lab::shared().await;
        let engine = &lab.engine;
        let source = lab.tiny().await;
        let count = ProcessRequest::new(["/bin/sh", "-c", COUNT]);
        let counter = engine.start_process(&source.id, count).await.unwrap();
        let reader = engine.process_output(&source.id, &counter.id, None).unwrap();
        let reading = tokio::spawn(lines(reader));
        let request = ProcessRequest {
            input: ProcessInput::Open,
            ..ProcessRequest::new(["/bin/sh", "-c", "cat; touch /tmp/input-ended"])
        };
        let echo = engine.start_process(&source.id, request).await.unwrap();
        let give = async |text: &str, eof| {
            let piece = InputPiece { data: text.as_bytes().to_vec(), eof };
            engine.give_process_input(&source.id, &echo.id, piece).await.unwrap();
        };

        let mut children = Vec::new();
        for round in 0..3 {
            give(&format!("{round}\n"), false).await;
            children.extend(source.branch_into(u32::from(round == 2)).await.1);
        }
        give("last\n", true).await;

        let child = &children[0];
        assert_eq!(engine.processes(&child.id).unwrap(), [], "the list is not inherited");
        let before = count_in(child).await;
        let begun = Instant::now();
        while count_in(child).await == before {
            assert!(begun.elapsed() < SOON, "the child's program is held back");
        }
        child.sh("test ! -e /tmp/input-ended").await;
        let request = ProcessRequest::new(["/bin/sh", "-c", "seq 3"]);
        let own = engine.start_process(&child.id, request).await.unwrap();
        let output = lines(engine.process_output(&child.id, &own.id, None).unwrap()).await;
        assert_eq!(output.0, "1\n2\n3\n");

        let written = count_in(&source).await;
        source.sh("touch /tmp/stop").await;
        let (text, end) = reading.await.unwrap();
        let numbers: Vec<u64> = text.lines().map(|line| line.parse().unwrap()).collect();
        let last = numbers.len() as u64;
        assert!(numbers.iter().copied().eq(1..=last), "a line is lost or doubled");
        assert!(last >= written && text.ends_with('\n'), "{last} lines of {written}");
        assert!(matches!(end, ProcessEnd::Exited(exit) if exit.exit_code == 0), "{end:?}");
        let echoed = lines(engine.process_output(&source.id, &echo.id, None).unwrap()).await;
        assert_eq!(echoed.0, "0\n1\n2\nlast\n");

        // Whoever reads when the sandbox goes is told.
        let request = ProcessRequest::new(["/bin/sh", "-c", "echo here; sleep 1000"]);
        let process = engine.start_process(&child.id, request).await.unwrap();
        let reader = engine.process_output(&child.id, &process.id, None).unwrap();
        let reading = tokio::spawn(lines(reader));
        child.clone().remove().await;
        let ended = tokio::time::timeout(SOON, reading).await.unwrap();
        assert!(matches!(ended.unwrap().1, ProcessEnd::Lost { .. }));
    });
}
