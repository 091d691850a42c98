//! How far VMMs are kept from this host: by a launcher, if there may be one.

use forkd_store::private_directory;
use forkd_types::{Isolation, SandboxId};
use forkd_vmm::{Accelerator, VmmTools, qemu};

use crate::{EngineConfig, EngineError, IsolationPolicy, describe};

/// The first user of VMMs. Up to 2^31 no range of users is given to anybody else, neither by
/// distributions nor by systemd (`docs/UIDS-GIDS.md` there).
const FIRST_USER: u32 = 0x7000_0000;
/// How many digits of a sandbox's id make its user.
const DIGITS: usize = 7;

/// The user that the VMM of a sandbox runs as, which is told by its id.
pub(crate) fn vmm_user(id: &SandboxId) -> u32 {
    let digits = id.as_str().trim_start_matches("sb-").get(..DIGITS).unwrap_or_default();
    FIRST_USER + u32::from_str_radix(digits, 16).unwrap_or(0)
}

/// Gives `tools` a launcher as the configuration wants it. Tells how far VMMs are isolated by it.
pub(super) fn isolated(
    config: &EngineConfig,
    tools: VmmTools,
    accelerator: Accelerator,
) -> Result<(VmmTools, Isolation), EngineError> {
    if config.isolation == IsolationPolicy::None {
        return Ok((tools, Isolation::None));
    }
    let root = config.run_dir.join("root");
    private_directory(&root)?;
    let launcher = config.launcher.clone();
    match qemu::with_launcher(tools.clone(), launcher, accelerator, root) {
        Ok(tools) => {
            let own_ids = tools.launcher.as_ref().is_some_and(|launcher| launcher.has_own_ids());
            Ok((tools, if own_ids { Isolation::Full } else { Isolation::Namespaces }))
        }
        Err(error) if config.isolation == IsolationPolicy::Best => {
            tracing::warn!(error = %describe(&error), "VMMs are not isolated from this host");
            Ok((tools, Isolation::None))
        }
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_of_a_vmm_is_told_by_its_sandbox_and_is_nobody_elses() {
        let user = |id: &str| vmm_user(&id.parse().unwrap());
        assert_eq!(user("sb-000000012345"), 0x7000_0000);
        assert_eq!(user("sb-fffffff00000"), 0x7fff_ffff);
        assert_eq!(user("sb-abcdef100000"), user("sb-abcdef1fffff"));
        assert_ne!(user("sb-abcdef100000"), user("sb-abcdef200000"));
    }
}
