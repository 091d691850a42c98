//! Goal: a file that is written to a sandbox or read from it goes through the daemon in pieces: one
//! that is larger than all memory for bodies arrives, and costs the daemon a bounded amount. One
//! that is written and breaks off leaves the former file as it was, and nothing beside it.
//!
//! Method: the command line copies 320 MiB in and 160 MiB out; the daemon's most memory is the
//! kernel's word, counted from right before. Then a request that announces more than it sends is
//! cut off once the guest has begun to write. Breaks when the content is collected, or when the
//! guest writes in place.

use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use forkd_types::limit;

use crate::forkd::Forkd;

const SOON: Duration = Duration::from_secs(120);
const MIB: u64 = 1 << 20;
/// More than all bodies may hold together.
const WRITTEN_MIB: u64 = 320;
/// More than all that is collected of one guest may hold.
const READ_MIB: u64 = 160;
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

/// Copies a file of so many MiB, which must cost the daemon little.
fn copy(forkd: &Forkd, mebibytes: u64, from: &str, to: &str) {
    // The highest mark begins anew here (`proc(5)`).
    std::fs::write(format!("/proc/{}/clear_refs", forkd.daemon_pid()), "5").unwrap();
    let before = status(forkd, "VmRSS");
    let copied = forkd.json(&["cp", from, to]);
    assert_eq!(copied["bytes"], mebibytes * MIB);
    let grown = status(forkd, "VmHWM").saturating_sub(before) >> 10;
    assert!(grown < GROWTH_MAX_MIB, "the daemon took {grown} MiB more");
}

#[test]
fn one_larger_than_all_memory_for_bodies_arrives_and_costs_little() {
    const { assert!(WRITTEN_MIB * MIB > limit::BODIES_BYTES_MAX as u64) };
    let forkd = Forkd::new();
    let id = sandbox(&forkd);
    let local = forkd.home().join("large");
    std::fs::File::create(&local).unwrap().set_len(WRITTEN_MIB * MIB).unwrap();
    copy(&forkd, WRITTEN_MIB, local.to_str().unwrap(), &format!("{id}:/dev/null"));
}

#[test]
fn one_larger_than_what_is_collected_comes_back_and_costs_little() {
    const { assert!(READ_MIB * MIB > 2 * limit::EXEC_OUTPUT_BYTES_MAX as u64) };
    let forkd = Forkd::new();
    let id = sandbox(&forkd);
    // Most of it is a hole: the guest has no memory for so much.
    let make = format!(
        "printf begin > /f; truncate -s {READ_MIB}M /f; printf end | dd of=/f \
         bs=1 conv=notrunc seek={} 2> /dev/null",
        READ_MIB * MIB - 3
    );
    forkd.ok(&["exec", &id, "--", "/bin/sh", "-c", &make]);
    let local = forkd.home().join("back");
    copy(&forkd, READ_MIB, &format!("{id}:/f"), local.to_str().unwrap());
    let back = std::fs::read(&local).unwrap();
    assert!(back.starts_with(b"begin\0") && back.ends_with(b"\0end"));
    // For one that is not there, what was here before stays.
    let refused = forkd.refused(&["cp", &format!("{id}:/none"), local.to_str().unwrap()]);
    assert!(refused.0.contains("/none"), "{refused:?}");
    assert_eq!(std::fs::metadata(&local).unwrap().len(), READ_MIB * MIB);
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
