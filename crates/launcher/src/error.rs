//! Why a program was not started.

use std::io;
use std::path::PathBuf;

use rustix::io::Errno;

use crate::job::Step;
use crate::libraries::LibrariesError;
use crate::standing::Standing;

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

impl LaunchError {
    /// What the host does not permit, and what would help.
    #[must_use]
    pub fn not_permitted(&self) -> Option<(String, &'static str)> {
        let Self::Refused { what, remedy, source, .. } = self else { return None };
        Some((format!("the host does not permit to {what}: {source}"), remedy))
    }
}

/// What helps where a step is refused.
pub(crate) fn remedy(step: Option<Step>, errno: i32) -> &'static str {
    match step {
        Some(Step::Cgroups) => "give the daemon write access to its cgroup",
        Some(Step::Mounts) if errno == Errno::NOENT.raw_os_error() => {
            "check that the file is there"
        }
        Some(Step::Program) => "check that the program can be executed by every user",
        Some(Step::Root) if errno == Errno::INVAL.raw_os_error() => {
            "the daemon's `/` must be a mount point: `mount --bind` it to itself"
        }
        _ => Standing::of_process().remedy(|path| std::fs::read_to_string(path).ok()),
    }
}
