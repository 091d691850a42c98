//! How far VMMs are kept from this host, and why not further.

use forkd_engine::host::{self, NotIsolated};
use forkd_engine::{IsolationPolicy, private_directory};
use forkd_types::Isolation;

use super::check::Check;
use crate::ServeConfig;

pub(super) const NAME: &str = "isolation";

/// Starts a launcher, as the daemon does.
pub(super) async fn try_out(config: &ServeConfig) -> Check {
    let (engine, policy) = (config.engine(), config.isolation);
    let directory = config.run_dir.join(format!("r{:x}", std::process::id()));
    let tried = tokio::task::spawn_blocking(move || {
        if let Err(error) = private_directory(&directory) {
            return Err(NotIsolated {
                problem: error.to_string(),
                remedy: "give this user a run directory of its own".to_owned(),
            });
        }
        let tried = host::try_isolation(&engine, &directory);
        std::fs::remove_dir(&directory).ok();
        tried
    });
    match tried.await {
        Ok(tried) => judge(policy, tried, rustix::process::geteuid().is_root()),
        Err(error) => Check::fail(NAME, error.to_string(), "this is a defect of forkd"),
    }
}

/// What it means for a daemon with this policy, which root runs or another user.
fn judge(policy: IsolationPolicy, tried: Result<Isolation, NotIsolated>, is_root: bool) -> Check {
    let plain = "QEMU is a plain process of this user";
    match (policy, tried) {
        (IsolationPolicy::None, tried) => {
            let reached = match tried {
                Ok(level) => format!("this host permits `{level}`"),
                Err(NotIsolated { problem, .. }) => problem,
            };
            let detail = format!("`none`: {plain}, because the configuration says so; {reached}");
            Check::warn(NAME, detail, "leave out --isolation and FORKD_ISOLATION")
        }
        (_, Ok(Isolation::Full)) => {
            let detail = "`full`: QEMU has namespaces, an empty root and a user of its own";
            Check::ok(NAME, detail)
        }
        (_, Ok(level)) => {
            let why = match is_root {
                true => "root lacks CAP_SYS_ADMIN, CAP_SETUID or CAP_SETGID here",
                false => "only root can give it a user of its own",
            };
            let detail = format!("`{level}`: QEMU has namespaces and an empty root; {why}");
            Check::warn(NAME, detail, "for `full`, run the daemon as root with all capabilities")
        }
        (IsolationPolicy::Best, Err(NotIsolated { problem, remedy })) => {
            Check::warn(NAME, format!("`none`: {plain}; {problem}"), remedy)
        }
        (IsolationPolicy::Required, Err(NotIsolated { problem, remedy })) => {
            Check::fail(NAME, problem, remedy)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Outcome;
    use super::*;

    #[test]
    fn the_level_that_is_reached_is_told_and_why_not_more() {
        use IsolationPolicy::{Best, None, Required};
        let refused = || {
            let (problem, remedy) = ("no namespace".to_owned(), "sysctl".to_owned());
            Err(NotIsolated { problem, remedy })
        };
        for (policy, tried, is_root, outcome, words) in [
            (Required, Ok(Isolation::Full), true, Outcome::Ok, "`full`"),
            (Best, Ok(Isolation::Namespaces), false, Outcome::Warn, "only root"),
            (Required, Ok(Isolation::Namespaces), true, Outcome::Warn, "CAP_SETUID"),
            (Best, refused(), false, Outcome::Warn, "`none`: QEMU is a plain process"),
            (Required, refused(), false, Outcome::Fail, "no namespace"),
            (None, Ok(Isolation::Full), true, Outcome::Warn, "this host permits `full`"),
            (None, refused(), false, Outcome::Warn, "no namespace"),
        ] {
            let check = judge(policy, tried, is_root);
            assert_eq!(check.outcome, outcome, "{check:?}");
            assert!(check.detail.contains(words), "{check:?}");
            assert_eq!(check.remedy.is_some(), outcome != Outcome::Ok, "{check:?}");
        }
        // What helps is the launcher's word.
        assert_eq!(judge(Best, refused(), false).remedy.as_deref(), Some("sysctl"));
    }
}
