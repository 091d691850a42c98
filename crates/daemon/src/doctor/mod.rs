//! Whether this host has what forkd needs, checked without a daemon.
//!
//! ```text
//! directories -> programs -> kernel -> confinement -> a guest: boot, fork, branch, child
//! ```
//!
//! Each check does what the daemon will do, on files and in groups of its own, and leaves nothing.
//!
//! Guarantees: every finding that is not good has a remedy; what is required fails, what is
//! optional warns; a check that is not made because another failed says so.
//!
//! Does not do: change the host, or look at a daemon that runs.

mod directories;
mod guest;
mod kernel;
mod programs;
mod resources;

use forkd_engine::Accelerator;
use serde::Serialize;

use crate::ServeConfig;

/// How a check went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// As it should be.
    Ok,
    /// Works, with less: slower, or without something that not everybody needs.
    Warn,
    /// Required, and does not work.
    Fail,
}

/// One check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What was checked.
    pub name: &'static str,
    /// How it went.
    pub outcome: Outcome,
    /// What was found.
    pub detail: String,
    /// What to do about it, unless all is well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Check {
    /// As it should be.
    pub fn ok(name: &'static str, detail: impl Into<String>) -> Self {
        Self { name, outcome: Outcome::Ok, detail: detail.into(), remedy: None }
    }

    fn warn(name: &'static str, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        let remedy = Some(remedy.into());
        Self { name, outcome: Outcome::Warn, detail: detail.into(), remedy }
    }

    fn fail(name: &'static str, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { outcome: Outcome::Fail, ..Self::warn(name, detail, remedy) }
    }

    /// Not made, because it needs what another check found to be missing.
    fn not_made(name: &'static str) -> Self {
        Self::warn(name, "not tried: it needs what failed above", "correct that, then ask again")
    }

    /// Whether what was checked can be used.
    fn is_usable(&self) -> bool {
        self.outcome != Outcome::Fail
    }
}

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
    let disks = add(programs::qemu_img().await);
    let images = add(programs::images(&config.image_dir));
    let guests = places && commands && disks && images;
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
    for check in resources::all() {
        add(check);
    }
    add(match guests {
        true => guest::try_out(config, accelerator, protects).await,
        false => Check::not_made(guest::NAME),
    });
    checks
}
