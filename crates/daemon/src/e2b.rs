//! E2B's interfaces: where they are listened for, and how their clients find them.
//!
//! A client's key is a token of the token file, as for requests of forkd's own clients, and makes
//! things for the same owner; so an operator gives tokens of the form `e2b_` and hexadecimal digits
//! where old clients demand it. Besides there is one key of the daemon's own user, derived from a
//! secret of the state directory, so that a first try needs no file: whoever can read it could use
//! the daemon's socket.
//!
//! Does not do: answer. The crate `e2b` does.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forkd_e2b::{Config, E2b, FindCaller};
use forkd_engine::{Engine, private_directory};

use crate::access::Tokens;
use crate::config::E2bConfig;

/// In the state directory.
const FOLDER: &str = "e2b";
/// What a shell must read so that clients find the daemon.
const ENVIRONMENT: &str = "env";

/// Where a daemon with this state directory says how clients find it, while it runs.
#[must_use]
pub fn environment_file(state_dir: &Path) -> PathBuf {
    state_dir.join(FOLDER).join(ENVIRONMENT)
}

/// Opens what answers.
pub(crate) fn open(
    config: &E2bConfig,
    state_dir: &Path,
    engine: Engine,
    tokens: Option<Arc<Tokens>>,
) -> io::Result<E2b> {
    let folder = state_dir.join(FOLDER);
    private_directory(&folder).map_err(|error| io::Error::other(error.to_string()))?;
    let find_caller: FindCaller =
        Arc::new(move |given| tokens.as_ref().and_then(|tokens| tokens.caller(given)));
    E2b::open(Config { engine, folder, find_caller, templates: config.templates.clone() })
}

/// The lines that a shell must read. Gone when this is dropped.
pub(crate) struct Environment(PathBuf);

impl Environment {
    pub(crate) fn write(
        state_dir: &Path,
        address: SocketAddr,
        tls: bool,
        api_key: &str,
    ) -> io::Result<Self> {
        let path = environment_file(state_dir);
        let scheme = if tls { "https" } else { "http" };
        let url = format!("{scheme}://{address}");
        let text = format!(
            "export E2B_API_URL={url}\nexport E2B_SANDBOX_URL={url}\nexport E2B_API_KEY={api_key}\n"
        );
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path)?;
        file.write_all(text.as_bytes())?;
        Ok(Self(path))
    }
}

impl Drop for Environment {
    fn drop(&mut self) {
        fs::remove_file(&self.0).ok();
    }
}
