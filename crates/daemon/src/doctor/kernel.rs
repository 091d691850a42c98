//! What captures need of the kernel, and what executes guests.

use std::path::Path;

use forkd_engine::{Accelerator, AcceleratorChoice, host};

use super::check::Check;
use crate::ServeConfig;

pub(super) const KVM: &str = "KVM";
pub(super) const USERFAULTFD: &str = "userfaultfd";
pub(super) const PAGEMAP_SCAN: &str = "PAGEMAP_SCAN";

/// What emulation costs; a measurement is in `docs/guides/deployment.md`.
const EMULATION: &str =
    "guests are emulated, which is several times slower and not a security boundary";

/// Boots a guest on KVM, or repeats what was found since the host booted.
pub(super) async fn kvm(config: &ServeConfig) -> Check {
    if config.accelerator == AcceleratorChoice::Forced(Accelerator::Tcg) {
        let remedy = format!("{EMULATION}; unset FORKD_ACCEL to let forkd choose");
        return Check::warn(KVM, "not used: the configuration asks for emulation", remedy);
    }
    let verdict = forkd_engine::probe_kvm(&config.engine()).await;
    if verdict.works {
        return Check::ok(KVM, verdict.reason);
    }
    let detail = format!("not usable: {}", verdict.reason);
    let get_it = "use a host with hardware virtualisation, load the kvm module, and give this user \
                  access to /dev/kvm";
    match config.accelerator {
        AcceleratorChoice::Auto => {
            Check::warn(KVM, detail, format!("{EMULATION}; for KVM, {get_it}"))
        }
        AcceleratorChoice::KvmOnly => {
            let remedy = format!("{get_it}; or unset FORKD_REQUIRE_KVM, and {EMULATION}");
            Check::fail(KVM, detail, remedy)
        }
        AcceleratorChoice::Forced(_) => {
            Check::fail(KVM, detail, "unset FORKD_ACCEL, and forkd emulates guests here")
        }
    }
}

/// Protects a page of memory like a guest's, and writes to it.
pub(super) fn write_protection(directory: &Path) -> Check {
    let release = release();
    match host::try_write_protection(directory) {
        Ok(found) if found.unpopulated => {
            Check::ok(USERFAULTFD, format!("forkd held and released a protected page; {release}"))
        }
        Ok(_) => {
            let remedy = "Linux 6.4 or later shortens the pause of a branch";
            let detail = format!("forkd held and released a protected page; {release}");
            Check::warn(USERFAULTFD, detail, remedy)
        }
        Err(problem) => {
            let remedy = "run `sysctl vm.unprivileged_userfaultfd=1`, or give this user access to \
                          /dev/userfaultfd; Linux 5.19 is needed; without it, mode `diff` works";
            Check::fail(USERFAULTFD, format!("{problem}; {release}"), remedy)
        }
    }
}

/// Looks for a page that was written.
pub(super) fn page_scan(directory: &Path) -> Check {
    match host::try_page_scan(directory) {
        Ok(true) => Check::ok(PAGEMAP_SCAN, "forkd found a written page"),
        Ok(false) => {
            let remedy = "forkd finds dirty pages in a slower way; Linux 6.7 has the faster one";
            Check::warn(PAGEMAP_SCAN, format!("{} does not have it", release()), remedy)
        }
        Err(problem) => {
            let remedy = "run forkd as root or as the VMMs' user: it reads /proc/PID/pagemap";
            Check::fail(PAGEMAP_SCAN, problem, remedy)
        }
    }
}

fn release() -> String {
    format!("Linux {}", rustix::system::uname().release().to_string_lossy())
}

#[cfg(test)]
mod tests {
    use super::super::Outcome;
    use super::*;

    #[test]
    fn memory_that_cannot_be_had_fails_with_a_remedy() {
        let nowhere = Path::new("/nonexistent");
        let check = page_scan(nowhere);
        assert!(check.outcome == Outcome::Fail && check.remedy.is_some(), "{check:?}");
    }
}
