//! What only this daemon knows: one key, in a file of its state directory. Every token that a
//! client is given is derived from it, so nothing else has to be kept, and tokens outlive the
//! daemon as its sandboxes do.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use forkd_types::SandboxId;
use ring::hmac;
use subtle::ConstantTimeEq as _;

const KEY_BYTES: usize = 32;
const FILE: &str = "key";

/// The key.
#[derive(Clone)]
pub(crate) struct Secret(hmac::Key);

impl Secret {
    /// Reads the key of `folder`, or makes one.
    pub(crate) fn open(folder: &Path) -> io::Result<Self> {
        let path = folder.join(FILE);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => make(folder, &path)?,
            Err(error) => return Err(error),
        };
        if bytes.len() != KEY_BYTES {
            let text = format!("`{}` is damaged: remove it to have another", path.display());
            return Err(io::Error::other(text));
        }
        Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, &bytes)))
    }

    /// The key that lets the daemon's own user in. Older clients demand this form.
    pub(crate) fn api_key(&self) -> String {
        format!("e2b_{}", self.derive("api key", ""))
    }

    /// Whether `given` is [`Self::api_key`]. Takes the same time whatever it is.
    pub(crate) fn is_api_key(&self, given: &[u8]) -> bool {
        self.api_key().as_bytes().ct_eq(given).into()
    }

    /// The token that opens the agent of a sandbox.
    pub(crate) fn access_token(&self, id: &SandboxId) -> String {
        self.derive("access token", id.as_str())
    }

    /// Whether `given` opens the agent of this sandbox.
    pub(crate) fn opens(&self, id: &SandboxId, given: &[u8]) -> bool {
        self.access_token(id).as_bytes().ct_eq(given).into()
    }

    /// The token that a server in a sandbox is reached with, where not everybody may.
    pub(crate) fn traffic_token(&self, id: &SandboxId) -> String {
        self.derive("traffic token", id.as_str())
    }

    /// Whether `given` lets a client reach servers in this sandbox.
    pub(crate) fn admits(&self, id: &SandboxId, given: &[u8]) -> bool {
        self.traffic_token(id).as_bytes().ct_eq(given).into()
    }

    fn derive(&self, purpose: &str, of: &str) -> String {
        hex::encode(hmac::sign(&self.0, format!("{purpose}\0{of}").as_bytes()))
    }
}

/// Written under another name first: a daemon that is killed leaves no half of a key.
fn make(folder: &Path, path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; KEY_BYTES];
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
    let new = folder.join("key.new");
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(&bytes)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn tokens_outlive_the_daemon_and_differ_between_sandboxes() {
        let folder = tempfile::tempdir().unwrap();
        let [first, second] = [(); 2].map(|()| Secret::open(folder.path()).unwrap());
        let (a, b) = (SandboxId::random(), SandboxId::random());
        assert_eq!(first.access_token(&a), second.access_token(&a));
        assert!(second.opens(&a, first.access_token(&a).as_bytes()));
        assert!(!second.opens(&b, first.access_token(&a).as_bytes()));
        assert!(!second.opens(&a, b""));
        assert!(first.admits(&a, second.traffic_token(&a).as_bytes()));
        for wrong in [second.traffic_token(&b), second.access_token(&a)] {
            assert!(!first.admits(&a, wrong.as_bytes()), "{wrong}");
        }
        let other = tempfile::tempdir().unwrap();
        let other = Secret::open(other.path()).unwrap();
        assert!(!other.opens(&a, first.access_token(&a).as_bytes()), "another daemon's");
    }

    #[test]
    fn the_api_key_has_the_form_that_old_clients_demand_and_opens_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let secret = Secret::open(folder.path()).unwrap();
        let key = secret.api_key();
        let digits = key.strip_prefix("e2b_").unwrap();
        assert!(digits.len() == 64 && digits.bytes().all(|b| b.is_ascii_hexdigit()));
        assert!(secret.is_api_key(key.as_bytes()));
        for wrong in ["", "e2b_", &key[..key.len() - 1], &secret.access_token(&SandboxId::random())]
        {
            assert!(!secret.is_api_key(wrong.as_bytes()), "{wrong}");
        }
    }

    #[test]
    fn nobody_else_reads_the_key_and_a_damaged_one_is_named() {
        let folder = tempfile::tempdir().unwrap();
        Secret::open(folder.path()).unwrap();
        let path = folder.path().join(FILE);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::write(&path, b"short").unwrap();
        let error = Secret::open(folder.path()).err().unwrap().to_string();
        assert!(error.contains("damaged"), "{error}");
    }
}
