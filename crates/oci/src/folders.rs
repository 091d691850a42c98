//! Where programs keep the configuration of the user that runs them.

use std::path::{Path, PathBuf};

/// `XDG_CONFIG_HOME`, else `~/.config`; none for who has no home.
pub(crate) fn of_configuration() -> Option<PathBuf> {
    let named = std::env::var_os("XDG_CONFIG_HOME").filter(|value| !value.is_empty());
    let named = named.map(PathBuf::from);
    named.or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".config")))
}
