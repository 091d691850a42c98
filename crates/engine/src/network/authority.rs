//! The certificate authority with which the gateway speaks to guests as the hosts that have header
//! rules. There is one for each state directory; templates are built with its certificate.
//!
//! Guarantees: its private key is in a file that only this user reads, and in no answer.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use forkd_netd_protocol::AUTHORITY_NAME;
use forkd_store::{remove_unfinished, write_private_file};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair, KeyUsagePurpose};
use sha2::{Digest as _, Sha256};

use crate::EngineError;

/// Its private key, and behind it its certificate.
const FILE: &str = "gateway-ca.pem";
const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----";
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// A template may be old.
const LIFE: Duration = Duration::from_secs(30 * 365 * 24 * 60 * 60);

/// The authority of one state directory.
#[derive(Debug)]
pub(crate) struct Authority {
    file: PathBuf,
    certificate: String,
    fingerprint: String,
}

impl Authority {
    /// The one in this state directory, which is made if there is none.
    pub(crate) fn open(state: &Path) -> Result<Self, EngineError> {
        let file = state.join(FILE);
        remove_unfinished(&file)?;
        let failed = |error: &dyn std::fmt::Display| {
            EngineError::Internal(format!("cannot use {}: {error}", file.display()))
        };
        let text = match fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let made = make().map_err(|error| failed(&error))?;
                write_private_file(&file, made.as_bytes())?;
                made
            }
            Err(error) => return Err(failed(&error)),
        };
        let Some(begin) = text.find(CERTIFICATE) else {
            return Err(failed(&"it has no certificate; remove it, and build templates anew"));
        };
        let certificate = text[begin..].to_owned();
        let fingerprint = hex::encode(Sha256::digest(&certificate));
        Ok(Self { file, certificate, fingerprint })
    }

    /// Its certificate, in PEM.
    pub(crate) fn certificate(&self) -> &str {
        &self.certificate
    }

    /// SHA-256 of its certificate.
    pub(crate) fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// The file with its key.
    pub(crate) fn file(&self) -> &Path {
        &self.file
    }
}

fn make() -> Result<String, rcgen::Error> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, AUTHORITY_NAME);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params.not_before = (SystemTime::now() - DAY).into();
    params.not_after = (SystemTime::now() + LIFE).into();
    let certificate = params.self_signed(&key)?;
    Ok(key.serialize_pem() + &certificate.pem())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn there_is_one_for_each_state_directory_and_its_key_is_private() {
        let folder = tempfile::tempdir().unwrap();
        let first = Authority::open(folder.path()).unwrap();
        let again = Authority::open(folder.path()).unwrap();
        assert_eq!(first.fingerprint(), again.fingerprint());
        assert!(!first.certificate().contains("PRIVATE"), "guests get it");
        let mode = fs::metadata(first.file()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let other = tempfile::tempdir().unwrap();
        assert_ne!(Authority::open(other.path()).unwrap().fingerprint(), first.fingerprint());
        fs::write(first.file(), "nonsense").unwrap();
        let error = Authority::open(folder.path()).unwrap_err();
        assert!(error.to_string().contains("has no certificate"), "{error}");
    }
}
