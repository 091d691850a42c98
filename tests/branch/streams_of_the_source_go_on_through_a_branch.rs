//! Goal: what a background process of the source writes and reads while the sandbox is branched
//! arrives whole, in order and once. The child has the process too, under the same id: its output
//! goes on from where the source's stood at the branch, to the byte; it takes input, and ends by
//! itself. The child's own processes work.
//!
//! Method: a program writes numbered lines as fast as it can; another echoes its input. What the
//! source's program wrote up to the child's first offset, and what the child's wrote from there,
//! must together be a count without a gap. Breaks when a branch drops what is on its way between
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

/// The numbers of the lines, which must count from one on.
fn counted(text: &str) -> u64 {
    let numbers: Vec<u64> = text.lines().map(|line| line.parse().unwrap()).collect();
    let last = numbers.len() as u64;
    assert!(numbers.iter().copied().eq(1..=last), "a line is lost or doubled");
    assert!(text.ends_with('\n'), "the last line is cut");
    last
}

/// What was written up to an offset.
fn until(text: &str, offset: u64) -> &str {
    &text[..usize::try_from(offset).unwrap()]
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
fn no_line_is_lost_or_doubled_and_the_child_goes_on_with_the_processes() {
    block_on(async {
        let lab = Lab::shared().await;
        let engine = &lab.engine;
        let source = lab.tiny().await;
        let count = ProcessRequest::new(["/bin/sh", "-c", COUNT]);
        let counter = engine.start_process(&source.id, count).await.unwrap();
        let reader = engine.process_output(&source.id, &counter.id, None).await.unwrap();
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
        let inherited = engine.processes(&child.id).await.unwrap();
        let [counting, echoing] = &inherited[..] else { panic!("{inherited:?}") };
        assert_eq!((&counting.id, counting.pid), (&counter.id, counter.pid));
        assert_eq!((&echoing.id, &echoing.args), (&echo.id, &echo.args));
        assert!(inherited.iter().all(|process| process.inherited && process.end.is_none()));
        let of_child = engine.process_output(&child.id, &counter.id, None).await.unwrap();
        let reading_child = tokio::spawn(lines(of_child));
        let before = count_in(child).await;
        let begun = Instant::now();
        while count_in(child).await == before {
            assert!(begun.elapsed() < SOON, "the child's program is held back");
        }
        child.sh("test ! -e /tmp/input-ended").await;
        let piece = InputPiece { data: b"child\n".to_vec(), eof: true };
        engine.give_process_input(&child.id, &echo.id, piece).await.unwrap();
        let request = ProcessRequest::new(["/bin/sh", "-c", "seq 3"]);
        let own = engine.start_process(&child.id, request).await.unwrap();
        let output = lines(engine.process_output(&child.id, &own.id, None).await.unwrap()).await;
        assert_eq!(output.0, "1\n2\n3\n");
        child.sh("touch /tmp/stop").await;

        let written = count_in(&source).await;
        source.sh("touch /tmp/stop").await;
        let (text, end) = reading.await.unwrap();
        let last = counted(&text);
        assert!(last >= written, "{last} lines of {written}");
        assert!(matches!(end, ProcessEnd::Exited(exit) if exit.exit_code == 0), "{end:?}");
        let echoed = lines(engine.process_output(&source.id, &echo.id, None).await.unwrap()).await;
        assert_eq!(echoed.0, "0\n1\n2\nlast\n");

        let (of_child, end) = reading_child.await.unwrap();
        assert!(matches!(end, ProcessEnd::Exited(exit) if exit.exit_code == 0), "{end:?}");
        counted(&format!("{}{of_child}", until(&text, counting.output_from)));
        let (of_child, end) =
            lines(engine.process_output(&child.id, &echo.id, None).await.unwrap()).await;
        assert!(matches!(end, ProcessEnd::Exited(exit) if exit.exit_code == 0), "{end:?}");
        let whole = format!("{}{of_child}", until(&echoed.0, echoing.output_from));
        assert_eq!(whole, "0\n1\n2\nchild\n");
        child.sh("test -e /tmp/input-ended").await;

        // Whoever reads when the sandbox goes is told.
        let request = ProcessRequest::new(["/bin/sh", "-c", "echo here; sleep 1000"]);
        let process = engine.start_process(&child.id, request).await.unwrap();
        let reader = engine.process_output(&child.id, &process.id, None).await.unwrap();
        let reading = tokio::spawn(lines(reader));
        child.clone().remove().await;
        let ended = tokio::time::timeout(SOON, reading).await.unwrap();
        assert!(matches!(ended.unwrap().1, ProcessEnd::Lost { .. }));
    });
}
