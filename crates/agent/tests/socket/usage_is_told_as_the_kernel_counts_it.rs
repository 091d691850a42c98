//! Goal: what programs use is told in true figures. Method: the real agent on this machine, beside
//! what its kernel says here, and beside a program that never rests. What would break it: a unit, a
//! share of the wrong time, a sum that leaves out a part.

use std::process::Command;

use crate::support::{LocalAgent, SOON};

fn kernel_says(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap();
    let line = text.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

#[tokio::test]
async fn memory_disk_and_processors_are_those_of_the_machine() {
    let local = LocalAgent::start();
    let agent = local.greet().await;
    let usage = agent.usage(SOON).await.unwrap();
    assert_eq!(usage.memory.get(), kernel_says("MemTotal:"));
    assert!((1..usage.memory.get()).contains(&usage.memory_used.get()), "{usage:?}");
    assert!((1..usage.memory.get()).contains(&usage.memory_cached.get()), "{usage:?}");
    let disk = rustix::fs::statvfs("/").unwrap();
    assert_eq!(usage.disk.get(), disk.f_blocks * disk.f_frsize);
    assert!((1..=usage.disk.get()).contains(&usage.disk_used.get()), "{usage:?}");
    let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap();
    let cpus = cpus.lines().filter(|line| line.starts_with("processor")).count();
    assert_eq!(usage.cpus as usize, cpus);
}

#[tokio::test]
async fn processors_that_never_rest_are_told_as_used() {
    let local = LocalAgent::start();
    let agent = local.greet().await;
    let cpus = agent.usage(SOON).await.unwrap().cpus;
    let spin = || Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
    let mut busy: Vec<_> = (0..cpus).map(|_| spin()).collect();
    // Of the time since the last look, which this makes long enough to be all theirs.
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    agent.usage(SOON).await.unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    let used = agent.usage(SOON).await.unwrap().cpu_permille;
    for program in &mut busy {
        program.kill().unwrap();
        program.wait().unwrap();
    }
    assert!((800..=1000).contains(&used), "{used} of 1000");
}
