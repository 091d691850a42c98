//! A registry, as the OCI distribution specification has it.
//!
//! Speaks HTTPS; plain HTTP only to this host, unless there are certificates for it. A token is
//! asked for when the registry wants one. A blob goes on where it ends, if the registry can.
//! `upload` has the other direction.
//!
//! Does not do: check digests, except of a reference that has one: whoever asks does.

use std::fs::File;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{
    ACCEPT, CONTENT_RANGE, CONTENT_TYPE, HeaderMap, RANGE, RETRY_AFTER, WWW_AUTHENTICATE,
};
use reqwest::{Client, RequestBuilder, Response, StatusCode, Url};
use serde::Deserialize;
use tokio::sync::Mutex;
use tokio_rustls::rustls::client::WantsClientCert;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::{ClientConfig, ConfigBuilder, RootCertStore};

use crate::certificates::{self, Certificates, Identity};
use crate::credentials::{self, Credentials};
use crate::limit::DOCUMENT_BYTES_MAX;
use crate::manifest::{ACCEPTED, Descriptor};
use crate::reference::RegistryReference;
use crate::source::{DocumentKind, Source};
use crate::{Digest, OciError};

/// The host that answers for Docker Hub.
const DOCKER_HUB_HOST: &str = "registry-1.docker.io";
const CONNECT_DEADLINE: Duration = Duration::from_secs(15);
/// Between two pieces of an answer.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// For a registry that has too much to do.
const PAUSE_MAX: Duration = Duration::from_secs(20);
/// So often is a question asked, and a transfer begun or gone on with.
pub(crate) const ATTEMPTS: u32 = 4;
const REDIRECTS_MAX: usize = 10;
/// Bytes of what a registry says about an error that are shown.
const WORDS_BYTES_MAX: usize = 300;

/// One repository of a registry.
pub(crate) struct Registry {
    pub(crate) client: Client,
    pub(crate) reference: RegistryReference,
    pub(crate) base: Url,
    rights: Rights,
    /// What requests are allowed with, once it was asked for.
    access: Mutex<Option<Access>>,
}

/// What one wants to do in a repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rights {
    Pull,
    Push,
}

impl Rights {
    /// As a token's scope says it.
    const fn actions(self) -> &'static str {
        match self {
            Self::Pull => "pull",
            Self::Push => "pull,push",
        }
    }
}

/// What a blob is fetched into.
pub(crate) trait Growing: Send {
    /// So much more is there.
    fn append(&mut self, piece: &[u8]) -> std::io::Result<()>;

    /// All comes again.
    fn begin_anew(&mut self) -> std::io::Result<()>;
}

impl Growing for File {
    fn append(&mut self, piece: &[u8]) -> std::io::Result<()> {
        self.write_all(piece)
    }

    fn begin_anew(&mut self) -> std::io::Result<()> {
        self.set_len(0).and_then(|()| self.rewind())
    }
}

#[derive(Clone)]
enum Access {
    Bearer(String),
    Basic(String, String),
}

/// Where a token is had, as `WWW-Authenticate` says.
#[derive(Debug, PartialEq, Eq)]
enum Challenge {
    Bearer { realm: String, service: Option<String>, scope: Option<String> },
    Basic,
}

#[derive(Deserialize)]
struct Token {
    token: Option<String>,
    access_token: Option<String>,
}

impl Registry {
    pub(crate) fn new(reference: &RegistryReference, rights: Rights) -> Result<Self, OciError> {
        let host = match reference.registry.as_str() {
            "docker.io" => DOCKER_HUB_HOST,
            host => host,
        };
        let unreachable = |problem: String| OciError::Unreachable {
            registry: reference.registry.clone(),
            problem,
        };
        let certificates = certificates::find(host).map_err(unreachable)?;
        let is_plain = is_this_host(host) && certificates.is_none();
        let scheme = if is_plain { "http" } else { "https" };
        let base = format!("{scheme}://{host}/v2/{}/", reference.repository);
        let base = Url::parse(&base).map_err(|error| unreachable(error.to_string()))?;
        let redirects = reqwest::redirect::Policy::custom(|attempt| {
            let secure = attempt.previous().last().is_some_and(|url| url.scheme() == "https");
            if attempt.previous().len() > REDIRECTS_MAX {
                attempt.error("too many redirects")
            } else if secure && attempt.url().scheme() != "https" {
                attempt.error("it redirects to plain HTTP")
            } else {
                attempt.follow()
            }
        });
        let client = Client::builder()
            .tls_backend_preconfigured(tls(host, certificates).map_err(unreachable)?)
            .redirect(redirects)
            .connect_timeout(CONNECT_DEADLINE)
            .read_timeout(SILENCE_MAX)
            .user_agent(concat!("forkd/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| unreachable(error.to_string()))?;
        let reference = reference.clone();
        Ok(Self { client, reference, base, rights, access: Mutex::default() })
    }

    fn unreachable(&self, error: &reqwest::Error) -> OciError {
        let mut problem = error.to_string();
        let mut cause = std::error::Error::source(error);
        while let Some(deeper) = cause {
            problem = format!("{problem}: {deeper}");
            cause = deeper.source();
        }
        OciError::Unreachable { registry: self.reference.registry.clone(), problem }
    }

    pub(crate) fn url(&self, path: &str) -> Result<Url, OciError> {
        self.base.join(path).map_err(|error| OciError::damaged(path, error))
    }

    /// Asks; waits for a registry that is busy.
    pub(crate) async fn ask(
        &self,
        what: &str,
        request: RequestBuilder,
    ) -> Result<Response, OciError> {
        let mut attempt = 1;
        loop {
            let answer = self.send(what, &request).await?;
            let status = answer.status();
            let busy = status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error();
            if busy && attempt < ATTEMPTS {
                tokio::time::sleep(pause(&answer, attempt)).await;
                attempt += 1;
            } else if status.is_success() {
                return Ok(answer);
            } else {
                return Err(self.refusal(what, answer).await);
            }
        }
    }

    /// Asks, and once more with access if it is wanted.
    pub(crate) async fn send(
        &self,
        what: &str,
        request: &RequestBuilder,
    ) -> Result<Response, OciError> {
        let mut asked_for_access = false;
        loop {
            let copy = || request.try_clone().ok_or_else(|| OciError::damaged(what, "no copy"));
            let target = copy()?.build().map_err(|error| self.unreachable(&error))?;
            // A registry may send uploads to another host, which is not to have our password.
            let ours = target.url().origin() == self.base.origin();
            let access = self.access.lock().await.clone().filter(|_| ours);
            let copy = match access {
                Some(Access::Bearer(token)) => copy()?.bearer_auth(token),
                Some(Access::Basic(user, password)) => copy()?.basic_auth(user, Some(password)),
                None => copy()?,
            };
            let answer = copy.send().await.map_err(|error| self.unreachable(&error))?;
            if answer.status() != StatusCode::UNAUTHORIZED || asked_for_access || !ours {
                return Ok(answer);
            }
            asked_for_access = true;
            let access = self.get_access(what, &answer).await?;
            *self.access.lock().await = Some(access);
        }
    }

    /// Waits so long for `work` and no longer.
    pub(crate) async fn within<T>(
        &self,
        deadline: Duration,
        work: impl Future<Output = Result<T, OciError>>,
    ) -> Result<T, OciError> {
        let (registry, problem) =
            (self.reference.registry.clone(), format!("it takes more than {deadline:?}"));
        let late = OciError::Unreachable { registry, problem };
        tokio::time::timeout(deadline, work).await.unwrap_or(Err(late))
    }

    pub(crate) async fn refusal(&self, what: &str, answer: Response) -> OciError {
        let registry = &self.reference.registry;
        let status = answer.status();
        let remedy = match status {
            StatusCode::NOT_FOUND => return OciError::NotFound(self.reference.to_string()),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                format!("; check its name, and log in with `docker login {registry}`")
            }
            StatusCode::TOO_MANY_REQUESTS => {
                format!("; wait, or log in with `docker login {registry}`")
            }
            _ => String::new(),
        };
        let words = bounded(answer, WORDS_BYTES_MAX as u64).await.unwrap_or_default();
        let words = crate::tree::shown(&words);
        let words = if words.is_empty() { words } else { format!(", {words}") };
        let problem = format!("{status}{words}{remedy}");
        OciError::Refused { registry: registry.clone(), what: what.to_owned(), problem }
    }

    async fn get_access(&self, what: &str, answer: &Response) -> Result<Access, OciError> {
        let refused = |problem: String| OciError::Refused {
            registry: self.reference.registry.clone(),
            what: what.to_owned(),
            problem,
        };
        let challenge = answer.headers().get(WWW_AUTHENTICATE);
        let challenge = challenge.and_then(|value| value.to_str().ok()).and_then(challenge_of);
        let login = format!("log in with `docker login {}`", self.reference.registry);
        let credentials = credentials::find(&self.reference.registry).await?;
        match (challenge, credentials) {
            (Some(Challenge::Basic), Some(Credentials::Password { user, password })) => {
                Ok(Access::Basic(user, password))
            }
            (Some(Challenge::Basic), _) => Err(refused(format!("it wants a password; {login}"))),
            (Some(Challenge::Bearer { realm, service, scope }), credentials) => {
                let url = allowed_url(&self.base, &realm);
                let url = url.ok_or_else(|| refused(format!("no tokens are had at `{realm}`")))?;
                let scope = self.scope(scope);
                let request = self.token_request(url, service, scope, credentials);
                let answer = request.send().await.map_err(|error| self.unreachable(&error))?;
                if !answer.status().is_success() {
                    let status = answer.status();
                    return Err(refused(format!(
                        "{status} for a token; check its name, and {login}"
                    )));
                }
                let bytes = bounded(answer, DOCUMENT_BYTES_MAX).await;
                let bytes = bytes.map_err(|error| self.unreachable(&error))?;
                let token: Option<Token> = serde_json::from_slice(&bytes).ok();
                let token = token.and_then(|token| token.token.or(token.access_token));
                token.map(Access::Bearer).ok_or_else(|| refused("it gives no token".to_owned()))
            }
            (None, _) => Err(refused("it does not say how to log in".to_owned())),
        }
    }

    /// What a token is to allow. A registry names what the request at hand needs, which for the
    /// first question of a push is to pull.
    fn scope(&self, named: Option<String>) -> String {
        let ours = || format!("repository:{}:{}", self.reference.repository, self.rights.actions());
        match self.rights {
            Rights::Push => ours(),
            Rights::Pull => named.unwrap_or_else(ours),
        }
    }

    fn token_request(
        &self,
        url: Url,
        service: Option<String>,
        scope: String,
        credentials: Option<Credentials>,
    ) -> RequestBuilder {
        let mut fields = vec![("scope", scope)];
        fields.extend(service.map(|service| ("service", service)));
        match credentials {
            None => self.client.get(url).query(&fields),
            Some(Credentials::Password { user, password }) => {
                self.client.get(url).query(&fields).basic_auth(user, Some(password))
            }
            Some(Credentials::Identity(token)) => {
                fields.push(("grant_type", "refresh_token".to_owned()));
                fields.push(("client_id", "forkd".to_owned()));
                fields.push(("refresh_token", token));
                let mut form = url.clone();
                form.query_pairs_mut().clear().extend_pairs(fields);
                let body = form.query().unwrap_or_default().to_owned();
                let kind = "application/x-www-form-urlencoded";
                self.client.post(url).header(CONTENT_TYPE, kind).body(body)
            }
        }
    }

    /// The headers of an answer, and its body, which has at most the bytes of a document.
    pub(crate) async fn page(
        &self,
        what: &str,
        request: RequestBuilder,
    ) -> Result<(HeaderMap, Vec<u8>), OciError> {
        let answer = self.ask(what, request).await?;
        let headers = answer.headers().clone();
        let bytes = bounded(answer, DOCUMENT_BYTES_MAX + 1).await;
        Ok((headers, bytes.map_err(|error| self.unreachable(&error))?))
    }

    pub(crate) async fn bytes(&self, what: &str, path: &str) -> Result<Vec<u8>, OciError> {
        let request = self.client.get(self.url(path)?).header(ACCEPT, ACCEPTED.join(", "));
        Ok(self.page(what, request).await?.1)
    }
}

#[async_trait::async_trait]
impl Source for Registry {
    async fn root(&self) -> Result<Vec<u8>, OciError> {
        let what = format!("the manifest of {}", self.reference);
        let Some(digest) = &self.reference.digest else {
            let tag = self.reference.tag.as_deref().unwrap_or_default();
            return self.bytes(&what, &format!("manifests/{tag}")).await;
        };
        let bytes = self.bytes(&what, &format!("manifests/{digest}")).await?;
        let found = Digest::of(&bytes);
        if found != *digest {
            return Err(OciError::Digest { what, wanted: *digest, found });
        }
        Ok(bytes)
    }

    async fn document(
        &self,
        descriptor: &Descriptor,
        kind: DocumentKind,
    ) -> Result<Vec<u8>, OciError> {
        let what = format!("{} of {}", descriptor.digest, self.reference);
        let folder = match kind {
            DocumentKind::Manifest => "manifests",
            DocumentKind::Configuration => "blobs",
        };
        self.bytes(&what, &format!("{folder}/{}", descriptor.digest)).await
    }

    async fn layer(
        &self,
        descriptor: &Descriptor,
        file: &mut File,
        told: &(dyn Fn(u64) + Sync),
    ) -> Result<(), OciError> {
        let have = file.seek(SeekFrom::End(0));
        let have = have.map_err(|error| OciError::damaged("the file of a layer", error))?;
        let mut into = Told { file, told, have };
        self.fetch(&descriptor.digest, descriptor.size, have, &mut into).await
    }
}

/// A file, and who is told of its length.
struct Told<'a> {
    file: &'a mut File,
    told: &'a (dyn Fn(u64) + Sync),
    have: u64,
}

impl Growing for Told<'_> {
    fn append(&mut self, piece: &[u8]) -> std::io::Result<()> {
        self.file.append(piece)?;
        self.have += piece.len() as u64;
        (self.told)(self.have);
        Ok(())
    }

    fn begin_anew(&mut self) -> std::io::Result<()> {
        self.have = 0;
        self.file.begin_anew()
    }
}

impl Registry {
    /// Adds what is missing of a blob of `size` bytes, of which there are `have`. Not checked.
    pub(crate) async fn fetch(
        &self,
        digest: &Digest,
        size: u64,
        mut have: u64,
        into: &mut dyn Growing,
    ) -> Result<(), OciError> {
        let what = format!("the blob {digest} of {}", self.reference);
        let failed = |error| OciError::damaged(&what, error);
        let request = self.client.get(self.url(&format!("blobs/{digest}"))?);
        let request = match have {
            0 => request,
            _ => request.header(RANGE, format!("bytes={have}-")),
        };
        let mut answer = self.ask(&what, request).await?;
        let range = answer.headers().get(CONTENT_RANGE).and_then(|value| value.to_str().ok());
        let goes_on = range.is_some_and(|range| range.starts_with(&format!("bytes {have}-")));
        if have > 0 && !(answer.status() == StatusCode::PARTIAL_CONTENT && goes_on) {
            into.begin_anew().map_err(failed)?;
            have = 0;
        }
        while let Some(piece) = answer.chunk().await.map_err(|error| self.unreachable(&error))? {
            have += piece.len() as u64;
            if have > size {
                let max = format!("the {size} bytes that its manifest names");
                return Err(OciError::TooLarge { what, max });
            }
            into.append(&piece).map_err(failed)?;
        }
        if have < size {
            let (registry, problem) =
                (self.reference.registry.clone(), format!("{what} ends after {have} bytes"));
            return Err(OciError::Unreachable { registry, problem });
        }
        Ok(())
    }
}

/// The body of an answer, at most `max` bytes of it.
async fn bounded(mut answer: Response, max: u64) -> Result<Vec<u8>, reqwest::Error> {
    let mut bytes = Vec::new();
    while let Some(piece) = answer.chunk().await? {
        let room = usize::try_from(max).unwrap_or(usize::MAX) - bytes.len();
        bytes.extend_from_slice(&piece[..piece.len().min(room)]);
        if piece.len() >= room {
            break;
        }
    }
    Ok(bytes)
}

/// How long to wait for a registry that is busy, as it says itself or longer each time.
pub(crate) fn pause(answer: &Response, attempt: u32) -> Duration {
    let said = answer.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
    let said = said.and_then(|text| text.parse().ok()).map(Duration::from_secs);
    said.unwrap_or(Duration::from_millis(250 << attempt)).min(PAUSE_MAX)
}

/// Whether a host with or without a port is this one: what is said to it passes no wire.
fn is_this_host(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name == "localhost"
        || name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Where a registry may send us, for tokens or to put content. One elsewhere cannot lead to a
/// server of this host.
pub(crate) fn allowed_url(registry: &Url, said: &str) -> Option<Url> {
    let url = Url::parse(said).ok()?;
    let is_here = |url: &Url| url.host_str().is_some_and(is_this_host);
    let secure = url.scheme() == "https" && !is_here(&url);
    (secure || is_here(registry) && is_here(&url)).then_some(url)
}

fn challenge_of(text: &str) -> Option<Challenge> {
    let (kind, mut rest) = text.split_once(' ').unwrap_or((text, ""));
    if kind.eq_ignore_ascii_case("basic") {
        return Some(Challenge::Basic);
    }
    if !kind.eq_ignore_ascii_case("bearer") {
        return None;
    }
    let (mut realm, mut service, mut scope) = (None, None, None);
    while let Some((name, value)) = rest.split_once('=') {
        // A value is in quotation marks, because it may have a comma.
        let (value, after) = match value.strip_prefix('"') {
            Some(value) => value.split_once('"')?,
            None => value.split_once(',').unwrap_or((value, "")),
        };
        let field = match name.trim_matches([' ', ',']) {
            "realm" => &mut realm,
            "service" => &mut service,
            "scope" => &mut scope,
            _ => &mut None,
        };
        *field = Some(value.to_owned());
        rest = after;
    }
    Some(Challenge::Bearer { realm: realm?, service, scope })
}

/// Trusts whom the system trusts, and whom Docker is told to trust for this host. Of the system's,
/// which take long to read, none signs what is on this host.
fn tls(host: &str, certificates: Option<Certificates>) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    if !is_this_host(host) {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    }
    let (authorities, own) = certificates.map(|it| (it.authorities, it.own)).unwrap_or_default();
    roots.add_parsable_certificates(authorities);
    let config = trusting(roots)?;
    match own {
        None => Ok(config.with_no_client_auth()),
        Some(Identity { chain, key }) => config
            .with_client_auth_cert(chain, key)
            .map_err(|error| format!("the certificate for {host} and its key: {error}")),
    }
}

/// TLS that trusts whom `roots` say.
pub(crate) fn trusting(
    roots: RootCertStore,
) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>, String> {
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let config = config.with_safe_default_protocol_versions().map_err(|error| error.to_string())?;
    Ok(config.with_root_certificates(roots))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_challenge_is_read_with_commas_in_its_values() {
        let text = r#"Bearer realm="https://a.b/t",service="s",scope="repository:x:pull,push""#;
        let bearer = |realm: &str, service: Option<&str>, scope: Option<&str>| Challenge::Bearer {
            realm: realm.into(),
            service: service.map(Into::into),
            scope: scope.map(Into::into),
        };
        let full = bearer("https://a.b/t", Some("s"), Some("repository:x:pull,push"));
        assert_eq!(challenge_of(text), Some(full));
        assert_eq!(challenge_of(r#"bearer realm="r", error="x""#), Some(bearer("r", None, None)));
        assert_eq!(challenge_of("Basic realm=\"x\""), Some(Challenge::Basic));
        assert_eq!(challenge_of("Bearer service=\"s\""), None);
        assert_eq!(challenge_of("Negotiate"), None);
    }

    #[test]
    fn tokens_are_had_by_tls_or_on_this_host_from_a_registry_of_it() {
        for (registry, realm, good) in [
            ("https://a.example/v2/", "https://auth.example/token", true),
            ("https://a.example/v2/", "http://auth.example/token", false),
            ("https://a.example/v2/", "http://127.0.0.1:9/token", false),
            ("https://a.example/v2/", "https://localhost/token", false),
            ("http://127.0.0.1:5000/v2/", "http://127.0.0.1:5001/token", true),
            ("http://127.0.0.1:5000/v2/", "http://auth.example/token", false),
            ("http://127.0.0.1:5000/v2/", "file:///etc/passwd", false),
            ("https://a.example/v2/", "token", false),
        ] {
            let url = allowed_url(&Url::parse(registry).unwrap(), realm);
            assert_eq!(url.is_some(), good, "{registry} {realm}");
        }
    }

    #[test]
    fn only_this_host_is_spoken_to_without_tls() {
        for (host, ours) in [
            ("localhost:5000", true),
            ("127.0.0.1:5000", true),
            ("127.9.9.9", true),
            ("[::1]:5000", true),
            ("localhost.example", false),
            ("10.0.0.1:5000", false),
            ("registry.example", false),
        ] {
            assert_eq!(is_this_host(host), ours, "{host}");
            let reference = RegistryReference {
                registry: host.into(),
                repository: "a".into(),
                tag: None,
                digest: None,
            };
            let url = Registry::new(&reference, Rights::Pull).unwrap().url("manifests/x").unwrap();
            assert_eq!(url.scheme() == "http", ours, "{url}");
        }
    }
}
