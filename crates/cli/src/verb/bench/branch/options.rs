//! What `forkd bench branch` measures, and under which load.

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::str::FromStr;

use clap::ValueEnum;
use forkd_meter_protocol::{Order, Rate, Touch, Write};
use forkd_types::BranchMode;
use serde_json::json;

use crate::console::report::Hinted;
use crate::options::{Global, one_of};
use crate::verb::bench::result;

/// What the guest itself needs besides the areas that are written, MiB.
const GUEST_OWN_MIB: u64 = 64;

/// Measure branches of one sandbox: pause, phases, stalls in the guest, stored bytes
///
/// Starts a separate daemon in temporary directories, and removes everything at the end. Each
/// iteration takes a branch in each mode, and then measures a floor: the same without a branch.
/// bench/README.md explains the figures. FORKD_IMAGE_DIR, FORKD_ACCEL, FORKD_QEMU and FORKD_SHIM
/// mean the same as for `forkd serve`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    forkd bench branch\n  \
    forkd bench branch --mode live,diff,full --dirty-mib 100 --iterations 20 --csv > rows.csv\n  \
    forkd bench branch --write-load max --write-area-mib 256\n  \
    forkd bench branch --chain --iterations 100 --wait ready")]
pub(crate) struct Options {
    /// Image of the sandbox
    #[arg(long, default_value = "python")]
    pub(super) image: String,
    /// Guest RAM in MiB
    #[arg(long, value_name = "N", default_value_t = 1536)]
    pub(super) mem_size_mib: u64,
    /// Virtual CPUs; the stall meter takes one
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub(super) vcpus: u32,
    /// Measure these modes in turn: `live`, `diff`, `full`
    #[arg(long, value_name = "MODES", value_delimiter = ',', default_value = "live")]
    pub(super) mode: Vec<BranchMode>,
    /// What the requests wait for, in turn
    #[arg(long, value_enum, value_delimiter = ',', default_value = "ready,resumed")]
    pub(super) wait: Vec<WaitFor>,
    /// Measure each mode this many times
    #[arg(long, value_name = "N", default_value_t = 50,
        value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) iterations: u32,
    /// Write this many MiB of pages again before each branch
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) dirty_mib: u64,
    /// Let a program in the guest write all the time: `none`, `max` or MiB per second
    #[arg(long, value_name = "LOAD", default_value = "none")]
    pub(super) write_load: WriteLoad,
    /// MiB of memory that the program writes to, over and over
    #[arg(long, value_name = "N", default_value = "256")]
    pub(super) write_area_mib: NonZeroU64,
    /// How much of a page it writes at a time; throughput always counts whole pages
    #[arg(long, value_name = "WHAT", default_value = "page",
        value_parser = one_of::<Touch>(&[("word", "One word"), ("page", "All of it")]))]
    pub(super) write_touch: Touch,
    /// In which order it writes the pages
    #[arg(long, value_name = "ORDER", default_value = "sequential",
        value_parser = one_of::<Order>(&[
            ("sequential", "One page after the other"),
            ("random", "Any page"),
        ]))]
    pub(super) write_order: Order,
    /// Do without the stall meter, which keeps a host CPU busy, and without the floor
    #[arg(long)]
    pub(super) no_gap: bool,
    /// Keep all snapshots, and compare the first branches with the last
    #[arg(long)]
    pub(super) chain: bool,
    /// Put durable files into a temporary directory below this one
    #[arg(long, value_name = "DIR")]
    pub(super) store: Option<PathBuf>,
    /// Put hot layers into a temporary directory below this one, which must be on tmpfs
    #[arg(long, value_name = "DIR")]
    pub(super) hot: Option<PathBuf>,
    /// The program that measures in the guest; by default the one that came with forkd
    #[arg(long, env = "FORKD_METER", value_name = "PATH", hide_env_values = true)]
    pub(super) meter: Option<PathBuf>,
    /// Print a line of CSV for each branch
    #[arg(long)]
    pub(super) csv: bool,
}

/// What a branch request waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum WaitFor {
    /// The usable snapshot
    Ready,
    /// The source that runs again
    Resumed,
}

impl WaitFor {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Resumed => "resumed",
        }
    }
}

/// How much a program in the guest writes, if it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WriteLoad(Option<Rate>);

impl FromStr for WriteLoad {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match (text, text.parse()) {
            ("none", _) => Ok(Self(None)),
            (_, Ok(rate)) => Ok(Self(Some(rate))),
            (_, Err(_)) => Err("use `none`, `max` or MiB per second"),
        }
    }
}

impl Options {
    /// What the meter is told to write, if anything is written.
    pub(super) fn writer(&self) -> Option<Write> {
        let Self { write_area_mib: mib, write_order: order, write_touch: touch, .. } = *self;
        self.write_load.0.map(|rate| Write { mib, rate, order, touch })
    }

    /// Refuses what cannot be measured, before anything starts.
    pub(super) fn check(&self, global: &Global) -> Result<(), Hinted> {
        result::check(global, self.csv)?;
        if self.vcpus < 2 && !self.no_gap {
            let text = "the stall meter takes a virtual CPU for itself, so the guest needs two";
            return Err(Hinted::usage(text, "give --vcpus 2 or more, or --no-gap"));
        }
        let writer = self.writer().map_or(0, |writer| writer.mib.get());
        let needed = self.dirty_mib.saturating_add(writer).saturating_add(GUEST_OWN_MIB);
        if needed > self.mem_size_mib {
            let text = format!("a guest of {} MiB cannot hold this load", self.mem_size_mib);
            return Err(Hinted::usage(text, format!("give --mem-size-mib {needed} or more")));
        }
        Ok(())
    }

    /// What was asked for, for whoever reads the result.
    pub(super) fn as_json(&self) -> serde_json::Value {
        json!({
            "image": self.image,
            "mem_size_mib": self.mem_size_mib,
            "vcpus": self.vcpus,
            "modes": self.mode,
            "wait": self.wait.iter().map(|wait| wait.name()).collect::<Vec<_>>(),
            "iterations": self.iterations,
            "dirty_mib": self.dirty_mib,
            "writer": self.writer(),
            "chain": self.chain,
            "no_gap": self.no_gap,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use std::num::NonZeroU32;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        global: Global,
        #[command(flatten)]
        options: Options,
    }

    fn checked(text: &str) -> Result<Options, String> {
        let words = std::iter::once("bench").chain(text.split_whitespace());
        let line = Line::try_parse_from(words).map_err(|error| error.to_string())?;
        line.options.check(&line.global).map_err(|error| error.to_string())?;
        Ok(line.options)
    }

    #[test]
    fn several_modes_are_taken_in_the_order_given() {
        let options = checked("--mode live,diff,full --wait resumed").unwrap();
        assert_eq!(options.mode, [BranchMode::Live, BranchMode::Diff, BranchMode::Full]);
        assert_eq!(options.wait, [WaitFor::Resumed]);
        let default = checked("").unwrap();
        assert_eq!(default.mode, [BranchMode::Live]);
        assert_eq!(default.wait, [WaitFor::Ready, WaitFor::Resumed]);
        assert_eq!(default.write_load, WriteLoad(None));
    }

    #[test]
    fn a_write_load_is_a_word_or_a_rate() {
        assert_eq!("max".parse(), Ok(WriteLoad(Some(Rate::Max))));
        let hundred = Rate::MibPerSecond(NonZeroU32::new(100).unwrap());
        assert_eq!("100".parse(), Ok(WriteLoad(Some(hundred))));
        for wrong in ["0", "-1", "fast", "", "1.5"] {
            assert!(wrong.parse::<WriteLoad>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_cannot_be_measured_is_refused_before_anything_starts() {
        for (text, word) in [
            ("--vcpus 1", "virtual CPU"),
            ("--mem-size-mib 300 --dirty-mib 250", "300 MiB"),
            ("--mem-size-mib 300 --write-load max --write-area-mib 250", "300 MiB"),
            ("--socket /x", "daemon of its own"),
            ("--json --csv", "exclude"),
            ("--iterations 0", "iterations"),
            ("--mode fast", "fast"),
        ] {
            let problem = checked(text).unwrap_err();
            assert!(problem.contains(word), "{text}: {problem}");
        }
        assert!(checked("--mem-size-mib 300 --write-area-mib 250").is_ok(), "nobody writes");
        assert!(checked("--vcpus 1 --no-gap").is_ok(), "there is no stall meter");
    }
}
