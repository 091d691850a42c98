//! `forkd version`: this program and the daemon.

use forkd_api::Version;
use serde_json::json;

use crate::console::output;
use crate::daemon::connect;
use crate::options::Global;

/// Print the versions of forkd and of the daemon, if it is running
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  forkd version --json")]
pub(crate) struct Options {}

pub(crate) async fn run(global: &Global, _: Options) -> anyhow::Result<()> {
    let own = env!("CARGO_PKG_VERSION");
    let daemon = match connect::running_client(global).await? {
        Some(client) => Some(client.version().await?),
        None => None,
    };
    if global.json {
        return output::json(&json!({ "version": own, "daemon": daemon }));
    }
    let of_daemon = match daemon {
        Some(daemon) => {
            let runs_on = runs_on(&daemon);
            let Version { version, api, isolation, .. } = daemon;
            format!("{version}, interface {api}, {runs_on}, isolation {isolation}")
        }
        None => "not running".to_owned(),
    };
    output::facts(&[("forkd", own.to_owned()), ("daemon", of_daemon)])
}

/// What guests of a daemon run on, and whether that is a security boundary.
pub(crate) fn runs_on(daemon: &Version) -> String {
    let boundary = if daemon.security_boundary { "a" } else { "no" };
    format!("{} ({boundary} security boundary)", daemon.accelerator)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn emulation_is_said_to_be_no_security_boundary() {
        let version = |accelerator: &str, boundary: bool| {
            let text = json!({ "version": "1", "api": "v1", "accelerator": accelerator,
                "security_boundary": boundary });
            runs_on(&serde_json::from_value(text).unwrap())
        };
        assert_eq!(version("tcg", false), "tcg (no security boundary)");
        assert_eq!(version("kvm", true), "kvm (a security boundary)");
    }
}
