//! Who signs the artifacts that this daemon exports, and whose artifacts it imports.
//!
//! ```text
//! <state>/signing-key    made when it is needed first; mode 0600
//! <state>/trusted-keys   by name, as JSON
//! ```
//!
//! Guarantees: a change is durable or there is none; the daemon's own key is always trusted.
//!
//! Does not do: keep keys for each owner. Device state is input of a VMM of this host, so whom to
//! trust is the operator's to say.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use forkd_artifact::{KeyError, PublicKey, SigningKey};
use forkd_store::{remove_unfinished, write_private_file};
use forkd_types::limit;
use serde::{Deserialize, Serialize};

use crate::EngineError;

const NAME_CHARS_MAX: usize = 64;

/// A key of somebody whose artifacts are imported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrustedKey {
    /// The key.
    pub key: PublicKey,
    /// Since when, in seconds since 1970.
    pub trusted_at_unix: u64,
}

type Trusted = BTreeMap<String, TrustedKey>;

/// The keys of one daemon.
#[derive(Debug)]
pub(crate) struct Keys {
    own_file: PathBuf,
    trusted_file: PathBuf,
    own: Mutex<Option<Arc<SigningKey>>>,
    trusted: Mutex<Trusted>,
}

impl Keys {
    /// Those in this state directory.
    pub(crate) fn open(state: &Path) -> Result<Self, EngineError> {
        let (own_file, trusted_file) = (state.join("signing-key"), state.join("trusted-keys"));
        remove_unfinished(&own_file)?;
        remove_unfinished(&trusted_file)?;
        let read = match read(&trusted_file)? {
            Some(bytes) => serde_json::from_slice(&bytes),
            None => Ok(Trusted::default()),
        };
        let trusted = Mutex::new(read.map_err(|error| unusable(&trusted_file, &error))?);
        Ok(Self { own_file, trusted_file, own: Mutex::default(), trusted })
    }

    /// The key of this daemon. Blocks when it is asked for first.
    pub(crate) fn own(&self) -> Result<Arc<SigningKey>, EngineError> {
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(key) = &*own {
            return Ok(Arc::clone(key));
        }
        let broken = |error: KeyError| unusable(&self.own_file, &error);
        let bytes = match read(&self.own_file)? {
            Some(bytes) => bytes,
            None => {
                let bytes = SigningKey::generate().map_err(broken)?;
                write_private_file(&self.own_file, &bytes)?;
                bytes
            }
        };
        let key = Arc::new(SigningKey::from_bytes(&bytes).map_err(broken)?);
        *own = Some(Arc::clone(&key));
        Ok(key)
    }

    /// Under which name a key is trusted; none for the daemon's own.
    pub(crate) fn require_trusted(&self, key: &PublicKey) -> Result<Option<String>, EngineError> {
        if *key == self.own()?.public() {
            return Ok(None);
        }
        let trusted = self.trusted();
        let found = trusted.iter().find(|(_, trusted)| trusted.key == *key);
        let name = found.map(|(name, _)| Some(name.clone()));
        name.ok_or_else(|| EngineError::KeyNotTrusted { key: *key })
    }

    pub(crate) fn list(&self) -> Trusted {
        self.trusted().clone()
    }

    /// Trusts a key from now on, in place of the one that had this name.
    pub(crate) fn trust(&self, name: &str, key: PublicKey) -> Result<(), EngineError> {
        let good = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.@".contains(&byte);
        if name.is_empty() || name.len() > NAME_CHARS_MAX || !name.bytes().all(good) {
            let problem =
                format!("use 1 to {NAME_CHARS_MAX} letters, digits, `-`, `_`, `.` or `@`");
            return Err(EngineError::BadRequest { field: "name", problem });
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.change(|trusted| {
            if trusted.len() >= limit::TRUSTED_KEYS_MAX && !trusted.contains_key(name) {
                let problem = format!("{} keys are trusted already", trusted.len());
                return Err(EngineError::BadRequest { field: "name", problem });
            }
            let trusted_at_unix = now.as_secs();
            trusted.insert(name.to_owned(), TrustedKey { key, trusted_at_unix });
            Ok(())
        })
    }

    /// Trusts a key no more.
    pub(crate) fn remove(&self, name: &str) -> Result<(), EngineError> {
        let unknown =
            || EngineError::UnknownKey { name: name.chars().take(NAME_CHARS_MAX).collect() };
        self.change(|trusted| trusted.remove(name).map(drop).ok_or_else(unknown))
    }

    fn trusted(&self) -> MutexGuard<'_, Trusted> {
        self.trusted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(
        &self,
        change: impl FnOnce(&mut Trusted) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        let mut trusted = self.trusted();
        let mut changed = trusted.clone();
        change(&mut changed)?;
        let bytes = serde_json::to_vec(&changed);
        let bytes = bytes.map_err(|error| unusable(&self.trusted_file, &error))?;
        write_private_file(&self.trusted_file, &bytes)?;
        *trusted = changed;
        Ok(())
    }
}

fn read(path: &Path) -> Result<Option<Vec<u8>>, EngineError> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unusable(path, &error)),
    }
}

fn unusable(path: &Path, error: &dyn std::error::Error) -> EngineError {
    EngineError::Internal(format!("cannot use {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some_key() -> PublicKey {
        SigningKey::from_bytes(&SigningKey::generate().unwrap()).unwrap().public()
    }

    #[test]
    fn keys_outlive_the_daemon_and_trust_ends_when_it_is_taken_back() {
        let state = tempfile::tempdir().unwrap();
        let keys = Keys::open(state.path()).unwrap();
        let (own, other) = (keys.own().unwrap().public(), some_key());
        assert_eq!(keys.require_trusted(&own).unwrap(), None);
        let refused = keys.require_trusted(&other).unwrap_err();
        assert!(matches!(refused, EngineError::KeyNotTrusted { key } if key == other));
        keys.trust("ann@office", other).unwrap();
        let keys = Keys::open(state.path()).unwrap();
        assert_eq!(keys.own().unwrap().public(), own);
        assert_eq!(keys.require_trusted(&other).unwrap().as_deref(), Some("ann@office"));
        keys.remove("ann@office").unwrap();
        assert!(keys.require_trusted(&other).is_err());
        assert!(matches!(keys.remove("ann@office"), Err(EngineError::UnknownKey { .. })));
        assert!(Keys::open(state.path()).unwrap().list().is_empty());
    }

    #[test]
    fn nobody_else_reads_the_key_and_a_name_is_a_plain_word() {
        use std::os::unix::fs::PermissionsExt as _;
        let state = tempfile::tempdir().unwrap();
        let keys = Keys::open(state.path()).unwrap();
        keys.own().unwrap();
        let mode = fs::metadata(state.path().join("signing-key")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        for name in ["", "a b", "a/b", "ä", &"a".repeat(65)] {
            let refused = keys.trust(name, some_key()).unwrap_err();
            assert!(matches!(refused, EngineError::BadRequest { field: "name", .. }), "{name}");
        }
        fs::write(state.path().join("signing-key"), b"rubbish").unwrap();
        let error = Keys::open(state.path()).unwrap().own().unwrap_err().to_string();
        assert!(error.contains("signing-key"), "{error}");
    }
}
