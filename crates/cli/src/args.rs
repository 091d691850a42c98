//! The command line's grammar.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use forkd_types::limit;

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
        forkd template build python --tag py   make a snapshot to start from\n  \
        forkd fork py -n 2                     start two sandboxes from it\n  \
        forkd exec sb-... -- python3 -V        run a program in one\n  \
        forkd branch sb-... -n 3               branch it while it runs\n\n\
        Exit codes: 0 done, 1 failed, 2 command line not understood, 3 no daemon answers;\n\
        exec and eval end with the exit code of what they ran, or with 124 when its time was over."
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// Options of every verb.
#[derive(Debug, Clone, Args)]
pub(crate) struct Global {
    /// The daemon's Unix socket; none is started when it is given
    #[arg(long, global = true, env = "FORKD_SOCKET", value_name = "PATH", hide_env_values = true)]
    pub(crate) socket: Option<PathBuf>,
    /// The daemon's base URL, such as https://host:8889; FORKD_TOKEN has the token for it
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
    Serve(verb::serve::Options),
    Template(verb::template::Options),
    Images(verb::images::Options),
    Snapshots(verb::snapshots::Options),
    Snapshot(verb::snapshot::Options),
    Ls(verb::ls::Options),
    Fork(verb::fork::Options),
    Branch(verb::branch::Options),
    Exec(verb::exec::Options),
    Eval(verb::eval::Options),
    Cp(verb::cp::Options),
    Rm(verb::rm::Options),
    Logs(verb::logs::Options),
    Mcp(verb::mcp::Options),
    Operations(verb::operations::Options),
    Operation(verb::operation::Options),
    Events(verb::events::Options),
    Doctor(verb::doctor::Options),
    Bench(verb::bench::Options),
    Stop(verb::stop::Options),
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
    fn every_verb_has_help_and_an_example() {
        for verb in Cli::command().get_subcommands() {
            assert!(verb.get_about().is_some(), "{}", verb.get_name());
            let examples = verb.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(examples.contains("Example"), "{} has no example", verb.get_name());
        }
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

    fn long_help(command: &mut clap::Command, text: &mut String) {
        command.build();
        let help = command.render_long_help();
        text.push_str(&format!("## {}\n\n{help}\n", command.get_name()));
        let names: Vec<_> = command.get_subcommands().map(|c| c.get_name().to_owned()).collect();
        for name in names {
            if let Some(verb) = command.find_subcommand_mut(&name) {
                long_help(verb, text);
            }
        }
    }

    /// `FORKD_UPDATE=1` writes the file anew.
    #[test]
    fn the_committed_help_is_current() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/help.txt");
        let mut current = String::new();
        long_help(&mut Cli::command().term_width(100), &mut current);
        let current: String = current.lines().map(|l| format!("{}\n", l.trim_end())).collect();
        if std::env::var_os("FORKD_UPDATE").is_some() {
            std::fs::write(&path, &current).unwrap();
        }
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(committed == current, "run the tests with FORKD_UPDATE=1 and commit the change");
    }
}
