//! What a caller asks about its secrets. Even an admin is told of its own alone.

use std::sync::Arc;

use forkd_netd_protocol::SecretValue;
use forkd_types::Owner;
use forkd_types::network::SecretName;

use crate::background::blocking;
use crate::network::Networks;
use crate::{Engine, EngineError};

impl Engine {
    /// The names of the caller's secrets, and when each was set, in seconds since 1970.
    ///
    /// # Errors
    /// When their file cannot be read.
    pub async fn secrets(&self) -> Result<Vec<(SecretName, u64)>, EngineError> {
        self.with_secrets(|networks, owner| networks.secrets.list(&owner)).await
    }

    /// Sets a secret of the caller, or replaces its value; requests under header rules that come
    /// from now on have it. Gives the time of it.
    ///
    /// # Errors
    /// [`EngineError::BadRequest`] for too many, and when the gateway does not answer: the next one
    /// that does has the secret.
    pub async fn set_secret(
        &self,
        name: SecretName,
        value: SecretValue,
    ) -> Result<u64, EngineError> {
        let change = move |networks: &Networks, owner| networks.secrets.set(&owner, name, value);
        self.change_secrets(change).await
    }

    /// Removes a secret of the caller.
    ///
    /// # Errors
    /// [`EngineError::UnknownSecret`], and as [`Self::set_secret`].
    pub async fn remove_secret(&self, name: SecretName) -> Result<(), EngineError> {
        let change = move |networks: &Networks, owner| networks.secrets.remove(&owner, &name);
        self.change_secrets(change).await
    }

    async fn change_secrets<T: Send + 'static>(
        &self,
        change: impl FnOnce(&Networks, Owner) -> Result<T, EngineError> + Send + 'static,
    ) -> Result<T, EngineError> {
        // What is handed over last is what was written last.
        let _turn = self.lifecycle.networks.changing.lock().await;
        let changed = self.with_secrets(change).await?;
        self.lifecycle.networks.hand_over().await?;
        Ok(changed)
    }

    async fn with_secrets<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Networks, Owner) -> Result<T, EngineError> + Send + 'static,
    ) -> Result<T, EngineError> {
        let networks = Arc::clone(&self.lifecycle.networks);
        let owner = self.caller.owner().clone();
        blocking(move || work(&networks, owner)).await?
    }
}
