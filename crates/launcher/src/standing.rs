//! What the daemon's user is to the kernel, and what helps where the kernel refuses a namespace.

use rustix::thread::CapabilitySet;

/// What a process needs to give its programs users of their own.
const NEEDED_FOR_OWN_IDS: CapabilitySet =
    CapabilitySet::SYS_ADMIN.union(CapabilitySet::SETUID).union(CapabilitySet::SETGID);

/// What the daemon's user is to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It may make namespaces, and become other users.
    Privileged,
    /// It is root, without the capabilities for that.
    BareRoot,
    /// It may make namespaces where the host permits them to everybody.
    Ordinary,
}

impl Standing {
    /// That of this process.
    pub(crate) fn of_process() -> Self {
        let own = rustix::thread::capabilities(None);
        let is_root = rustix::process::geteuid().is_root();
        Self::with(own.is_ok_and(|own| own.effective.contains(NEEDED_FOR_OWN_IDS)), is_root)
    }

    const fn with(can_have_own_ids: bool, is_root: bool) -> Self {
        match (can_have_own_ids, is_root) {
            (true, _) => Self::Privileged,
            (false, true) => Self::BareRoot,
            (false, false) => Self::Ordinary,
        }
    }

    /// What helps where the kernel refuses a namespace or a mount; `read` gives the text of a file.
    pub(crate) fn remedy(self, read: impl Fn(&str) -> Option<String>) -> &'static str {
        let turned = |switch: &&Switch| {
            let concerned = self == Self::Ordinary || switch.concerns_all;
            concerned && read(switch.path).is_some_and(|text| text.trim() == switch.forbids)
        };
        match (SWITCHES.iter().find(turned), self) {
            (Some(switch), _) => switch.remedy,
            (None, Self::Privileged) => "run the daemon as root, or with --isolation best",
            (None, Self::BareRoot) => {
                "give the daemon CAP_SYS_ADMIN, CAP_SETUID and CAP_SETGID, or run it as a user \
                 other than root, or with --isolation best"
            }
            (None, Self::Ordinary) => {
                "no switch of the kernel forbids it, so look at what started the daemon: a \
                 container's seccomp profile, or RestrictNamespaces= of a unit; or use --isolation \
                 best"
            }
        }
    }
}

/// A switch of the kernel that forbids user namespaces.
struct Switch {
    path: &'static str,
    /// The value that does so.
    forbids: &'static str,
    /// To privileged users too.
    concerns_all: bool,
    remedy: &'static str,
}

const SWITCHES: [Switch; 3] = [
    Switch {
        path: "/proc/sys/user/max_user_namespaces",
        forbids: "0",
        concerns_all: true,
        remedy: "user.max_user_namespaces is 0: run `sysctl user.max_user_namespaces=10000`, or \
                 use --isolation best",
    },
    Switch {
        path: "/proc/sys/kernel/unprivileged_userns_clone",
        forbids: "0",
        concerns_all: false,
        remedy: "kernel.unprivileged_userns_clone is 0, as on some Debian hosts: run `sysctl \
                 kernel.unprivileged_userns_clone=1`, run the daemon as root, or use --isolation \
                 best",
    },
    Switch {
        path: "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        forbids: "1",
        concerns_all: false,
        remedy: "kernel.apparmor_restrict_unprivileged_userns is 1, as on Ubuntu: run `sysctl \
                 kernel.apparmor_restrict_unprivileged_userns=0`, give forkd-launcher an AppArmor \
                 profile with `userns,`, run the daemon as root, or use --isolation best",
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    fn remedy(standing: Standing, turned: &[(&str, &str)]) -> &'static str {
        let turned = |path: &str| {
            let found = turned.iter().find(|(name, _)| path.replace('/', ".").ends_with(name));
            found.map(|(_, value)| format!("{value}\n"))
        };
        standing.remedy(turned)
    }

    #[test]
    fn the_switch_that_forbids_namespaces_is_named_and_no_other() {
        use Standing::{BareRoot, Ordinary, Privileged};
        let good = [
            ("user.max_user_namespaces", "96365"),
            ("kernel.unprivileged_userns_clone", "1"),
            ("kernel.apparmor_restrict_unprivileged_userns", "0"),
        ];
        let forbidding = ["0", "0", "1"];
        for (number, value) in forbidding.into_iter().enumerate() {
            let mut switches = good;
            switches[number].1 = value;
            let name = switches[number].0;
            assert!(remedy(Ordinary, &switches).contains(&format!("{name} is {value}")), "{name}");
            // Only the first stops root.
            for root in [Privileged, BareRoot] {
                assert_eq!(remedy(root, &switches).contains(name), number == 0, "{name} {root:?}");
            }
        }
        for none in [&good[..], &[]] {
            assert!(remedy(Ordinary, none).contains("RestrictNamespaces="));
            assert!(remedy(BareRoot, none).contains("CAP_SETUID"));
            assert!(remedy(Privileged, none).contains("as root"));
        }
    }

    #[test]
    fn root_without_capabilities_is_told_from_other_users() {
        assert_eq!(Standing::with(true, true), Standing::Privileged);
        assert_eq!(Standing::with(true, false), Standing::Privileged);
        assert_eq!(Standing::with(false, true), Standing::BareRoot);
        assert_eq!(Standing::with(false, false), Standing::Ordinary);
    }
}
