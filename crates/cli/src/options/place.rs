//! Paths on both sides: `SANDBOX:/PATH`, or a local one.

use std::path::PathBuf;
use std::str::FromStr;

use forkd_client::Depth;
use forkd_types::SandboxId;

/// A path in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Remote {
    pub(crate) sandbox: String,
    pub(crate) path: String,
}

/// A path somewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    Local(PathBuf),
    Sandbox(Remote),
}

/// How far into a directory something reaches.
pub(crate) const fn depth(recursive: bool) -> Depth {
    if recursive { Depth::Recursive } else { Depth::Itself }
}

impl FromStr for Remote {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some((sandbox, path)) if sandbox.parse::<SandboxId>().is_ok() => {
                Ok(Self { sandbox: sandbox.to_owned(), path: path.to_owned() })
            }
            _ => Err("write it as SANDBOX:/PATH, such as sb-0123456789ab:/tmp/file".to_owned()),
        }
    }
}

impl Place {
    /// `sb-...:/path` is in a sandbox; anything else is local, a name with a colon included.
    pub(crate) fn parse(text: &str) -> Self {
        text.parse().map_or_else(|_| Self::Local(PathBuf::from(text)), Self::Sandbox)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_id_before_the_colon_means_a_sandbox() {
        let expected = Remote { sandbox: "sb-0123456789ab".into(), path: "/a:b".into() };
        assert_eq!(Place::parse("sb-0123456789ab:/a:b"), Place::Sandbox(expected));
        for local in ["a:b", "./sb-0123456789ab:/x", "sb-x:/y", "plain"] {
            assert_eq!(Place::parse(local), Place::Local(local.into()));
            assert!(local.parse::<Remote>().is_err());
        }
    }
}
