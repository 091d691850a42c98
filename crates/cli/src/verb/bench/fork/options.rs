//! What `forkd bench fork` starts, and what it asks of the children first.

use std::path::PathBuf;

use clap::ValueEnum;
use serde_json::json;

use crate::console::report::Hinted;
use crate::options::Global;
use crate::verb::bench::result;

/// Measure children: their start, their first answer, their memory, what they cost when idle
///
/// Starts a separate daemon in temporary directories, and removes everything at the end. Each
/// iteration starts the children twice: once to time them until all have answered, and once to look
/// at them before anybody has used them. bench/README.md explains the figures. FORKD_IMAGE_DIR,
/// FORKD_ACCEL, FORKD_QEMU and FORKD_SHIM mean the same as for `forkd serve`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    forkd bench fork\n  \
    forkd bench fork -n 100 --eval 1+1 --idle-secs 0\n  \
    forkd bench fork --from sandbox -n 3 --iterations 20 --csv > rows.csv")]
pub(crate) struct Options {
    /// Start this many children with one request
    #[arg(short = 'n', long = "n", value_name = "N", default_value_t = 10,
        value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(super) count: u32,
    /// What they are children of
    #[arg(long, value_enum, value_name = "WHAT", default_value = "snapshot")]
    pub(super) from: Origin,
    /// Branch the source this many times before, so that the children map that many layers more
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) depth: u32,
    /// The first thing that each child does: run this command; it is split as a shell does
    #[arg(long, value_name = "CMD", conflicts_with = "eval", default_value = "true")]
    pub(super) exec: String,
    /// The first thing that each child does: evaluate this Python code
    #[arg(long, value_name = "CODE")]
    pub(super) eval: Option<String>,
    /// Look at the children again when nobody has used them for so long; 0 does not
    #[arg(long, value_name = "SECS", default_value_t = 60)]
    pub(super) idle_secs: u64,
    /// Measure this many times
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) iterations: u32,
    /// Image of the sandboxes
    #[arg(long, default_value = "python")]
    pub(super) image: String,
    /// Guest RAM in MiB
    #[arg(long, value_name = "N", default_value_t = 512)]
    pub(super) mem_size_mib: u64,
    /// Virtual CPUs
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) vcpus: u32,
    /// Put durable files into a temporary directory below this one
    #[arg(long, value_name = "DIR")]
    pub(super) store: Option<PathBuf>,
    /// Put hot layers into a temporary directory below this one, which must be on tmpfs
    #[arg(long, value_name = "DIR")]
    pub(super) hot: Option<PathBuf>,
    /// Print a line of CSV for each child, and one for all
    #[arg(long)]
    pub(super) csv: bool,
    /// The command in words.
    #[arg(skip)]
    pub(super) args: Vec<String>,
}

/// What children are started from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Origin {
    /// A snapshot that is there
    Snapshot,
    /// A running sandbox, which is branched for them
    Sandbox,
}

impl Origin {
    const fn name(self) -> &'static str {
        match self {
            Self::Snapshot => "snapshot",
            Self::Sandbox => "sandbox",
        }
    }
}

impl Options {
    /// Refuses what cannot be measured, before anything starts.
    pub(super) fn checked(mut self, global: &Global) -> Result<Self, Hinted> {
        result::check(global, self.csv)?;
        self.args = shell_words::split(&self.exec).map_err(|error| {
            Hinted::usage(format!("--exec cannot be split: {error}"), "close each quote")
        })?;
        if self.args.is_empty() {
            return Err(Hinted::usage("--exec names no program", "give one, such as `true`"));
        }
        Ok(self)
    }

    /// What was asked for, for whoever reads the result.
    pub(super) fn as_json(&self) -> serde_json::Value {
        json!({
            "image": self.image,
            "mem_size_mib": self.mem_size_mib,
            "vcpus": self.vcpus,
            "n": self.count,
            "from": self.from.name(),
            "depth": self.depth,
            "exec": if self.eval.is_none() { Some(&self.exec) } else { None },
            "eval": self.eval,
            "idle_secs": self.idle_secs,
            "iterations": self.iterations,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        global: Global,
        #[command(flatten)]
        options: Options,
    }

    fn checked(words: &[&str]) -> Result<Options, String> {
        let line = Line::try_parse_from([&["bench"], words].concat());
        let line = line.map_err(|error| error.to_string())?;
        line.options.checked(&line.global).map_err(|error| error.to_string())
    }

    #[test]
    fn the_first_answer_is_that_of_a_program_or_of_python() {
        assert_eq!(checked(&["--exec", "sh -c 'a b'"]).unwrap().args, ["sh", "-c", "a b"]);
        let python = checked(&["--eval", "1+1"]).unwrap();
        assert_eq!(python.as_json()["exec"], serde_json::Value::Null);
        assert_eq!(checked(&[]).unwrap().as_json()["exec"], "true");
    }

    #[test]
    fn what_cannot_be_measured_is_refused_before_anything_starts() {
        for (words, reason) in [
            (&["--exec", "sh -c '"][..], "--exec"),
            (&["--exec", " "], "no program"),
            (&["--exec", "a", "--eval", "b"], "--eval"),
            (&["--url", "http://x"], "daemon of its own"),
            (&["--json", "--csv"], "exclude"),
            (&["-n", "0"], "0"),
            (&["--from", "image"], "image"),
        ] {
            let problem = checked(words).unwrap_err();
            assert!(problem.contains(reason), "{words:?}: {problem}");
        }
    }
}
