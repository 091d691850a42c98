//! As whom a client acts, and what its paths mean.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use forkd_engine::guest::ExecRequest;
use forkd_types::SandboxId;

use super::At;
use crate::failure::{Failure, Kind};

/// Home directories that are remembered.
const HOMES_MAX: usize = 4096;
/// For a shell in the guest to say what its home is.
const HOME_DEADLINE: Duration = Duration::from_secs(30);
const USER_CHARS_MAX: usize = 64;
const PATH_BYTES_MAX: usize = 4096;

/// The home of each sandbox's default user, once it was asked for.
#[derive(Debug, Default)]
pub(crate) struct Homes(Mutex<HashMap<SandboxId, String>>);

impl Homes {
    fn get(&self, id: &SandboxId) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
    }

    fn set(&self, id: &SandboxId, home: &str) {
        let mut homes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if homes.len() >= HOMES_MAX {
            homes.clear();
        }
        homes.insert(id.clone(), home.to_owned());
    }
}

/// The user that a call names; none for the image's own.
pub(super) fn user_of(headers: &HeaderMap) -> Result<Option<String>, Failure> {
    let Some(value) = headers.get(AUTHORIZATION) else { return Ok(None) };
    let wrong = || Failure::new(Kind::Unauthenticated, "the Authorization names no user");
    let text = value.to_str().map_err(|_| wrong())?;
    let encoded = text.strip_prefix("Basic ").ok_or_else(wrong)?;
    let decoded = STANDARD.decode(encoded.trim()).map_err(|_| wrong())?;
    let decoded = String::from_utf8(decoded).map_err(|_| wrong())?;
    named(decoded.split(':').next().unwrap_or_default())
}

/// The user of this name; none for the image's own.
pub(super) fn named(user: &str) -> Result<Option<String>, Failure> {
    if user.is_empty() {
        return Ok(None);
    }
    // A group after a colon is ours, not E2B's.
    if user.len() > USER_CHARS_MAX || user.contains([':', '\0', '\n']) {
        return Err(Failure::new(Kind::Unauthenticated, "the user's name is none"));
    }
    Ok(Some(user.to_owned()))
}

/// Files are reached as the superuser. To act there as another user would give what that user may
/// not have.
pub(super) fn for_files(user: Option<&str>) -> Result<(), Failure> {
    match user {
        None | Some("root") => Ok(()),
        Some(_) => Err(Failure::field("user", "forkd reaches files as `root` alone; leave it out")),
    }
}

/// What a path means below this home; none for the home itself to be asked for.
fn absolute(path: &str, home: &str) -> String {
    let home = home.trim_end_matches('/');
    let joined = match path {
        "" | "~" => home.to_owned(),
        _ if path.starts_with('/') => path.to_owned(),
        _ => format!("{home}/{}", path.strip_prefix("~/").unwrap_or(path)),
    };
    let mut parts: Vec<&str> = Vec::new();
    for part in joined.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

impl At {
    /// The path that a client means, absolute and without detours.
    pub(super) async fn path(&self, said: &str, user: Option<&str>) -> Result<String, Failure> {
        if said.len() > PATH_BYTES_MAX || said.contains('\0') {
            return Err(Failure::field("path", "is too long or has a zero byte"));
        }
        let home = if said.starts_with('/') { String::new() } else { self.home(user).await? };
        Ok(absolute(said, &home))
    }

    async fn home(&self, user: Option<&str>) -> Result<String, Failure> {
        if let Some(home) = self.shared.homes.get(&self.id).filter(|_| user.is_none()) {
            return Ok(home);
        }
        let mut request = ExecRequest::new(["/bin/sh", "-c", "printf %s \"$HOME\""]);
        request.user = user.map(str::to_owned);
        request.timeout = HOME_DEADLINE;
        let said = self.shared.engine.exec(&self.id, request).await;
        let home = match said {
            Ok(output) if output.stdout.starts_with(b"/") => {
                String::from_utf8_lossy(&output.stdout).into_owned()
            }
            Ok(_) => "/root".to_owned(),
            Err(error) => match Failure::from(error) {
                // There is no shell to ask.
                failure if failure.kind == Kind::InvalidArgument => "/root".to_owned(),
                failure => return Err(failure),
            },
        };
        if user.is_none() {
            self.shared.homes.set(&self.id, &home);
        }
        Ok(home)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_absolute_or_below_the_home() {
        for (said, meant) in [
            ("/a/b", "/a/b"),
            ("/a//b/./c/../d/", "/a/b/d"),
            ("/../..", "/"),
            ("a.txt", "/home/user/a.txt"),
            ("~/a.txt", "/home/user/a.txt"),
            ("~", "/home/user"),
            ("", "/home/user"),
            ("../x", "/home/x"),
        ] {
            assert_eq!(absolute(said, "/home/user"), meant, "{said:?}");
        }
    }

    #[test]
    fn a_user_is_read_from_the_header_and_a_strange_one_is_refused() {
        let user = |text: &str| {
            let value = format!("Basic {}", STANDARD.encode(text));
            user_of(&HeaderMap::from_iter([(AUTHORIZATION, value.parse().unwrap())]))
        };
        assert_eq!(user("root:").unwrap(), Some("root".to_owned()));
        assert_eq!(user(":").unwrap(), None);
        assert_eq!(user_of(&HeaderMap::new()).unwrap(), None);
        let bearer = HeaderMap::from_iter([(AUTHORIZATION, "Bearer x".parse().unwrap())]);
        assert_eq!(user_of(&bearer).unwrap_err().kind, Kind::Unauthenticated);
        assert!(named("root:wheel").is_err());
        assert!(for_files(Some("nobody")).is_err());
        assert!(for_files(Some("root")).is_ok());
    }
}
