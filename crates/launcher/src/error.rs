//! Why a program was not started.

use std::io;
use std::path::PathBuf;

use crate::job::Step;
use crate::libraries::LibrariesError;

/// Why a program was not started.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The launcher itself could not be started.
    #[error("the launcher `{program}` could not be started")]
    Spawn {
        /// The launcher.
        program: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The launcher ended or said what is not understood.
    #[error("the launcher {what}")]
    Lost {
        /// What happened.
        what: String,
    },
    /// The kernel refused a step.
    #[error("the host does not permit to {what}: {source}; {remedy}")]
    Refused {
        /// The step; none while the launcher got ready.
        step: Option<Step>,
        /// What was tried.
        what: String,
        /// What would help.
        remedy: &'static str,
        /// Why.
        source: io::Error,
    },
    /// What a program needs could not be found out.
    #[error(transparent)]
    Libraries(#[from] LibrariesError),
}

/// What helps where a step is refused.
pub(crate) fn remedy(step: Option<Step>, errno: i32, own_ids: bool) -> &'static str {
    const EINVAL: i32 = 22;
    const ENOENT: i32 = 2;
    match step {
        Some(Step::Cgroups) => "give the daemon write access to its cgroup",
        Some(Step::Mounts) if errno == ENOENT => "check that the file is there",
        Some(Step::Program) => "check that the program can be executed by every user",
        Some(Step::Root) if errno == EINVAL => {
            "the daemon's `/` must be a mount point: `mount --bind` it to itself"
        }
        _ if own_ids => "run the daemon as root, or with --isolation best",
        _ => {
            "permit user namespaces to unprivileged users (sysctl \
             kernel.unprivileged_userns_clone=1, on Ubuntu \
             kernel.apparmor_restrict_unprivileged_userns=0), run the daemon as root, or use \
             --isolation best"
        }
    }
}
