//! Who says that an artifact is what it is: Ed25519 over the manifest's bytes.

use std::fmt;
use std::str::FromStr;

use ring::rand::SystemRandom;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use serde::{Deserialize, Serialize};

/// Signed before the manifest, so that a signature of anything else is none of an artifact.
const CONTEXT: &[u8] = b"forkd snapshot artifact\0";
const PREFIX: &str = "ed25519:";

/// Why a key or a signature is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// No public key.
    #[error("a key is `ed25519:` and 64 lower-case hex digits")]
    Malformed,
    /// No private key.
    #[error("the file holds no Ed25519 key")]
    Private,
    /// The system has no random numbers.
    #[error("a key cannot be made")]
    Making,
    /// No signature.
    #[error("it is no signature")]
    NoSignature,
    /// The signature is not that key's, or was made for something else.
    #[error("the manifest was not signed with the key that it comes with")]
    Forged,
}

/// What others know a signer by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PublicKey([u8; 32]);

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", hex::encode(self.0))
    }
}

impl FromStr for PublicKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        let digits = text.strip_prefix(PREFIX).ok_or(KeyError::Malformed)?;
        let mut key = [0; 32];
        hex::decode_to_slice(digits, &mut key).map_err(|_| KeyError::Malformed)?;
        if hex::encode(key) == digits { Ok(Self(key)) } else { Err(KeyError::Malformed) }
    }
}

impl TryFrom<String> for PublicKey {
    type Error = KeyError;

    fn try_from(text: String) -> Result<Self, KeyError> {
        text.parse()
    }
}

impl From<PublicKey> for String {
    fn from(key: PublicKey) -> Self {
        key.to_string()
    }
}

/// What a daemon signs with.
pub struct SigningKey(Ed25519KeyPair);

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SigningKey({})", self.public())
    }
}

impl SigningKey {
    /// The bytes of a new key, for [`Self::from_bytes`].
    ///
    /// # Errors
    /// [`KeyError::Making`].
    pub fn generate() -> Result<Vec<u8>, KeyError> {
        let key = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new());
        Ok(key.map_err(|_| KeyError::Making)?.as_ref().to_vec())
    }

    /// The key in these bytes (PKCS8).
    ///
    /// # Errors
    /// [`KeyError::Private`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, KeyError> {
        Ed25519KeyPair::from_pkcs8(bytes).map(Self).map_err(|_| KeyError::Private)
    }

    #[cfg(test)]
    pub(crate) fn of_seed(seed: &[u8; 32]) -> Self {
        Self(Ed25519KeyPair::from_seed_unchecked(seed).unwrap())
    }

    /// Its other half.
    ///
    /// # Panics
    /// Never: a public key has 32 bytes.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        let bytes = self.0.public_key().as_ref();
        PublicKey(bytes.try_into().expect("an Ed25519 key has 32 bytes"))
    }

    /// Signs a manifest.
    #[must_use]
    pub fn sign(&self, manifest: &[u8]) -> Signature {
        let signature = hex::encode(self.0.sign(&message(manifest)));
        Signature { key: self.public(), signature }
    }
}

fn message(manifest: &[u8]) -> Vec<u8> {
    [CONTEXT, manifest].concat()
}

/// A signature, with the key that it was made with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signature {
    key: PublicKey,
    signature: String,
}

impl Signature {
    pub(crate) fn encode(&self) -> Vec<u8> {
        // Two strings are always JSON.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Reads what [`Self::encode`] has written, and nothing else.
    ///
    /// # Errors
    /// [`KeyError::NoSignature`].
    pub fn decode(bytes: &[u8]) -> Result<Self, KeyError> {
        let read: Self = serde_json::from_slice(bytes).map_err(|_| KeyError::NoSignature)?;
        if read.encode() == bytes { Ok(read) } else { Err(KeyError::NoSignature) }
    }

    /// Who signed `manifest`.
    ///
    /// # Errors
    /// [`KeyError::Forged`].
    pub fn verify(&self, manifest: &[u8]) -> Result<PublicKey, KeyError> {
        let signature = hex::decode(&self.signature).map_err(|_| KeyError::NoSignature)?;
        let key = UnparsedPublicKey::new(&ED25519, &self.key.0);
        let verified = key.verify(&message(manifest), &signature);
        verified.map(|()| self.key).map_err(|_| KeyError::Forged)
    }
}
