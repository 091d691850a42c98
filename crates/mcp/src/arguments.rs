//! What the tools are given. The words here are what a model reads.

use forkd_types::limit;
use schemars::JsonSchema;
use serde::Deserialize;

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Create {
    /// A snapshot's tag, or an image's name such as `python`: its template is built if need be.
    #[serde(default = "python")]
    pub(crate) template: String,
}

fn python() -> String {
    "python".to_owned()
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct RunCode {
    /// The sandbox's id.
    pub(crate) sandbox: String,
    /// Python statements or an expression. Variables stay for the next call.
    pub(crate) code: String,
    /// After this time, in seconds, the code is interrupted.
    #[serde(default = "timeout")]
    pub(crate) timeout_secs: u64,
}

const fn timeout() -> u64 {
    limit::EXEC_TIMEOUT_DEFAULT.as_secs()
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct RunCommand {
    /// The sandbox's id.
    pub(crate) sandbox: String,
    /// The command, run by /bin/sh.
    pub(crate) command: String,
    /// Working directory.
    #[serde(default)]
    pub(crate) cwd: Option<String>,
    /// As whom it runs: `USER` or `USER:GROUP`, by name or number. By default as the image says.
    #[serde(default)]
    pub(crate) user: Option<String>,
    /// After this time, in seconds, the command is killed.
    #[serde(default = "timeout")]
    pub(crate) timeout_secs: u64,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct ReadFile {
    /// The sandbox's id.
    pub(crate) sandbox: String,
    /// Absolute path in the sandbox.
    pub(crate) path: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct WriteFile {
    /// The sandbox's id.
    pub(crate) sandbox: String,
    /// Absolute path in the sandbox. Missing directories above it are made.
    pub(crate) path: String,
    /// The whole content.
    pub(crate) text: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Branch {
    /// The sandbox's id.
    pub(crate) sandbox: String,
    /// Children to start, 0 to 1000. With 0 there is only the snapshot.
    #[serde(default = "one")]
    pub(crate) children: u32,
    /// Tag of the new snapshot; chosen for you when absent.
    #[serde(default)]
    pub(crate) tag: Option<String>,
}

const fn one() -> u32 {
    1
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Fork {
    /// The snapshot's tag.
    pub(crate) snapshot: String,
    /// Sandboxes to start, 1 to 1000.
    #[serde(default = "one")]
    pub(crate) n: u32,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Rollback {
    /// The sandbox's id; it stays the same.
    pub(crate) sandbox: String,
    /// The snapshot's tag.
    pub(crate) snapshot: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Network {
    /// The sandbox's id.
    pub(crate) sandbox: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct ExposePort {
    /// The sandbox's id.
    pub(crate) sandbox: String,
    /// The TCP port that a server in it listens on, 1 to 65535.
    pub(crate) port: u16,
    /// How long the address is valid, in seconds; by default an hour.
    #[serde(default)]
    pub(crate) ttl_secs: Option<u64>,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Delete {
    /// A sandbox's id (`sb-...`) or a snapshot's tag.
    pub(crate) name: String,
    /// With a snapshot: delete the sandboxes and snapshots that depend on it too.
    #[serde(default)]
    pub(crate) cascade: bool,
}
