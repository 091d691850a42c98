//! Credentials for registries, from where `docker login` keeps them.
//!
//! Reads `config.json` in `DOCKER_CONFIG` or `~/.docker`, and asks the helper programs that it
//! names. A secret is held only for the request that needs it.
//!
//! Does not do: log in, or keep anything.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use crate::OciError;

/// By this name Docker Hub is in every configuration.
const DOCKER_HUB_KEY: &str = "https://index.docker.io/v1/";
/// The user name that means that the secret is an identity token.
const TOKEN_USER: &str = "<token>";
/// For a helper to answer; some ask the user.
const HELPER_DEADLINE: Duration = Duration::from_secs(30);

/// What a registry is told.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Credentials {
    Password {
        user: String,
        password: String,
    },
    /// For a token that is exchanged for others.
    Identity(String),
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials")
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Configuration {
    #[serde(default)]
    auths: BTreeMap<String, Stored>,
    #[serde(default)]
    cred_helpers: BTreeMap<String, String>,
    creds_store: Option<String>,
}

#[derive(Default, Deserialize)]
struct Stored {
    #[serde(default)]
    auth: String,
    #[serde(default)]
    identitytoken: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Helped {
    username: String,
    secret: String,
}

/// What there is for a registry; none is no error.
pub(crate) async fn find(registry: &str) -> Result<Option<Credentials>, OciError> {
    match place() {
        Some(path) => find_in(&path, registry).await,
        None => Ok(None),
    }
}

fn place() -> Option<PathBuf> {
    let folder = std::env::var_os("DOCKER_CONFIG").map(PathBuf::from);
    let folder = folder.or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".docker")))?;
    Some(folder.join("config.json"))
}

async fn find_in(path: &Path, registry: &str) -> Result<Option<Credentials>, OciError> {
    let text = match std::fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        text => text.map_err(OciError::file(path))?,
    };
    let broken = |problem: String| OciError::damaged(path.display().to_string(), problem);
    let configuration: Configuration =
        serde_json::from_slice(&text).map_err(|error| broken(error.to_string()))?;
    let key = if registry == "docker.io" { DOCKER_HUB_KEY } else { registry };
    let helper = configuration.cred_helpers.get(registry).or(configuration.creds_store.as_ref());
    if let Some(helper) = helper
        && let Some(found) = ask(helper, key).await.map_err(broken)?
    {
        return Ok(Some(found));
    }
    let host_of = |key: &str| {
        let rest = key.trim_start_matches("https://").trim_start_matches("http://");
        rest.split('/').next().unwrap_or_default().to_owned()
    };
    let stored = configuration.auths.get(key).or_else(|| {
        let mut all = configuration.auths.iter();
        all.find(|(name, _)| host_of(name) == registry).map(|(_, stored)| stored)
    });
    let Some(stored) = stored else { return Ok(None) };
    if !stored.identitytoken.is_empty() {
        return Ok(Some(Credentials::Identity(stored.identitytoken.clone())));
    }
    if stored.auth.is_empty() {
        return Ok(None);
    }
    let pair = STANDARD.decode(&stored.auth).ok().and_then(|pair| String::from_utf8(pair).ok());
    let pair = pair.as_deref().and_then(|pair| pair.split_once(':'));
    let (user, password) = pair.ok_or_else(|| broken(format!("`auth` of {key} is broken")))?;
    let password = password.trim_end_matches('\0').to_owned();
    Ok(Some(Credentials::Password { user: user.to_owned(), password }))
}

/// Asks `docker-credential-HELPER`. None when it has nothing.
async fn ask(helper: &str, key: &str) -> Result<Option<Credentials>, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if helper.is_empty() || !helper.chars().all(plain) {
        return Err(format!("`{helper}` is no name of a credential helper"));
    }
    let program = format!("docker-credential-{helper}");
    let failed = |error: &dyn fmt::Display| format!("run {program}: {error}");
    let mut command = Command::new(&program);
    command.arg("get").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.kill_on_drop(true).spawn().map_err(|error| failed(&error))?;
    let stdin = child.stdin.take();
    let answered = async {
        if let Some(mut stdin) = stdin {
            stdin.write_all(key.as_bytes()).await?;
        }
        child.wait_with_output().await
    };
    let answered = tokio::time::timeout(HELPER_DEADLINE, answered).await;
    let output = answered.map_err(|error| failed(&error))?.map_err(|error| failed(&error))?;
    if !output.status.success() {
        return Ok(None);
    }
    let found: Helped = serde_json::from_slice(&output.stdout).map_err(|error| failed(&error))?;
    Ok(Some(match found.username.as_str() {
        TOKEN_USER => Credentials::Identity(found.secret),
        user => Credentials::Password { user: user.to_owned(), password: found.secret },
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn found(config: &str, registry: &str) -> Option<Credentials> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        std::fs::write(&path, config).unwrap();
        find_in(&path, registry).await.unwrap()
    }

    fn password(user: &str, password: &str) -> Option<Credentials> {
        Some(Credentials::Password { user: user.into(), password: password.into() })
    }

    #[tokio::test]
    async fn what_docker_login_wrote_is_found_by_the_registry() {
        let auth = STANDARD.encode("me:se:cret");
        let config = format!(
            r#"{{"auths":{{"https://index.docker.io/v1/":{{"auth":"{auth}"}},
            "https://r.example/v1/":{{"auth":"{auth}"}},"t.example":{{"identitytoken":"T"}}}}}}"#
        );
        assert_eq!(found(&config, "docker.io").await, password("me", "se:cret"));
        assert_eq!(found(&config, "r.example").await, password("me", "se:cret"));
        let token = Some(Credentials::Identity("T".into()));
        assert_eq!(found(&config, "t.example").await, token);
        assert_eq!(found(&config, "other.example").await, None);
        assert_eq!(found("{}", "docker.io").await, None);
    }

    #[tokio::test]
    async fn a_helper_is_a_name_and_no_path() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        std::fs::write(&path, r#"{"credsStore":"../../bin/sh"}"#).unwrap();
        let error = find_in(&path, "docker.io").await.unwrap_err().to_string();
        assert!(error.contains("no name of a credential helper"), "{error}");
    }
}
