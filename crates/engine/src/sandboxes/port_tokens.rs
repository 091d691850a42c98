//! Tokens that open one port of a sandbox to whoever has them.
//!
//! Guarantees: a token opens one port of one sandbox, until its end or until it is revoked. Only
//! hashes are kept, in a file of the sandbox's run directory: the next daemon knows them, and they
//! go with the sandbox.

use std::io::{self, Read as _};
use std::num::NonZeroU16;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forkd_store::write_private_file;
use forkd_sys::file::open_regular;
use forkd_types::limit;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// Random bytes of a token.
const TOKEN_BYTES: usize = 32;
/// Bytes of the file: more than all tokens of a sandbox take.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// What is kept of a token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Kept {
    port: NonZeroU16,
    sha256: String,
    expires_at_unix: u64,
}

/// A token, which is told once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortToken {
    /// The token: letters and digits.
    pub token: String,
    /// When it ends.
    pub expires_at: SystemTime,
}

/// As many tokens as a sandbox may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooManyTokens;

/// The tokens of all sandboxes.
#[derive(Debug, Default)]
pub(crate) struct PortTokens {
    /// One change after the other.
    changing: Mutex<()>,
}

impl PortTokens {
    /// Makes a token for a port of the sandbox with this run directory.
    pub(crate) fn issue(
        &self,
        folder: &Path,
        port: NonZeroU16,
        ttl: Duration,
    ) -> io::Result<Result<PortToken, TooManyTokens>> {
        let _turn = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let now = SystemTime::now();
        let mut kept = read(folder)?;
        kept.retain(|kept| kept.expires_at_unix > unix(now));
        if kept.len() >= limit::PORT_TOKENS_MAX {
            return Ok(Err(TooManyTokens));
        }
        let mut bytes = [0; TOKEN_BYTES];
        getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
        let (token, expires_at) = (hex::encode(bytes), now + ttl);
        kept.push(Kept { port, sha256: hash(&token), expires_at_unix: unix(expires_at) });
        write(folder, &kept)?;
        Ok(Ok(PortToken { token, expires_at }))
    }

    /// Makes all tokens for a port worthless.
    pub(crate) fn revoke(&self, folder: &Path, port: NonZeroU16) -> io::Result<()> {
        let _turn = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut kept = read(folder)?;
        kept.retain(|kept| kept.port != port);
        write(folder, &kept)
    }
}

/// Whether this is a token for that port now.
pub(crate) fn permits(folder: &Path, port: NonZeroU16, token: &str) -> io::Result<bool> {
    let (hash, now) = (hash(token), unix(SystemTime::now()));
    // Who guesses learns nothing from how long a comparison of hashes takes.
    let is_it =
        |kept: &Kept| kept.port == port && kept.sha256 == hash && kept.expires_at_unix > now;
    Ok(read(folder)?.iter().any(is_it))
}

fn path(folder: &Path) -> PathBuf {
    folder.join("port-tokens.json")
}

fn read(folder: &Path) -> io::Result<Vec<Kept>> {
    let file = match open_regular(&path(folder)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        file => file?,
    };
    let mut text = Vec::new();
    file.take(FILE_BYTES_MAX).read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

/// All of it or nothing.
fn write(folder: &Path, kept: &[Kept]) -> io::Result<()> {
    write_private_file(&path(folder), &serde_json::to_vec(kept)?).map_err(io::Error::other)
}

fn hash(token: &str) -> String {
    hex::encode(Sha256::digest(token))
}

fn unix(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn port(number: u16) -> NonZeroU16 {
        NonZeroU16::new(number).unwrap()
    }

    #[test]
    fn a_token_opens_its_port_until_its_end_or_its_revocation_and_no_other() {
        let (folder, tokens) = (tempfile::tempdir().unwrap(), PortTokens::default());
        let folder = folder.path();
        let web = tokens.issue(folder, port(80), HOUR).unwrap().unwrap().token;
        let other = tokens.issue(folder, port(81), HOUR).unwrap().unwrap().token;
        let late = tokens.issue(folder, port(80), Duration::ZERO).unwrap().unwrap().token;
        let permits = |number, token: &str| permits(folder, port(number), token).unwrap();
        assert!(permits(80, &web) && permits(81, &other));
        assert!(!permits(81, &web) && !permits(80, &other) && !permits(80, &late));
        assert!(!permits(80, "") && !permits(80, &web.to_uppercase()));
        tokens.revoke(folder, port(80)).unwrap();
        assert!(!permits(80, &web) && permits(81, &other));
    }

    #[test]
    fn a_token_is_not_in_the_file_and_there_is_an_end_to_how_many_are() {
        let (folder, tokens) = (tempfile::tempdir().unwrap(), PortTokens::default());
        let folder = folder.path();
        let first = tokens.issue(folder, port(80), HOUR).unwrap().unwrap().token;
        for _ in 1..limit::PORT_TOKENS_MAX {
            tokens.issue(folder, port(80), HOUR).unwrap().unwrap();
        }
        assert_eq!(tokens.issue(folder, port(80), HOUR).unwrap(), Err(TooManyTokens));
        let text = std::fs::read_to_string(path(folder)).unwrap();
        assert!(!text.contains(&first));
        assert!((text.len() as u64) < FILE_BYTES_MAX, "{}", text.len());
        assert!(permits(folder, port(80), &first).unwrap());
        tokens.revoke(folder, port(80)).unwrap();
        assert!(tokens.issue(folder, port(80), HOUR).unwrap().is_ok());
    }
}
