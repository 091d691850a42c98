//! As whom a client acts, and what its paths mean.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use forkd_engine::guest::FileOwner;
use forkd_types::SandboxId;

use crate::failure::{Failure, Kind};

/// Home directories that are remembered.
const HOMES_MAX: usize = 4096;
const USER_CHARS_MAX: usize = 64;

/// The homes of users in sandboxes, once they were asked for; without a name the image's own user.
#[derive(Debug, Default)]
pub(crate) struct Homes(Mutex<HashMap<(SandboxId, Option<String>), String>>);

impl Homes {
    pub(super) fn get(&self, id: &SandboxId, user: Option<&str>) -> Option<String> {
        let key = (id.clone(), user.map(str::to_owned));
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned()
    }

    pub(super) fn set(&self, id: &SandboxId, user: Option<&str>, home: &str) {
        let mut homes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if homes.len() >= HOMES_MAX {
            homes.clear();
        }
        homes.insert((id.clone(), user.map(str::to_owned)), home.to_owned());
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

/// Whose a file is that this user makes. As in E2B, files are reached as the superuser, and what is
/// new is given to the user.
pub(super) fn owner_of(user: Option<&str>) -> FileOwner {
    match user {
        None => FileOwner::Image,
        Some(name) => FileOwner::User(name.to_owned()),
    }
}

/// What a path means below this home; none for the home itself to be asked for.
pub(super) fn absolute(path: &str, home: &str) -> String {
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
        assert_eq!(owner_of(Some("me")), FileOwner::User("me".to_owned()));
        assert_eq!(owner_of(None), FileOwner::Image);
    }

    #[test]
    fn each_user_of_a_sandbox_has_a_home() {
        let (homes, id) = (Homes::default(), SandboxId::random());
        homes.set(&id, None, "/home/user");
        homes.set(&id, Some("root"), "/root");
        assert_eq!(homes.get(&id, None).as_deref(), Some("/home/user"));
        assert_eq!(homes.get(&id, Some("root")).as_deref(), Some("/root"));
        assert_eq!(homes.get(&id, Some("me")), None);
    }
}
