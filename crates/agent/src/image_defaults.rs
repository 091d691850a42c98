//! What the image says about its programs: variables, a directory, a user. An image that was made
//! from a recipe says nothing.
//!
//! Read once: what a guest writes there later changes nothing.

use std::path::PathBuf;
use std::sync::OnceLock;

use crate::user::{self, User};

/// Fields that end in a zero byte: `env NAME=VALUE`, `cwd DIRECTORY`, `user USER[:GROUP]`.
const FILE: &str = "/etc/forkd/image-defaults";

static FOUND: OnceLock<ImageDefaults> = OnceLock::new();

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ImageDefaults {
    pub(crate) variables: Vec<(String, String)>,
    pub(crate) directory: Option<PathBuf>,
    user: Option<String>,
}

impl ImageDefaults {
    /// Those of this machine. Only as its first process: another one is not the image's.
    pub(crate) fn get() -> &'static Self {
        FOUND.get_or_init(|| match std::process::id() {
            1 => Self::parse(&std::fs::read_to_string(FILE).unwrap_or_default()),
            _ => Self::default(),
        })
    }

    fn parse(text: &str) -> Self {
        let mut found = Self::default();
        for (name, value) in text.split('\0').filter_map(|field| field.split_once(' ')) {
            match name {
                "env" => {
                    let variable = value.split_once('=').filter(|(name, _)| !name.is_empty());
                    let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
                    found.variables.extend(variable.map(owned));
                }
                "cwd" => found.directory = Some(PathBuf::from("/").join(value)),
                "user" => found.user = Some(value.to_owned()),
                _ => {}
            }
        }
        found
    }

    /// As whom programs run; none for the superuser that we are.
    pub(crate) fn user(&self) -> Result<Option<User>, String> {
        self.user.as_deref().map(user::find).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_with_whatever_is_in_them() {
        let found =
            ImageDefaults::parse("env A=b c\nd=\0env =x\0env B\0cwd app\0user me:us\0x y\0");
        let wanted = ImageDefaults {
            variables: vec![("A".to_owned(), "b c\nd=".to_owned())],
            directory: Some(PathBuf::from("/app")),
            user: Some("me:us".to_owned()),
        };
        assert_eq!(found, wanted);
        assert_eq!(ImageDefaults::parse(""), ImageDefaults::default());
    }
}
