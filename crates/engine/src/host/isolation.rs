//! How far VMMs are kept from this host: by a launcher, if there may be one.

use forkd_launcher::{OwnIds, SUBORDINATE_IDS_MIN, SubordinateIds};
use forkd_store::private_directory;
use forkd_sys::user::has_process;
use forkd_types::{Accelerator, Isolation, SandboxId, limit};
use forkd_vmm::{Jail, OwnUser, VmmTools, qemu};

use crate::{EngineConfig, EngineError, IsolationPolicy, describe};

/// The first user of VMMs where the daemon is root. Up to 2^31 no range of users is given to
/// anybody else, neither by distributions nor by systemd (`docs/UIDS-GIDS.md` there).
const FIRST_USER: u32 = 0x7000_0000;
/// How many digits of a sandbox's id make its user.
const DIGITS: usize = 7;

/// Places of users among those of a host: of the programs that read disks of guests, of the network
/// gateway, and of the VMM that KVM is tried with. No other VMM has any of them.
const TOOL: u32 = 0;
const GATEWAY: u32 = 1;
const PROBE: u32 = 2;
/// How many of these there are.
pub(crate) const OF_NO_SANDBOX: u32 = 3;

// Among so many, a free one is drawn soon.
const _: () = assert!(SUBORDINATE_IDS_MIN as usize >= 2 * limit::SANDBOXES_MAX);

/// Who programs run as that handle what guests control.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Users(OwnIds);

impl Users {
    /// The daemon's user.
    pub(crate) const DAEMONS: Self = Self(OwnIds::None);

    /// Those that a launcher can give.
    pub(crate) const fn of(ids: OwnIds) -> Self {
        Self(ids)
    }

    /// Of the VMM of a sandbox, which is told by its id.
    pub(crate) fn of_vmm(self, id: &SandboxId) -> Option<OwnUser> {
        let digits = id.as_str().trim_start_matches("sb-").get(..DIGITS).unwrap_or_default();
        let digits = u32::from_str_radix(digits, 16).unwrap_or(0);
        match self.0 {
            OwnIds::None | OwnIds::Any => self.at(digits),
            OwnIds::Subordinate(ids) => {
                let places = ids.users.count.min(ids.groups.count).saturating_sub(OF_NO_SANDBOX);
                self.at(OF_NO_SANDBOX + digits.checked_rem(places)?)
            }
        }
    }

    /// Of the programs that read disks of guests.
    pub(crate) fn of_tools(self) -> Option<OwnUser> {
        self.at(TOOL)
    }

    /// Of the network gateway.
    pub(crate) fn of_gateway(self) -> Option<OwnUser> {
        self.at(GATEWAY)
    }

    /// Of a VMM that belongs to no sandbox.
    pub(super) fn of_probe(self) -> Option<OwnUser> {
        self.at(PROBE)
    }

    fn at(self, place: u32) -> Option<OwnUser> {
        match self.0 {
            OwnIds::None => None,
            OwnIds::Any => Some(OwnUser { user: FIRST_USER + place, lent_to: None }),
            OwnIds::Subordinate(SubordinateIds { users, groups }) => {
                let lent_to = Some(groups.first + place);
                Some(OwnUser { user: users.first + place, lent_to })
            }
        }
    }

    /// Whether a sandbox may have this id: its VMM's user is none that sandboxes of `others` have,
    /// or that is no VMM's.
    pub(crate) fn are_free<'a>(
        self,
        id: &SandboxId,
        mut others: impl Iterator<Item = &'a SandboxId>,
    ) -> bool {
        let Some(own) = self.of_vmm(id) else { return true };
        let of_others = [self.of_tools(), self.of_gateway(), self.of_probe()];
        !of_others.contains(&Some(own)) && others.all(|other| self.of_vmm(other) != Some(own))
    }

    /// Whether a process on this host has the user of this sandbox's VMM. Other daemons of this
    /// user have the same range, and so have its containers; one that an earlier daemon has started
    /// keeps what it had. Where users are root's to give, they are too many to meet by chance.
    pub(crate) fn are_in_use(self, id: &SandboxId) -> bool {
        match (self.0, self.of_vmm(id)) {
            (OwnIds::Subordinate(_), Some(own)) => has_process(own.user),
            _ => false,
        }
    }
}

/// `jail` as a program with this user has it, if VMMs are isolated so far.
pub(super) fn jail(isolation: Isolation, own: Option<OwnUser>, jail: Jail) -> Option<Jail> {
    let user = own.map(|own| own.user);
    let lent_to = own.and_then(|own| own.lent_to);
    (isolation != Isolation::None).then_some(Jail { user, lent_to, ..jail })
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
                let why = tools.launcher.as_ref().and_then(|launcher| launcher.why_no_ids());
                let why = why.map(ToString::to_string).unwrap_or_default();
                tracing::info!(why, "VMMs have this daemon's user; see `forkd doctor`");
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
    match tools.launcher.as_ref().map(|launcher| launcher.own_ids()) {
        None => Isolation::None,
        Some(OwnIds::None) => Isolation::Namespaces,
        Some(OwnIds::Any | OwnIds::Subordinate(_)) => Isolation::Full,
    }
}

/// Who VMMs are that are started with `tools`.
pub(super) fn users_of(tools: &VmmTools) -> Users {
    tools.launcher.as_ref().map_or(Users::DAEMONS, |launcher| Users::of(launcher.own_ids()))
}

#[cfg(test)]
mod tests {
    use forkd_launcher::IdRange;

    use super::*;

    const OF_ROOT: Users = Users::of(OwnIds::Any);

    fn subordinate(users: u32, groups: u32) -> Users {
        let range = |first| IdRange { first, count: SUBORDINATE_IDS_MIN };
        Users::of(OwnIds::Subordinate(SubordinateIds {
            users: range(users),
            groups: range(groups),
        }))
    }

    fn id(text: &str) -> SandboxId {
        text.parse().unwrap()
    }

    #[test]
    fn the_user_of_a_vmm_is_told_by_its_sandbox_and_is_nobody_elses() {
        let user = |text: &str| OF_ROOT.of_vmm(&id(text)).unwrap().user;
        assert_eq!(user("sb-000000012345"), 0x7000_0000);
        assert_eq!(user("sb-fffffff00000"), 0x7fff_ffff);
        assert_eq!(user("sb-abcdef100000"), user("sb-abcdef1fffff"));
        assert_ne!(user("sb-abcdef100000"), user("sb-abcdef200000"));
        let ids = [
            "sb-abcdef100000",
            "sb-abcdef1fffff",
            "sb-000000012345",
            "sb-000000112345",
            "sb-00000030ffff",
        ];
        let [one, same, of_tools, of_gateway, free] = ids.map(id);
        assert!(!OF_ROOT.are_free(&same, [&one].into_iter()), "it is the other's");
        assert!(!OF_ROOT.are_free(&of_tools, std::iter::empty()), "it reads disks");
        assert!(!OF_ROOT.are_free(&of_gateway, std::iter::empty()), "it is the gateway");
        assert!(OF_ROOT.are_free(&free, [&one].into_iter()));
        assert_eq!(Users::DAEMONS.of_vmm(&one), None);
        assert!(Users::DAEMONS.are_free(&same, [&one].into_iter()));
    }

    #[test]
    fn subordinate_users_are_within_their_range_and_no_two_programs_have_one() {
        let users = subordinate(100_000, 300_000);
        let others = [users.of_tools(), users.of_gateway(), users.of_probe()];
        let last = 100_000 + SUBORDINATE_IDS_MIN - 1;
        let mut met = std::collections::BTreeSet::new();
        for number in (0..0x0fff_ffff).step_by(4_099) {
            let own = users.of_vmm(&id(&format!("sb-{number:07x}00000"))).unwrap();
            assert!((100_000..=last).contains(&own.user), "{own:?}");
            assert_eq!(own.lent_to, Some(own.user + 200_000));
            assert!(!others.contains(&Some(own)), "{own:?}");
            met.insert(own.user);
        }
        assert!(met.len() > 40_000, "all of the range are used: {}", met.len());
    }

    #[test]
    fn ids_that_differ_can_have_one_subordinate_user_and_then_one_of_them_is_not_drawn() {
        let users = subordinate(100_000, 100_000);
        let places = SUBORDINATE_IDS_MIN - OF_NO_SANDBOX;
        let [one, same] = [5, 5 + places].map(|digits| id(&format!("sb-{digits:07x}00000")));
        let free = id("sb-000000600000");
        assert_eq!(users.of_vmm(&one), users.of_vmm(&same));
        assert!(!users.are_free(&same, [&free, &one].into_iter()));
        assert!(users.are_free(&same, [&free].into_iter()));
    }

    #[test]
    fn a_user_that_a_process_has_is_in_use() {
        // This test's own user is the first of the range.
        let me = rustix::process::geteuid().as_raw();
        let own = subordinate(me.saturating_sub(OF_NO_SANDBOX), 1);
        // Root's would begin below zero.
        if me >= OF_NO_SANDBOX {
            assert!(own.are_in_use(&id("sb-000000000000")));
        }
        assert!(!subordinate(4_294_000_000, 1).are_in_use(&id("sb-000000000000")));
        assert!(!OF_ROOT.are_in_use(&id("sb-000000000000")), "it is not asked");
    }
}
