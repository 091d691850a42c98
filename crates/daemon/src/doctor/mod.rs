//! Whether this host has what forkd needs, checked without a daemon.
//!
//! ```text
//! directories -> programs -> isolation -> kernel -> limits -> network
//!     -> a guest: boot, fork, branch
//! ```
//!
//! Each check does what the daemon will do, on files and in groups of its own, and leaves nothing.
//!
//! Guarantees: every finding that is not good has a remedy; what is required fails, what is
//! optional warns; a check that is not made because another failed says so.
//!
//! Does not do: change the host, or look at a daemon that runs.

mod check;
mod directories;
mod guest;
mod isolation;
mod kernel;
mod network;
mod programs;
mod resources;

use forkd_engine::Accelerator;

pub use self::check::{Check, Outcome};
use crate::ServeConfig;

/// Runs all checks for a daemon with this configuration, and tells of each as it is made. Boots a
/// small guest, which takes some seconds under emulation.
pub async fn run(config: &ServeConfig, tell: &mut (dyn FnMut(&Check) + Send)) -> Vec<Check> {
    let mut checks = Vec::new();
    let mut add = |check: Check| {
        tell(&check);
        let usable = check.is_usable();
        checks.push(check);
        usable
    };
    // Every one is looked at, also after one that fails.
    let hot = add(directories::hot(&config.hot_dir));
    let state = add(directories::state(&config.state_dir));
    let run = add(directories::run(config));
    let places = hot && state && run;
    let qemu = add(programs::qemu(config).await);
    let shim = add(programs::shim(&config.shim));
    let commands = match qemu && shim && run {
        true => add(programs::commands(config).await),
        false => {
            add(Check::not_made(programs::COMMANDS));
            false
        }
    };
    let confined = match qemu && shim && run {
        true => add(isolation::try_out(config).await),
        false => {
            add(Check::not_made(isolation::NAME));
            false
        }
    };
    let disks = add(programs::qemu_img().await);
    let images = add(programs::images(&config.image_dir));
    let guests = places && commands && confined && disks && images;
    let kvm = match guests {
        true => kernel::kvm(config).await,
        false => Check::not_made(kernel::KVM),
    };
    let accelerator = match kvm.outcome {
        Outcome::Ok => Accelerator::Kvm,
        Outcome::Warn | Outcome::Fail => Accelerator::Tcg,
    };
    add(kvm);
    let protects = match hot {
        true => add(kernel::write_protection(&config.hot_dir)),
        false => add(Check::not_made(kernel::USERFAULTFD)),
    };
    add(match hot {
        true => kernel::page_scan(&config.hot_dir),
        false => Check::not_made(kernel::PAGEMAP_SCAN),
    });
    for check in resources::all().into_iter().chain(network::all()) {
        add(check);
    }
    add(match guests {
        true => guest::try_out(config, accelerator, protects).await,
        false => Check::not_made(guest::NAME),
    });
    checks
}
