//! An image of this host's Docker daemon: it saves the image as `docker save` does, and what it
//! saves is read as any archive.
//!
//! Guarantees: the archive is bounded, and removed in any case.
//!
//! Does not do: speak to a Docker daemon of another host; remember layers, which it saves anew each
//! time.

use std::ffi::OsStr;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use reqwest::{Client, Response, StatusCode};
use serde::Deserialize;
use tempfile::NamedTempFile;
use tokio_rustls::rustls::RootCertStore;

use crate::OciError;
use crate::limit::{CONTENT_BYTES_MAX, DOCUMENT_BYTES_MAX};
use crate::registry::trusting;
use crate::source::Watch;

/// Where Docker listens unless `DOCKER_HOST` says otherwise.
const SOCKET: &str = "/var/run/docker.sock";
/// It answers with the first byte when it has gathered all layers.
const SILENCE_MAX: Duration = Duration::from_secs(900);
/// Bytes of what it says about an error that are shown.
const WORDS_BYTES_MAX: usize = 300;

/// What Docker knows of an image, as far as it is asked for.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Inspected {
    #[serde(default)]
    size: u64,
}

/// What Docker says about an error.
#[derive(Deserialize)]
struct Complaint {
    message: String,
}

/// A Docker daemon.
pub(crate) struct Docker {
    socket: PathBuf,
    client: Client,
}

impl Docker {
    /// The one that `DOCKER_HOST` names, else the system's.
    pub(crate) fn of_environment() -> Result<Self, OciError> {
        Self::at(&socket_of(std::env::var_os("DOCKER_HOST").as_deref())?)
    }

    /// The one that listens on a Unix socket.
    pub(crate) fn at(socket: &Path) -> Result<Self, OciError> {
        let failed = |problem: String| OciError::Docker { socket: socket.to_owned(), problem };
        // TLS is not used on a Unix socket, and the system's certificates take time to read.
        let tls = trusting(RootCertStore::empty()).map_err(failed)?.with_no_client_auth();
        let client = Client::builder()
            .tls_backend_preconfigured(tls)
            .unix_socket(socket)
            .read_timeout(SILENCE_MAX)
            .build()
            .map_err(|error| failed(error.to_string()))?;
        Ok(Self { socket: socket.to_owned(), client })
    }

    /// Saves an image into a file of `folder`.
    pub(crate) async fn save(
        &self,
        image: &str,
        folder: &Path,
        watch: &dyn Watch,
    ) -> Result<NamedTempFile, OciError> {
        let about = self.ask(image, "json").await?;
        let about = about.bytes().await.map_err(|error| self.unreachable(&error))?;
        if about.len() as u64 > DOCUMENT_BYTES_MAX {
            let max = format!("{DOCUMENT_BYTES_MAX} bytes");
            return Err(OciError::TooLarge { what: format!("what Docker says of {image}"), max });
        }
        let about: Inspected = serde_json::from_slice(&about)
            .map_err(|error| OciError::damaged(format!("what Docker says of {image}"), error))?;
        let mut file =
            NamedTempFile::with_prefix_in("docker-", folder).map_err(OciError::file(folder))?;
        let mut answer = self.ask(image, "get").await?;
        let mut has = 0;
        while let Some(piece) = answer.chunk().await.map_err(|error| self.unreachable(&error))? {
            has += piece.len() as u64;
            if has > CONTENT_BYTES_MAX {
                let max = format!("{CONTENT_BYTES_MAX} bytes");
                return Err(OciError::TooLarge { what: format!("the image {image}"), max });
            }
            file.write_all(&piece).map_err(OciError::file(file.path()))?;
            watch.progress(has, about.size.max(has));
        }
        Ok(file)
    }

    async fn ask(&self, image: &str, what: &str) -> Result<Response, OciError> {
        // The name has none of the characters that a URL reads otherwise: see `Reference`.
        let url = format!("http://docker/images/{image}/{what}");
        let answer = self.client.get(url).send().await.map_err(|error| self.unreachable(&error))?;
        let status = answer.status();
        if status.is_success() {
            return Ok(answer);
        }
        if status == StatusCode::NOT_FOUND {
            let known = "docker image ls";
            return Err(OciError::NotFound(format!("{image} in Docker; `{known}` lists them")));
        }
        let words = answer.bytes().await.unwrap_or_default();
        let said = serde_json::from_slice::<Complaint>(&words).ok().map(|it| it.message);
        let said = said.unwrap_or_else(|| String::from_utf8_lossy(&words).into_owned());
        let said: String = said.chars().filter(|c| !c.is_control()).take(WORDS_BYTES_MAX).collect();
        Err(self.failed(format!("{status}: {said}")))
    }

    fn unreachable(&self, error: &reqwest::Error) -> OciError {
        let mut deepest: &dyn std::error::Error = error;
        while let Some(deeper) = deepest.source() {
            deepest = deeper;
        }
        let problem = deepest.to_string();
        self.failed(format!("{problem}; is Docker running, and may forkd's user use its socket?"))
    }

    fn failed(&self, problem: String) -> OciError {
        OciError::Docker { socket: self.socket.clone(), problem }
    }
}

/// The socket that the value of `DOCKER_HOST` names.
fn socket_of(host: Option<&OsStr>) -> Result<PathBuf, OciError> {
    let Some(host) = host.filter(|host| !host.is_empty()) else { return Ok(SOCKET.into()) };
    match host.as_bytes().strip_prefix(b"unix://") {
        Some(path) if path.starts_with(b"/") => Ok(PathBuf::from(OsStr::from_bytes(path))),
        _ => Err(OciError::Unsupported {
            what: format!("DOCKER_HOST={}", host.to_string_lossy()),
            remedy: "only unix:///PATH is; or save the image, and use docker-archive:FILE"
                .to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn docker_is_on_its_usual_socket_or_where_docker_host_says() {
        let socket = |host: &str| socket_of(Some(OsStr::new(host)));
        assert_eq!(socket_of(None).unwrap(), Path::new(SOCKET));
        assert_eq!(socket("").unwrap(), Path::new(SOCKET));
        assert_eq!(socket("unix:///run/d.sock").unwrap(), Path::new("/run/d.sock"));
        for other in ["tcp://127.0.0.1:2375", "ssh://a", "unix://relative"] {
            let error = socket(other).unwrap_err().to_string();
            assert!(error.contains(other) && error.contains("docker-archive"), "{error}");
        }
    }
}
