//! Certificates for one registry, from where Docker looks for them.
//!
//! In `certs.d/HOST` or `certs.d/HOST:PORT`, files `*.crt` have the authorities that are trusted
//! besides the system's, and `NAME.cert` with `NAME.key` is what a registry is shown that asks for
//! a certificate. A folder of the daemon's user comes before the system's.
//!
//! Does not do: choose among several certificates to show; the first by name is shown.

use std::ffi::OsStr;
use std::fmt::Display;
use std::path::{Path, PathBuf};

use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::folders;

const OF_THE_SYSTEM: &str = "/etc/docker/certs.d";
/// Below the user's configuration.
const OF_A_USER: &str = "docker/certs.d";

/// What there is for a host.
#[derive(Debug)]
pub(crate) struct Certificates {
    /// To trust.
    pub(crate) authorities: Vec<CertificateDer<'static>>,
    /// To show.
    pub(crate) own: Option<Identity>,
}

/// A certificate with those that vouch for it, and its key.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) chain: Vec<CertificateDer<'static>>,
    pub(crate) key: PrivateKeyDer<'static>,
}

/// What there is for a host with or without a port; none is no error.
pub(crate) fn find(host: &str) -> Result<Option<Certificates>, String> {
    let user = folders::of_configuration().map(|folder| folder.join(OF_A_USER));
    let places = user.into_iter().chain([PathBuf::from(OF_THE_SYSTEM)]);
    let mut places = places.map(|place| place.join(host));
    places.find(|folder| folder.is_dir()).map(|folder| read(&folder)).transpose()
}

fn read(folder: &Path) -> Result<Certificates, String> {
    let mut files = Vec::new();
    for entry in folder.read_dir().map_err(unusable(folder))? {
        files.push(entry.map_err(unusable(folder))?.path());
    }
    files.sort_unstable();
    let with = |extension: &'static str| {
        files.iter().filter(move |file| file.extension() == Some(OsStr::new(extension)))
    };
    let mut authorities = Vec::new();
    for file in with("crt") {
        authorities.extend(chain(file)?);
    }
    let own = with("cert").next().map(|file| identity(file)).transpose()?;
    Ok(Certificates { authorities, own })
}

fn identity(file: &Path) -> Result<Identity, String> {
    let of_key = file.with_extension("key");
    let key = PrivateKeyDer::from_pem_file(&of_key).map_err(unusable(&of_key))?;
    Ok(Identity { chain: chain(file)?, key })
}

fn chain(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let found = CertificateDer::pem_file_iter(file).and_then(Iterator::collect);
    let found: Vec<_> = found.map_err(unusable(file))?;
    if found.is_empty() { Err(unusable(file)("it has no certificate")) } else { Ok(found) }
}

fn unusable<E: Display>(path: &Path) -> impl FnOnce(E) -> String {
    move |error| format!("use `{}`: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n";
    const KEY: &str = "-----BEGIN PRIVATE KEY-----\nMAA=\n-----END PRIVATE KEY-----\n";

    #[test]
    fn all_authorities_of_a_folder_are_trusted_and_the_first_certificate_is_shown() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text);
        write("ca.crt", CERTIFICATE).unwrap();
        assert!(read(folder.path()).unwrap().own.is_none());
        write("two.crt", &CERTIFICATE.repeat(2)).unwrap();
        write("b.cert", "never read").unwrap();
        write("a.cert", CERTIFICATE).unwrap();
        write("a.key", KEY).unwrap();
        write("README", "nothing").unwrap();
        let found = read(folder.path()).unwrap();
        assert_eq!(found.authorities.len(), 3);
        assert_eq!(found.own.unwrap().chain.len(), 1);
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text);
        write("own.cert", CERTIFICATE).unwrap();
        assert!(read(folder.path()).unwrap_err().contains("own.key"), "without its key");
        write("own.key", KEY).unwrap();
        write("ca.crt", "no certificate").unwrap();
        assert!(read(folder.path()).unwrap_err().contains("ca.crt"));
    }
}
