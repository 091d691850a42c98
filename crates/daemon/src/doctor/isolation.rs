//! How far VMMs are kept from this host, and why not further.

use forkd_engine::host::{self, NotIsolated, Reached};
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
fn judge(policy: IsolationPolicy, tried: Result<Reached, NotIsolated>, is_root: bool) -> Check {
    let plain = "QEMU is a plain process of this user";
    match (policy, tried) {
        (IsolationPolicy::None, tried) => {
            let reached = match tried {
                Ok(Reached { level, .. }) => format!("this host permits `{level}`"),
                Err(NotIsolated { problem, .. }) => problem,
            };
            let detail = format!("`none`: {plain}, because the configuration says so; {reached}");
            Check::warn(NAME, detail, "leave out --isolation and FORKD_ISOLATION")
        }
        (_, Ok(Reached { level: Isolation::Full, .. })) => {
            let whose = if is_root { "" } else { ", of those that this user was given" };
            let detail =
                format!("`full`: QEMU has namespaces, an empty root and a user of its own{whose}");
            Check::ok(NAME, detail)
        }
        (_, Ok(Reached { level, no_own_users })) => {
            let (why, remedy) = match no_own_users {
                Some(NotIsolated { problem, remedy }) => {
                    (problem, format!("for `full`, {remedy}; or run the daemon as root"))
                }
                None => (
                    "root lacks CAP_SYS_ADMIN, CAP_SETUID or CAP_SETGID here".to_owned(),
                    "for `full`, run the daemon as root with all capabilities".to_owned(),
                ),
            };
            let detail = format!(
                "`{level}`: QEMU has namespaces and an empty root, but no user of its own: {why}"
            );
            Check::warn(NAME, detail, remedy)
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

    fn not_isolated(problem: &str, remedy: &str) -> NotIsolated {
        NotIsolated { problem: problem.to_owned(), remedy: remedy.to_owned() }
    }

    #[test]
    fn the_level_that_is_reached_is_told_and_why_not_more() {
        use IsolationPolicy::{Best, None, Required};
        let refused = || Err(not_isolated("no namespace", "sysctl"));
        let reached = |level| Ok(Reached { level, no_own_users: Option::None });
        let without_ids = || {
            let why = not_isolated("/etc/subuid gives this user no ids", "`usermod --add-subuids`");
            Ok(Reached { level: Isolation::Namespaces, no_own_users: Some(why) })
        };
        for (policy, tried, is_root, outcome, words) in [
            (Required, reached(Isolation::Full), true, Outcome::Ok, "`full`"),
            (Best, reached(Isolation::Full), false, Outcome::Ok, "this user was given"),
            (Best, without_ids(), false, Outcome::Warn, "/etc/subuid gives"),
            (Required, reached(Isolation::Namespaces), true, Outcome::Warn, "CAP_SETUID"),
            (Best, refused(), false, Outcome::Warn, "`none`: QEMU is a plain process"),
            (Required, refused(), false, Outcome::Fail, "no namespace"),
            (None, reached(Isolation::Full), true, Outcome::Warn, "this host permits `full`"),
            (None, refused(), false, Outcome::Warn, "no namespace"),
        ] {
            let check = judge(policy, tried, is_root);
            assert_eq!(check.outcome, outcome, "{check:?}");
            assert!(check.detail.contains(words), "{check:?}");
            assert_eq!(check.remedy.is_some(), outcome != Outcome::Ok, "{check:?}");
        }
        // What helps is the launcher's word.
        assert_eq!(judge(Best, refused(), false).remedy.as_deref(), Some("sysctl"));
        let remedy = judge(Best, without_ids(), false).remedy.unwrap();
        assert!(remedy.contains("`usermod --add-subuids`") && remedy.contains("root"), "{remedy}");
    }
}
