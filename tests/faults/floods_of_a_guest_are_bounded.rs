//! Goal: a guest that floods its console, or the output of its programs, costs the host a bounded
//! amount of memory, keeps answering, and can be branched; its child's console works.
//!
//! Method: the guest's kernel writes to the serial port until more than what is kept has been
//! written, while the memory of the process that the engine runs in is watched. Programs write
//! without end to readers that take nothing, and to requests that collect. Breaks when what a guest
//! writes is kept without a bound, or a console that was full at the branch point stays silent.

use std::time::{Duration, Instant};

use forkd_engine::guest::{Audience, ExecRequest, OUTPUT_BYTES_MAX, ProcessRequest};
use forkd_engine::{EngineError, KeptOutput};
use forkd_testkit::{Guest, Lab, block_on};
use forkd_types::limit::CONSOLE_BYTES;

use crate::scene::ALONE;

const SOON: Duration = Duration::from_secs(120);
/// The kernel writes to the serial port ten times as fast as a program does.
const FLOOD: &str = "echo 8 > /proc/sys/kernel/printk; echo on > /proc/sys/kernel/printk_devkmsg; \
    line=$(printf '%0900d' 7); while :; do echo $line > /dev/kmsg; done";
/// What the engine may need besides, for requests and a branch.
const ROOM_KIB: u64 = 24 << 10;

/// Memory of this process that is its own, KiB.
fn own_memory_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

fn console_of(lab: &Lab, guest: &Guest<'_>) -> KeptOutput {
    lab.engine.console_log(&guest.id).unwrap()
}

async fn wait_written(lab: &Lab, guest: &Guest<'_>, bytes: u64) {
    let begun = Instant::now();
    loop {
        let kept = console_of(lab, guest);
        let written = kept.missing + kept.bytes.len() as u64;
        if written >= bytes {
            return;
        }
        assert!(begun.elapsed() < SOON, "its console stands at {written} bytes");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[test]
fn a_guest_that_floods_its_console_is_bounded_answers_and_can_be_branched() {
    block_on(async {
        let _alone = ALONE.lock().await;
        let lab = Lab::new().await;
        let source = lab.tiny().await;
        // A branch before: what it leaves in memory is not the console's.
        source.branch().await;
        let before = own_memory_kib();
        source.spawn(FLOOD).await;
        wait_written(&lab, &source, CONSOLE_BYTES * 3 / 2).await;

        assert_eq!(source.sh("echo here").await, "here");
        let kept = console_of(&lab, &source);
        // It goes on while it is read.
        let bytes = kept.bytes.len() as u64;
        assert!(CONSOLE_BYTES / 2 < bytes && bytes <= CONSOLE_BYTES, "{bytes} are kept");
        let lines = String::from_utf8(kept.bytes).unwrap();
        let line = format!("{:0900}", 7);
        // But for the first and the last, which may be cut.
        let others = lines.lines().filter(|said| !said.ends_with(&line)).count();
        assert!(others <= 2, "{others} lines are not whole");

        let (_, children) = source.branch_into(1).await;
        let child = &children[0];
        wait_written(&lab, child, CONSOLE_BYTES / 4).await;
        assert_eq!(child.sh("echo here").await, "here");

        let after = own_memory_kib();
        assert!(after < before + ROOM_KIB, "{before} KiB became {after} KiB");
        for guest in [&source, child] {
            let directory = lab.config().run_dir.join(guest.id.as_str());
            let files = std::fs::read_dir(directory).unwrap();
            let bytes: u64 = files.map(|file| file.unwrap().metadata().unwrap().len()).sum();
            assert!(bytes < 2 * CONSOLE_BYTES, "{bytes} bytes in its directory");
        }
    });
}

/// Programs that write without end.
const WRITERS: usize = 24;

#[test]
fn output_that_is_read_slowly_or_collected_is_bounded() {
    block_on(async {
        let _alone = ALONE.lock().await;
        let lab = Lab::new().await;
        let guest = lab.tiny().await;
        guest.sh("true").await;
        let before = own_memory_kib();
        let mut readers = Vec::new();
        for _ in 0..WRITERS {
            let mut request = ProcessRequest::new(["yes"]);
            request.audience = Audience::Expected;
            let process = lab.engine.start_process(&guest.id, request).await.unwrap();
            // The first bytes, and then no more.
            let mut reader =
                lab.engine.process_output(&guest.id, &process.id, Some(0)).await.unwrap();
            reader.next().await.unwrap();
            readers.push((process.id, reader));
        }
        let begun = Instant::now();
        loop {
            let all = lab.engine.processes(&guest.id).await.unwrap();
            let kept = all.iter().map(|view| view.output_to - view.output_from);
            if kept.min() >= Some(400 << 10) || begun.elapsed() > SOON {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(guest.sh("echo here").await, "here");
        let after = own_memory_kib();
        // For each what is kept and a window.
        let most = before + WRITERS as u64 * 1536 + ROOM_KIB;
        assert!(after < most, "{before} KiB became {after} KiB");
        for (id, _) in readers {
            lab.engine.remove_process(&guest.id, &id).await.unwrap();
        }

        let mut flood = ExecRequest::new(["cat", "/dev/zero"]);
        flood.timeout = SOON;
        let error = lab.engine.exec(&guest.id, flood).await.unwrap_err();
        assert!(matches!(error, EngineError::Guest(_)), "{error}");
        assert!(error.to_string().contains(&OUTPUT_BYTES_MAX.to_string()), "{error}");
        assert_eq!(guest.sh("echo here").await, "here");
    });
}
