//! What programs use of the machine: processors, memory, the root file system.
//!
//! Guarantees: a share of processors is of a stretch of time that has just ended: the one since
//! somebody asked last, or a short one that is waited for.
//!
//! Does not do: keep a history.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use forkd_protocol::{Reply, code};
use rustix::event::{PollFd, PollFlags};

use crate::active::{Active, Refusal};
use crate::exec::wait_until;
use crate::sync::lock;

/// The kernel counts in hundredths of a second: less says little.
const STRETCH: Duration = Duration::from_millis(250);
/// A mean of longer ago is no news.
const STRETCH_MAX: Duration = Duration::from_secs(30);

/// What the processors have done until a moment, in the kernel's units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Spent {
    busy: u64,
    all: u64,
}

/// When it was looked at last, and what was there.
#[derive(Default)]
pub(crate) struct Usage(Mutex<Option<(Instant, Spent)>>);

impl Usage {
    /// Looks, and tells.
    pub(crate) fn tell(&self, active: &Active) {
        let last = self.look(active).unwrap_or_else(Refusal::into_reply);
        active.send(&last, || {});
    }

    fn look(&self, active: &Active) -> Result<Reply, Refusal> {
        let read = |path: &str| {
            std::fs::read_to_string(path)
                .map_err(|error| Refusal::new(code::FILE_FAILED, format!("{path}: {error}")))
        };
        let odd = |path: &str| Refusal::new(code::FILE_FAILED, format!("{path}: not understood"));
        let now = || {
            let (spent, cpus) = spent(&read(STAT)?).ok_or_else(|| odd(STAT))?;
            Ok::<_, Refusal>(((Instant::now(), spent), cpus))
        };
        let recent = |(at, _): &(Instant, Spent)| (STRETCH..STRETCH_MAX).contains(&at.elapsed());
        let before = match lock(&self.0).filter(recent) {
            Some(before) => before,
            None => {
                let (before, _) = now()?;
                let mut fds = [PollFd::from_borrowed_fd(active.wake_fd(), PollFlags::IN)];
                wait_until(&mut fds, Some(before.0 + STRETCH));
                before
            }
        };
        let (after, cpus) = now()?;
        *lock(&self.0) = Some(after);
        let [memory, available, cached] = memory(&read(MEMINFO)?).ok_or_else(|| odd(MEMINFO))?;
        let [disk, disk_used] = root_file_system();
        Ok(Reply::Usage {
            cpus,
            cpu_permille: permille(before.1, after.1),
            memory,
            memory_used: memory.saturating_sub(available),
            memory_cached: cached,
            disk,
            disk_used,
        })
    }
}

const STAT: &str = "/proc/stat";
const MEMINFO: &str = "/proc/meminfo";

/// Of all processors, and how many there are.
fn spent(stat: &str) -> Option<(Spent, u32)> {
    let fields = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
    // user nice system idle iowait irq softirq steal; what follows is in `user` and `nice` already.
    let times: Vec<u64> = fields.take(8).map(str::parse).collect::<Result<_, _>>().ok()?;
    let all: u64 = times.iter().sum();
    let idle: u64 = times.iter().skip(3).take(2).sum();
    let is_one = |line: &&str| {
        line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    let cpus = u32::try_from(stat.lines().filter(is_one).count()).ok()?;
    (times.len() >= 4).then_some((Spent { busy: all - idle, all }, cpus))
}

fn permille(before: Spent, after: Spent) -> u32 {
    let all = after.all.saturating_sub(before.all);
    let busy = after.busy.saturating_sub(before.busy).min(all);
    u32::try_from((busy * 1000).checked_div(all).unwrap_or(0)).unwrap_or(1000)
}

/// All, what programs could still have, and what files have of it, in bytes.
fn memory(meminfo: &str) -> Option<[u64; 3]> {
    let value = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    };
    Some([value("MemTotal")?, value("MemAvailable")?, value("Cached")?])
}

/// Its size and what is taken of it; nothing where it is only memory without a size.
fn root_file_system() -> [u64; 2] {
    match rustix::fs::statvfs("/") {
        Ok(facts) => {
            let bytes = |blocks: u64| blocks.saturating_mul(facts.f_frsize);
            [bytes(facts.f_blocks), bytes(facts.f_blocks.saturating_sub(facts.f_bfree))]
        }
        Err(_) => [0, 0],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_that_is_idle_or_waits_for_a_disk_is_not_busy() {
        let stat = "cpu  10 1 5 80 4 2 3 5 9 9\ncpu0 1 0 0 0\ncpu1 1 0 0 0\nintr 7\n";
        let (spent_once, cpus) = spent(stat).unwrap();
        assert_eq!((spent_once, cpus), (Spent { busy: 26, all: 110 }, 2));
        let later = Spent { busy: 26 + 30, all: 110 + 120 };
        assert_eq!(permille(spent_once, later), 250);
        assert_eq!(permille(later, later), 0, "no time has passed");
        assert!(spent("cpu  1 2 x 4\n").is_none() && spent("").is_none());
    }

    #[test]
    fn memory_is_told_in_bytes() {
        let text = "MemTotal:  2000 kB\nMemFree: 5 kB\nMemAvailable: 1500 kB\nCached:   7 kB\n\
                    SwapCached: 9 kB\n";
        assert_eq!(memory(text), Some([2_048_000, 1_536_000, 7168]));
        assert_eq!(memory("MemTotal: 1 kB\n"), None);
    }
}
