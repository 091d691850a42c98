//! How far VMMs are kept from this host: by a launcher, if there may be one.

use forkd_store::private_directory;
use forkd_types::{Isolation, SandboxId};
use forkd_vmm::{Accelerator, Jail, VmmTools, qemu};

use crate::{EngineConfig, EngineError, IsolationPolicy, describe};

/// The first user of VMMs. Up to 2^31 no range of users is given to anybody else, neither by
/// distributions nor by systemd (`docs/UIDS-GIDS.md` there).
const FIRST_USER: u32 = 0x7000_0000;
/// How many digits of a sandbox's id make its user.
const DIGITS: usize = 7;

/// The user that programs run as that read disks of guests, and no VMM.
pub(super) const TOOL_USER: u32 = FIRST_USER;

/// The user that the network gateway runs as, and no VMM.
pub(crate) const GATEWAY_USER: u32 = FIRST_USER + 1;

/// Whether a sandbox may have this id: the users of `taken` and that of no VMM are not its own.
pub(crate) fn has_free_user<'a>(
    id: &SandboxId,
    mut taken: impl Iterator<Item = &'a SandboxId>,
) -> bool {
    let user = vmm_user(id);
    ![TOOL_USER, GATEWAY_USER].contains(&user) && taken.all(|other| vmm_user(other) != user)
}

/// The user that the VMM of a sandbox runs as, which is told by its id.
fn vmm_user(id: &SandboxId) -> u32 {
    let digits = id.as_str().trim_start_matches("sb-").get(..DIGITS).unwrap_or_default();
    FIRST_USER + u32::from_str_radix(digits, 16).unwrap_or(0)
}

/// `jail` as the VMM of a sandbox has it, if VMMs are isolated so far.
pub(super) fn jail(isolation: Isolation, id: &SandboxId, jail: Jail) -> Option<Jail> {
    match isolation {
        Isolation::None => None,
        Isolation::Namespaces => Some(Jail { user: None, ..jail }),
        Isolation::Full => Some(Jail { user: Some(vmm_user(id)), ..jail }),
    }
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
            let isolation = reached_by(&tools);
            if isolation == Isolation::Namespaces {
                tracing::info!("VMMs have this daemon's user: only root can give each its own");
            }
            Ok((tools, isolation))
        }
        Err(error) if config.isolation == IsolationPolicy::Best => {
            tracing::warn!(error = %describe(&error), "VMMs are not isolated from this host");
            Ok((tools, Isolation::None))
        }
        Err(error) => Err(error.into()),
    }
}

/// How far VMMs are isolated that are started with `tools`.
pub(super) fn reached_by(tools: &VmmTools) -> Isolation {
    match &tools.launcher {
        None => Isolation::None,
        Some(launcher) if launcher.has_own_ids() => Isolation::Full,
        Some(_) => Isolation::Namespaces,
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
        let ids = [
            "sb-abcdef100000",
            "sb-abcdef1fffff",
            "sb-000000012345",
            "sb-000000112345",
            "sb-00000020ffff",
        ];
        let [one, same, of_tools, of_gateway, free] =
            ids.map(|id| id.parse::<SandboxId>().unwrap());
        assert!(!has_free_user(&same, [&one].into_iter()), "it is the other's");
        assert!(!has_free_user(&of_tools, std::iter::empty()), "it reads disks");
        assert!(!has_free_user(&of_gateway, std::iter::empty()), "it is the gateway");
        assert!(has_free_user(&free, [&one].into_iter()));
    }
}
