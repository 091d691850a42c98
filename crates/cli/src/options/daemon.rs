//! Options of a daemon: where it works, with what, and how much it may hold.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use forkd_daemon::{AcceleratorChoice, IsolationPolicy};
use forkd_types::limit;
use forkd_types::network::NetworkLeave;

use super::words::one_of;

/// Where the daemon works and with what: options of `serve` and `doctor`, and variables for the
/// daemon that other verbs start.
#[derive(Debug, Clone, Args)]
pub(crate) struct Places {
    /// Keep everything but hot layers in this directory; gives you a separate daemon
    #[arg(long, env = "FORKD_HOME", value_name = "DIR", hide_env_values = true)]
    pub(crate) home: Option<PathBuf>,
    /// Keep snapshots here: durable files and the registry
    #[arg(
        long = "store",
        visible_alias = "state-dir",
        env = "FORKD_STATE_DIR",
        value_name = "DIR",
        hide_env_values = true
    )]
    pub(crate) state_dir: Option<PathBuf>,
    /// Keep the memory layers in use here; must be on tmpfs
    #[arg(long, env = "FORKD_HOT_DIR", value_name = "DIR", hide_env_values = true)]
    pub(crate) hot_dir: Option<PathBuf>,
    /// Keep at most this much memory in the hot directory, in MiB; without it, as much as fits
    ///
    /// Layers that a sandbox uses stay in any case, and so do layers without a good durable copy.
    #[arg(
        long,
        env = "FORKD_HOT_BUDGET_MIB",
        value_name = "MIB",
        value_parser = clap::value_parser!(u64).range(..=1 << 40),
        hide_env_values = true
    )]
    pub(crate) hot_budget_mib: Option<u64>,
    /// Build templates from the images in this directory
    #[arg(long, env = "FORKD_IMAGE_DIR", value_name = "DIR", hide_env_values = true)]
    pub(crate) image_dir: Option<PathBuf>,
    /// How to run guests
    #[arg(
        long,
        env = "FORKD_ACCEL",
        default_value = "auto",
        value_parser = one_of::<AcceleratorChoice>(&[
            ("auto", "KVM if a guest boots on it, otherwise emulation"),
            ("kvm", "Hardware virtualisation"),
            ("tcg", "Emulation"),
        ]),
        value_name = "WHICH",
        hide_env_values = true
    )]
    pub(crate) accel: AcceleratorChoice,
    /// Refuse to start where guests would be emulated: emulation is not a security boundary
    #[arg(
        long,
        env = "FORKD_REQUIRE_KVM",
        value_parser = clap::builder::BoolishValueParser::new(),
        hide_env_values = true
    )]
    pub(crate) require_kvm: bool,
    /// Use this QEMU instead of the distribution's
    #[arg(long, env = "FORKD_QEMU", value_name = "PATH", hide_env_values = true)]
    pub(crate) qemu: Option<PathBuf>,
    /// Load this library into QEMU instead of the one that came with forkd
    #[arg(long, env = "FORKD_SHIM", value_name = "PATH", hide_env_values = true)]
    pub(crate) shim: Option<PathBuf>,
    /// Confine QEMU with this program instead of the one that came with forkd
    #[arg(long, env = "FORKD_LAUNCHER", value_name = "PATH", hide_env_values = true)]
    pub(crate) launcher: Option<PathBuf>,
    /// How far to keep QEMU from this host: `required` for root and `best` for other users unless
    /// you say it
    #[arg(
        long,
        env = "FORKD_ISOLATION",
        value_parser = one_of::<IsolationPolicy>(&[
            ("required", "QEMU reaches nothing but its own files, or forkd does not start"),
            ("best", "The same; where the host does not permit it, QEMU is a plain process"),
            ("none", "QEMU is a plain process of your user"),
        ]),
        value_name = "POLICY",
        hide_env_values = true
    )]
    pub(crate) isolation: Option<IsolationPolicy>,
    /// The most that any sandbox may reach
    #[arg(
        long,
        env = "FORKD_NETWORK",
        default_value = "public",
        value_parser = one_of::<NetworkLeave>(&[
            ("none", "Nothing"),
            ("public", "Public addresses"),
            ("any", "Private addresses and this host too, where a sandbox's policy names them"),
        ]),
        value_name = "REACH",
        hide_env_values = true
    )]
    pub(crate) network: NetworkLeave,
    /// Trust these certificates, in PEM, beside the host's for servers that header rules name
    ///
    /// For servers with certificates of your own authority, and for tests. Other connections of
    /// sandboxes are not concerned.
    #[arg(long, env = "FORKD_UPSTREAM_CA", value_name = "FILE", hide_env_values = true)]
    pub(crate) upstream_ca: Option<PathBuf>,
    /// Listen on this address too, such as 127.0.0.1:8889; it needs --token-file
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
    /// Most guest RAM of all running sandboxes together, as if they shared none; no limit without
    /// it
    #[arg(
        long,
        env = "FORKD_MAX_GUEST_MEMORY_MIB",
        value_name = "MIB",
        value_parser = clap::value_parser!(u64).range(..=u64::MAX >> 20),
        hide_env_values = true
    )]
    pub(crate) max_guest_memory_mib: Option<u64>,
    /// Most branches at once; those that wait for their turn count too
    #[arg(
        long,
        env = "FORKD_MAX_BRANCHES",
        value_name = "N",
        default_value_t = limit::BRANCHES_AT_ONCE_DEFAULT,
        value_parser = at_most(limit::BRANCHES_AT_ONCE_MAX),
        hide_env_values = true
    )]
    pub(crate) max_branches: usize,
    /// Keep so many QEMU processes ready for the next sandboxes; 0 for none
    #[arg(
        long,
        env = "FORKD_STANDBY",
        value_name = "N",
        default_value_t = limit::STANDBY_DEFAULT,
        value_parser = up_to(limit::STANDBY_MAX),
        hide_env_values = true
    )]
    pub(crate) standby: usize,
    /// Most sandboxes of one owner; no limit without it
    #[arg(
        long,
        env = "FORKD_OWNER_MAX_SANDBOXES",
        value_name = "N",
        value_parser = at_most(limit::SANDBOXES_MAX),
        hide_env_values = true
    )]
    pub(crate) owner_max_sandboxes: Option<usize>,
    /// Most guest RAM of the running sandboxes of one owner, as if they shared none; no limit
    /// without it
    #[arg(
        long,
        env = "FORKD_OWNER_MAX_GUEST_MEMORY_MIB",
        value_name = "MIB",
        value_parser = clap::value_parser!(u64).range(..=u64::MAX >> 20),
        hide_env_values = true
    )]
    pub(crate) owner_max_guest_memory_mib: Option<u64>,
    /// Most space for the snapshots of one owner; no limit without it
    #[arg(
        long,
        env = "FORKD_OWNER_MAX_DISK_MIB",
        value_name = "MIB",
        value_parser = clap::value_parser!(u64).range(..=u64::MAX >> 20),
        hide_env_values = true
    )]
    pub(crate) owner_max_disk_mib: Option<u64>,
    /// Most memory of the host for the VMM of one sandbox; without it, what its guest can come to
    /// need
    #[arg(
        long,
        env = "FORKD_SANDBOX_MAX_MEMORY_MIB",
        value_name = "MIB",
        value_parser = clap::value_parser!(u64)
            .range(limit::MEMORY_LIMIT_MIB_MIN..=limit::MEMORY_LIMIT_MIB_MAX),
        hide_env_values = true
    )]
    pub(crate) sandbox_max_memory_mib: Option<u64>,
    /// Most processors' time for the VMM of one sandbox, such as 1.5; without it, one processor
    /// more than its guest has
    #[arg(
        long,
        env = "FORKD_SANDBOX_MAX_CPUS",
        value_name = "N",
        value_parser = millicpus,
        hide_env_values = true
    )]
    pub(crate) sandbox_max_cpus: Option<u32>,
    /// Most space for all disk overlays of one sandbox; without it, what its disk needs at most
    #[arg(
        long,
        env = "FORKD_SANDBOX_MAX_DISK_MIB",
        value_name = "MIB",
        value_parser = clap::value_parser!(u64)
            .range(limit::DEVICE_STATE_MAX.get() >> 20..=u64::MAX >> 20),
        hide_env_values = true
    )]
    pub(crate) sandbox_max_disk_mib: Option<u64>,
}

/// A number of processors, in thousandths.
fn millicpus(text: &str) -> Result<u32, String> {
    let max = limit::VCPUS_MAX;
    match text.parse::<f64>() {
        // The kernel gives no less than a hundredth.
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it is checked"
        )]
        Ok(cpus) if (0.01..=f64::from(max)).contains(&cpus) => Ok((cpus * 1000.0).round() as u32),
        _ => Err(format!("must be a number of processors from 0.01 to {max}")),
    }
}

/// A number from 1 to `max`.
fn at_most(max: usize) -> impl Fn(&str) -> Result<usize, String> + Clone {
    within(1, max)
}

/// A number from 0 to `max`.
fn up_to(max: usize) -> impl Fn(&str) -> Result<usize, String> + Clone {
    within(0, max)
}

fn within(min: usize, max: usize) -> impl Fn(&str) -> Result<usize, String> + Clone {
    move |text| match text.parse::<usize>() {
        Ok(number) if (min..=max).contains(&number) => Ok(number),
        _ => Err(format!("must be a number from {min} to {max}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        maxima: Maxima,
    }

    #[test]
    fn a_limit_beyond_what_forkd_can_hold_is_refused() {
        let parse = |option: &str, value: &str| Line::try_parse_from(["forkd", option, value]);
        assert_eq!(parse("--max-sandboxes", "32768").unwrap().maxima.max_sandboxes, 32_768);
        assert_eq!(parse("--max-branches", "256").unwrap().maxima.max_branches, 256);
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
