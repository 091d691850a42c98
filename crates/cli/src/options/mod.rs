//! The command line's grammar.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use forkd_types::limit;

use crate::manner::{Colour, Manner};
use crate::verb;

/// Sandboxes that can be branched while they run.
///
/// A daemon is started for you when none runs; `forkd stop` ends it, and sandboxes run on.
#[derive(Debug, Parser)]
#[command(
    name = "forkd",
    version,
    max_term_width = 100,
    disable_help_subcommand = true,
    after_help = "Examples:\n  \
        forkd run python -- python3 -V         run a program in a sandbox of its own\n  \
        forkd template build python --tag py   make a snapshot to start from\n  \
        forkd fork py -n 2                     start two sandboxes from it\n  \
        forkd shell sb-...                     open a shell in one\n  \
        forkd branch sb-... -n 3               branch it while it runs\n  \
        forkd tree                             see what came from what\n\n\
        Exit codes: 0 done, 1 failed, 2 command line not understood, 3 no daemon answers.\n\
        Verbs that run a program in a sandbox end with its exit code, or with 124 when its time\n\
        was over, with 141 when nobody reads its output any more, and with 128 and the number of\n\
        the signal that ended them."
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// Options of every verb.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Options of every verb")]
pub(crate) struct Global {
    /// The daemon's Unix socket; none is started when it is given
    #[arg(long, global = true, env = "FORKD_SOCKET", value_name = "PATH", hide_env_values = true)]
    pub(crate) socket: Option<PathBuf>,
    /// The daemon's base URL, such as https://host:8889 or unix:/path; FORKD_TOKEN has its token
    #[arg(
        long,
        global = true,
        env = "FORKD_URL",
        value_name = "URL",
        conflicts_with = "socket",
        hide_env_values = true
    )]
    pub(crate) url: Option<String>,
    /// Certificates that sign the one of the daemon at --url, PEM; the system's by default
    #[arg(long, global = true, env = "FORKD_CA_CERT", value_name = "FILE", hide_env_values = true)]
    pub(crate) ca_cert: Option<PathBuf>,
    /// Print JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Print names only: no headings, no remarks, no progress
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
    /// Use colours: auto (on a terminal, unless NO_COLOR is set), always or never
    #[arg(
        long,
        global = true,
        value_enum,
        default_value_t,
        value_name = "WHEN",
        hide_possible_values = true
    )]
    pub(crate) color: Colour,
}

impl Global {
    /// How this run talks.
    pub(crate) fn manner(&self) -> Manner {
        Manner { colour: self.color, quiet: self.quiet }
    }
}

/// Where the daemon works and with what: options of `serve` and `doctor`, and variables for the
/// daemon that other verbs start.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Places {
    /// Everything below this directory, hot layers excepted: for a daemon of its own
    #[arg(long, env = "FORKD_HOME", value_name = "DIR", hide_env_values = true)]
    pub(crate) home: Option<PathBuf>,
    /// Where snapshots are kept: durable files and the registry
    #[arg(
        long = "store",
        visible_alias = "state-dir",
        env = "FORKD_STATE_DIR",
        value_name = "DIR",
        hide_env_values = true
    )]
    pub(crate) state_dir: Option<PathBuf>,
    /// Memory layers in use; must be on tmpfs
    #[arg(long, env = "FORKD_HOT_DIR", value_name = "DIR", hide_env_values = true)]
    pub(crate) hot_dir: Option<PathBuf>,
    /// At most so many MiB of memory layers in the hot directory, as far as no sandbox uses them
    /// and their durable copies are good; by default as many as there is room for
    #[arg(
        long,
        env = "FORKD_HOT_BUDGET_MIB",
        value_name = "MIB",
        value_parser = clap::value_parser!(u64).range(..=1 << 40),
        hide_env_values = true
    )]
    pub(crate) hot_budget_mib: Option<u64>,
    /// Images that templates are built from
    #[arg(long, env = "FORKD_IMAGE_DIR", value_name = "DIR", hide_env_values = true)]
    pub(crate) image_dir: Option<PathBuf>,
    /// How guests run
    #[arg(
        long,
        env = "FORKD_ACCEL",
        value_enum,
        default_value_t,
        value_name = "WHICH",
        hide_env_values = true
    )]
    pub(crate) accel: Accel,
    /// QEMU; by default the distribution's
    #[arg(long, env = "FORKD_QEMU", value_name = "PATH", hide_env_values = true)]
    pub(crate) qemu: Option<PathBuf>,
    /// The library loaded into QEMU
    #[arg(long, env = "FORKD_SHIM", value_name = "PATH", hide_env_values = true)]
    pub(crate) shim: Option<PathBuf>,
    /// Listen on this loopback address besides the Unix socket, such as 127.0.0.1:8889
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Option<SocketAddr>,
}

/// How much the daemon may hold at once: options of `serve`, and variables for the daemon that
/// other verbs start.
#[derive(Debug, Clone, Args)]
pub(crate) struct Maxima {
    /// Most sandboxes at once
    #[arg(
        long,
        env = "FORKD_MAX_SANDBOXES",
        value_name = "N",
        default_value_t = limit::SANDBOXES_DEFAULT,
        value_parser = at_most(limit::SANDBOXES_MAX),
        hide_env_values = true
    )]
    pub(crate) max_sandboxes: usize,
    /// Most guest RAM of all running sandboxes together, counted as if they shared none; by default
    /// not bounded
    #[arg(
        long,
        env = "FORKD_MAX_GUEST_MEMORY_MIB",
        value_name = "MIB",
        value_parser = clap::value_parser!(u64).range(..=u64::MAX >> 20),
        hide_env_values = true
    )]
    pub(crate) max_guest_memory_mib: Option<u64>,
    /// Most branches at once, those that wait for their turn among them
    #[arg(
        long,
        env = "FORKD_MAX_BRANCHES",
        value_name = "N",
        default_value_t = limit::BRANCHES_AT_ONCE_DEFAULT,
        value_parser = at_most(limit::BRANCHES_AT_ONCE_MAX),
        hide_env_values = true
    )]
    pub(crate) max_branches: usize,
}

/// A number from 1 to `max`.
fn at_most(max: usize) -> impl Fn(&str) -> Result<usize, String> + Clone {
    move |text| match text.parse::<usize>() {
        Ok(number) if (1..=max).contains(&number) => Ok(number),
        _ => Err(format!("must be a number from 1 to {max}")),
    }
}

/// How guests run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Accel {
    /// KVM if a guest boots on it, else emulation
    #[default]
    Auto,
    /// Hardware virtualisation
    Kvm,
    /// Emulation
    Tcg,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    Run(verb::run::Options),
    Shell(verb::shell::Options),
    Exec(verb::exec::Options),
    Eval(verb::eval::Options),
    Cp(verb::cp::Options),
    File(verb::file::Options),
    #[command(visible_alias = "ps")]
    Processes(verb::processes::Options),
    Process(verb::process::Options),
    Fork(verb::fork::Options),
    Branch(verb::branch::Options),
    Rollback(verb::rollback::Options),
    Pause(verb::pause::Options),
    Resume(verb::resume::Options),
    Rm(verb::rm::Options),
    Ls(verb::ls::Options),
    Tree(verb::tree::Options),
    Top(verb::top::Options),
    Info(verb::info::Options),
    Ping(verb::ping::Options),
    Logs(verb::logs::Options),
    Images(verb::images::Options),
    Template(verb::template::Options),
    Snapshots(verb::snapshots::Options),
    Snapshot(verb::snapshot::Options),
    Operations(verb::operations::Options),
    Operation(verb::operation::Options),
    Events(verb::events::Options),
    Metrics(verb::metrics::Options),
    Mcp(verb::mcp::Options),
    Serve(verb::serve::Options),
    Stop(verb::stop::Options),
    Doctor(verb::doctor::Options),
    Bench(verb::bench::Options),
    Version(verb::version::Options),
    Completions(verb::completions::Options),
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_grammar_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_limit_beyond_what_forkd_can_hold_is_refused() {
        let parse = |option: &str, value: &str| {
            Cli::try_parse_from(["forkd", "serve", option, value]).map(drop)
        };
        assert!(parse("--max-sandboxes", "32768").is_ok());
        assert!(parse("--max-branches", "256").is_ok());
        assert!(parse("--max-guest-memory-mib", "1").is_ok());
        for (option, value) in [
            ("--max-sandboxes", "0"),
            ("--max-sandboxes", "32769"),
            ("--max-branches", "257"),
            ("--max-guest-memory-mib", "99999999999999999"),
        ] {
            assert!(parse(option, value).is_err(), "{option} {value}");
        }
    }
}
