//! Goal: a file that is written to a sandbox goes through the daemon in pieces: one that is larger
//! than all memory for bodies arrives, and costs the daemon a bounded amount. One that breaks off
//! leaves the former file as it was, and nothing beside it.
//!
//! Method: the command line copies 320 MiB; the daemon's most memory is the kernel's word, counted
//! from right before. Then a request that announces more than it sends is cut off once the guest
//! has begun to write. Breaks when the body is collected, or when the guest writes in place.

use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use forkd_types::limit;

use crate::forkd::Forkd;

const SOON: Duration = Duration::from_secs(120);
const MIB: u64 = 1 << 20;
/// More than all bodies may hold together.
const LARGE_MIB: u64 = 320;
/// What the daemon may need for it: a few pieces, its messages to the guest, an allocator's whims.
const GROWTH_MAX_MIB: u64 = 32;

fn sandbox(forkd: &Forkd) -> String {
    forkd.ok(&["template", "build", "tiny", "--tag", "t", "--mem-size-mib", "256"]);
    forkd.ok(&["fork", "t"])
}

/// A figure of the daemon in `/proc/PID/status`, in KiB.
fn status(forkd: &Forkd, name: &str) -> u64 {
    let path = format!("/proc/{}/status", forkd.daemon_pid());
    let text = std::fs::read_to_string(path).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn one_larger_than_all_memory_for_bodies_arrives_and_costs_little() {
    const { assert!(LARGE_MIB * MIB > limit::BODIES_BYTES_MAX as u64) };
    let forkd = Forkd::new();
    let id = sandbox(&forkd);
    let local = forkd.home().join("large");
    std::fs::File::create(&local).unwrap().set_len(LARGE_MIB * MIB).unwrap();
    // The highest mark begins anew here (`proc(5)`).
    std::fs::write(format!("/proc/{}/clear_refs", forkd.daemon_pid()), "5").unwrap();
    let before = status(&forkd, "VmRSS");
    let copied = forkd.json(&["cp", local.to_str().unwrap(), &format!("{id}:/dev/null")]);
    assert_eq!(copied["bytes"], LARGE_MIB * MIB);
    let grown = status(&forkd, "VmHWM").saturating_sub(before) >> 10;
    assert!(grown < GROWTH_MAX_MIB, "the daemon took {grown} MiB more");
}

#[test]
fn one_that_breaks_off_leaves_the_former_file_and_nothing_else() {
    let forkd = Forkd::new();
    let id = sandbox(&forkd);
    let sh = |command: &str| forkd.ok(&["exec", &id, "--", "/bin/sh", "-c", command]);
    sh("mkdir /tmp/d && echo former > /tmp/d/kept");
    let mut connection = UnixStream::connect(forkd.socket()).unwrap();
    let head = format!(
        "PUT /v1/sandboxes/{id}/files?path=/tmp/d/kept HTTP/1.1\r\nhost: forkd\r\n\
         content-length: {}\r\n\r\n",
        8 * MIB
    );
    connection.write_all(head.as_bytes()).unwrap();
    connection.write_all(&[b'x'; 1 << 20]).unwrap();
    let until = |what: &str, count: &str| {
        let begun = Instant::now();
        while sh("ls -A /tmp/d | wc -l").trim() != count {
            assert!(begun.elapsed() < SOON, "{what}");
        }
    };
    until("the guest writes beside the file", "2");
    assert_eq!(sh("head -c 9 /tmp/d/kept"), "former");
    drop(connection);
    until("what was written is removed", "1");
    assert_eq!(sh("head -c 9 /tmp/d/kept"), "former");
    // The way is free for the next.
    let local = forkd.home().join("next");
    std::fs::write(&local, "next").unwrap();
    forkd.ok(&["cp", local.to_str().unwrap(), &format!("{id}:/tmp/d/kept")]);
    assert_eq!(sh("head -c 9 /tmp/d/kept"), "next");
}
