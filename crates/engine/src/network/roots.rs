//! Certificates of the authorities from which the gateway believes those of servers: the host's,
//! and those of the operator. The gateway cannot read them itself, because it sees no file of the
//! host.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::sync::OnceLock;

use pem::Pem;
use rustix::fs::MemfdFlags;

use crate::EngineError;

/// Whom to believe.
#[derive(Debug)]
pub(crate) struct TrustedRoots {
    /// The host's, as PEM. They are read once.
    host: OnceLock<String>,
    /// Of the operator.
    additional: Option<PathBuf>,
}

impl TrustedRoots {
    /// The host's, and those in this file.
    pub(crate) fn with(additional: Option<PathBuf>) -> Self {
        Self { host: OnceLock::new(), additional }
    }

    /// All of them in one file without a name.
    pub(crate) fn file(&self) -> Result<File, EngineError> {
        let mut text = self.host.get_or_init(of_host).clone();
        if let Some(path) = &self.additional {
            let failed = |error: io::Error| {
                EngineError::Internal(format!("cannot read {}: {error}", path.display()))
            };
            text += &fs::read_to_string(path).map_err(failed)?;
        }
        let written = rustix::fs::memfd_create("roots", MemfdFlags::CLOEXEC)
            .map_err(io::Error::from)
            .and_then(|fd| {
                let mut file = File::from(fd);
                file.write_all(text.as_bytes()).map(|()| file)
            });
        let failed = |error| EngineError::Internal(format!("cannot keep certificates: {error}"));
        written.map_err(failed)
    }
}

fn of_host() -> String {
    let found = rustls_native_certs::load_native_certs();
    if found.certs.is_empty() {
        tracing::warn!(errors = ?found.errors, "this host trusts no certificate authority");
    }
    let certificates: Vec<Pem> =
        found.certs.iter().map(|der| Pem::new("CERTIFICATE", der.as_ref())).collect();
    pem::encode_many(&certificates)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd as _;

    #[test]
    fn the_operators_certificates_are_added_to_the_hosts() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("more.pem");
        let more = pem::encode(&Pem::new("CERTIFICATE", *b"more"));
        fs::write(&path, &more).unwrap();
        let read = |roots: TrustedRoots| {
            let file = roots.file().unwrap();
            forkd_netd_protocol::read_credential(file.as_fd()).unwrap().to_vec()
        };
        let host = read(TrustedRoots::with(None));
        assert!(!pem::parse_many(&host).unwrap().is_empty(), "this host trusts somebody");
        assert_eq!(read(TrustedRoots::with(Some(path))), [host, more.into_bytes()].concat());
        assert!(TrustedRoots::with(Some("/nonexistent".into())).file().is_err());
    }
}
