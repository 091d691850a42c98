//! Secrets of all owners, in a file that only this user reads.
//!
//! Guarantees: a change is durable and complete, or there is none; no value leaves this file but
//! for the gateway, which is handed the file.
//!
//! Does not do: encrypt. Who reads the state directory reads memory of guests anyway.

use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use forkd_netd_protocol::{SECRETS_MAX, Secret, SecretValue, Secrets, read_credential};
use forkd_store::{remove_unfinished, write_private_file};
use forkd_types::Owner;
use forkd_types::network::SecretName;

use crate::EngineError;

const FILE: &str = "secrets";

/// Where secrets are kept.
#[derive(Debug)]
pub(crate) struct SecretStore {
    file: PathBuf,
    /// Held while the file is changed.
    changing: Mutex<()>,
}

impl SecretStore {
    /// Those in this state directory.
    pub(crate) fn open(state: &Path) -> Result<Self, EngineError> {
        let store = Self { file: state.join(FILE), changing: Mutex::default() };
        remove_unfinished(&store.file)?;
        store.read()?;
        Ok(store)
    }

    /// The file, if anything was ever set.
    pub(crate) fn file(&self) -> &Path {
        &self.file
    }

    /// The names of an owner's secrets, and when each was set.
    pub(crate) fn list(&self, owner: &Owner) -> Result<Vec<(SecretName, u64)>, EngineError> {
        let mut secrets = self.read()?;
        let own = secrets.0.remove(owner).unwrap_or_default();
        Ok(own.into_iter().map(|(name, secret)| (name, secret.set_at_unix)).collect())
    }

    /// Sets a secret, or replaces its value.
    pub(crate) fn set(
        &self,
        owner: &Owner,
        name: SecretName,
        value: SecretValue,
    ) -> Result<u64, EngineError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let set_at_unix = now.as_secs();
        self.change(|secrets| {
            let own = secrets.0.entry(owner.clone()).or_default();
            if own.len() >= SECRETS_MAX && !own.contains_key(&name) {
                let problem = format!("you have {SECRETS_MAX} secrets, which is the limit");
                return Err(EngineError::BadRequest { field: "name", problem });
            }
            own.insert(name, Secret { value, set_at_unix });
            Ok(set_at_unix)
        })
    }

    /// Removes a secret.
    pub(crate) fn remove(&self, owner: &Owner, name: &SecretName) -> Result<(), EngineError> {
        self.change(|secrets| {
            let own = secrets.0.get_mut(owner);
            let removed = own.and_then(|own| own.remove(name));
            let unknown = || EngineError::UnknownSecret { name: name.clone() };
            removed.map(drop).ok_or_else(unknown)
        })
    }

    fn change<T>(
        &self,
        change: impl FnOnce(&mut Secrets) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        let _turn = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut secrets = self.read()?;
        let changed = change(&mut secrets)?;
        let bytes = secrets.to_bytes().map_err(|error| self.failed(&error))?;
        write_private_file(&self.file, &bytes)?;
        Ok(changed)
    }

    fn read(&self) -> Result<Secrets, EngineError> {
        let read = match File::open(&self.file) {
            Ok(file) => read_credential(file.as_fd()).and_then(|bytes| Secrets::from_bytes(&bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Secrets::default()),
            Err(error) => Err(error),
        };
        read.map_err(|error| self.failed(&error))
    }

    fn failed(&self, error: &io::Error) -> EngineError {
        EngineError::Internal(format!("cannot use {}: {error}", self.file.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    fn value(text: &str) -> SecretValue {
        SecretValue::try_from(text.to_owned()).unwrap()
    }

    #[test]
    fn what_is_set_is_there_for_its_owner_after_the_next_start() {
        let folder = tempfile::tempdir().unwrap();
        let store = SecretStore::open(folder.path()).unwrap();
        let (one, other) = ("one".parse().unwrap(), "other".parse().unwrap());
        let key: SecretName = "KEY".parse().unwrap();
        store.set(&one, key.clone(), value("sk-1")).unwrap();
        store.set(&one, key.clone(), value("sk-2")).unwrap();
        store.set(&other, "THEIRS".parse().unwrap(), value("sk-3")).unwrap();
        // A change that was interrupted.
        let left = folder.path().join("secrets.ly-0123456789abcdef.new");
        std::fs::write(&left, "sk-4").unwrap();
        let store = SecretStore::open(folder.path()).unwrap();
        assert!(!left.exists());
        let names = |owner| -> Vec<String> {
            store.list(owner).unwrap().iter().map(|(name, _)| name.to_string()).collect()
        };
        assert_eq!((names(&one), names(&other)), (vec!["KEY".into()], vec!["THEIRS".into()]));
        assert_eq!(store.read().unwrap().get(&one, &key).unwrap().expose(), "sk-2");
        let mode = std::fs::metadata(store.file()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(matches!(store.remove(&other, &key), Err(EngineError::UnknownSecret { .. })));
        store.remove(&one, &key).unwrap();
        assert!(names(&one).is_empty());
        let bytes = std::fs::read(store.file()).unwrap();
        assert!(!bytes.windows(4).any(|part| part == b"sk-2"), "it is gone");
        assert!(bytes.windows(4).any(|part| part == b"sk-3"));
    }

    #[test]
    fn an_owner_has_so_many_and_may_replace_the_last() {
        let folder = tempfile::tempdir().unwrap();
        let store = SecretStore::open(folder.path()).unwrap();
        let owner = Owner::default();
        for n in 0..SECRETS_MAX {
            store.set(&owner, format!("K{n}").parse().unwrap(), value("x")).unwrap();
        }
        let error = store.set(&owner, "ONE_MORE".parse().unwrap(), value("x")).unwrap_err();
        assert!(error.to_string().contains("256 secrets"), "{error}");
        store.set(&owner, "K0".parse().unwrap(), value("y")).unwrap();
        store.set(&"other".parse().unwrap(), "K".parse().unwrap(), value("x")).unwrap();
    }
}
