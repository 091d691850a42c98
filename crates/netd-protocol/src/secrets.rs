//! Secrets, as the daemon keeps them in a file and hands them to the gateway.
//!
//! Guarantees: a value is shown nowhere, and its memory is overwritten when it is dropped.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;

use forkd_types::Owner;
use forkd_types::network::{HEADER_BYTES_MAX, SecretName, is_header_text};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

/// Secrets of one owner.
pub const SECRETS_MAX: usize = 256;
/// Of each file that comes with a request.
pub(crate) const CREDENTIAL_BYTES_MAX: usize = 16 << 20;

/// The value of a secret.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct SecretValue(Zeroizing<String>);

/// Why something is no value of a secret. It does not repeat it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SecretValueError {
    /// It is empty, or too long.
    #[error("the value of a secret has 1 to {HEADER_BYTES_MAX} bytes")]
    Length,
    /// No header could hold it.
    #[error("the value of a secret is one line of ASCII, without spaces at its ends")]
    Text,
}

impl SecretValue {
    /// The value, which must reach nobody but the server that it is for.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for SecretValue {
    type Error = SecretValueError;

    fn try_from(value: String) -> Result<Self, SecretValueError> {
        let value = Zeroizing::new(value);
        if !(1..=HEADER_BYTES_MAX).contains(&value.len()) {
            return Err(SecretValueError::Length);
        }
        if !is_header_text(value.as_bytes()) || value.trim() != value.as_str() {
            return Err(SecretValueError::Text);
        }
        Ok(Self(value))
    }
}

impl fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretValue")
    }
}

/// A secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Secret {
    /// What it stands for.
    pub value: SecretValue,
    /// When it was set, in seconds since 1970.
    pub set_at_unix: u64,
}

/// All secrets, by whose they are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secrets(pub BTreeMap<Owner, BTreeMap<SecretName, Secret>>);

impl Secrets {
    /// A secret of an owner.
    #[must_use]
    pub fn get(&self, owner: &Owner, name: &SecretName) -> Option<&SecretValue> {
        Some(&self.0.get(owner)?.get(name)?.value)
    }

    /// What is written in a file. Nothing of the error is the file's.
    ///
    /// # Errors
    /// When it is no such file.
    pub fn from_bytes(bytes: &[u8]) -> io::Result<Self> {
        let damaged = |_| io::Error::new(io::ErrorKind::InvalidData, "the secrets are damaged");
        rmp_serde::from_slice(bytes).map_err(damaged)
    }

    /// What a file holds.
    ///
    /// # Errors
    /// Never: every secret can be written.
    pub fn to_bytes(&self) -> io::Result<Zeroizing<Vec<u8>>> {
        rmp_serde::to_vec_named(self).map(Zeroizing::new).map_err(io::Error::other)
    }
}

/// Reads a file from its beginning, wherever its descriptor stands.
///
/// # Errors
/// What the kernel says; and for a file that is too long.
pub fn read_credential(file: BorrowedFd<'_>) -> io::Result<Zeroizing<Vec<u8>>> {
    let bytes = usize::try_from(rustix::fs::fstat(file)?.st_size).unwrap_or(usize::MAX);
    if bytes > CREDENTIAL_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the file is too long"));
    }
    let mut buffer = Zeroizing::new(vec![0; bytes]);
    let mut filled = 0;
    while filled < bytes {
        let offset = u64::try_from(filled).unwrap_or(u64::MAX);
        match rustix::io::pread(file, &mut buffer[filled..], offset)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => filled += read,
        }
    }
    Ok(buffer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd as _;

    #[test]
    fn a_value_is_shown_nowhere_and_is_one_line() {
        let value = SecretValue::try_from("sk-12 34".to_owned()).unwrap();
        assert_eq!(value.expose(), "sk-12 34");
        let secret = Secret { value, set_at_unix: 7 };
        let owned = [("KEY".parse().unwrap(), secret)].into();
        let secrets = Secrets([(Owner::default(), owned)].into());
        assert!(!format!("{secrets:?}").contains("sk-12"), "{secrets:?}");
        for (bad, error) in [
            ("", SecretValueError::Length),
            ("a\n", SecretValueError::Text),
            ("a\r\nb: c", SecretValueError::Text),
            (" a", SecretValueError::Text),
            ("clé", SecretValueError::Text),
            ("a\0", SecretValueError::Text),
        ] {
            assert_eq!(SecretValue::try_from(bad.to_owned()), Err(error));
        }
        let long = "x".repeat(HEADER_BYTES_MAX + 1);
        assert_eq!(SecretValue::try_from(long), Err(SecretValueError::Length));
        let file = tempfile::tempfile().unwrap();
        rustix::io::write(&file, &secrets.to_bytes().unwrap()).unwrap();
        let read = read_credential(file.as_fd()).unwrap();
        assert_eq!(Secrets::from_bytes(&read).unwrap(), secrets);
        let error = Secrets::from_bytes(&read[1..]).unwrap_err();
        assert!(!error.to_string().contains("sk-12"), "{error}");
    }
}
