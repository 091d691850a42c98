//! What programs in the guest find around them, and where programs are found.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use forkd_protocol::GATEWAY_ENVIRONMENT;

use crate::image_defaults::ImageDefaults;
use crate::renewals;
use crate::user::{self, User};

/// Where programs are looked for when the request does not say otherwise.
pub(crate) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

const PYTHON_PATH: &str = "PYTHONPATH";

/// The environment of a program that runs as `user`: what the agent has, completed, what the image
/// says, and what the request adds. Python programs find in it how they notice a renewal.
pub(crate) fn variables(user: Option<&User>, added: &[(String, String)]) -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> = Vec::new();
    let mut set = |name: &str, value: String| {
        all.retain(|(known, _)| known != name);
        all.push((name.to_owned(), value));
    };
    set("PATH", search_path());
    let home = std::env::var("HOME").ok().filter(|home| home != "/");
    set("HOME", home.unwrap_or_else(|| "/root".to_owned()));
    set("LANG", std::env::var("LANG").unwrap_or_else(|_| "C.UTF-8".to_owned()));
    if let Some(home) = user.and_then(|user| user.home.clone()) {
        set("HOME", home);
    }
    for (name, value) in &ImageDefaults::get().variables {
        set(name, value.clone());
    }
    // It may come after this process has begun, and a program may change it.
    let named = std::fs::read_to_string(GATEWAY_ENVIRONMENT).unwrap_or_default();
    for (name, value) in named.lines().filter_map(|line| line.split_once('=')) {
        set(name, value.to_owned());
    }
    for (name, value) in added {
        set(name, value.clone());
    }
    let named = all.iter().find(|(name, _)| name == PYTHON_PATH);
    if let Some(path) = renewals::python_path(named.map(|(_, path)| path.as_str())) {
        all.retain(|(name, _)| name != PYTHON_PATH);
        all.push((PYTHON_PATH.to_owned(), path));
    }
    all
}

/// As PID 1 the kernel gave us whatever it thinks of as a path; otherwise a person did.
fn search_path() -> String {
    match std::env::var("PATH") {
        Ok(path) if std::process::id() != 1 => path,
        _ => PATH.to_owned(),
    }
}

/// The working directory of programs of `user` whose request names none: what the image says, or
/// the home directory.
pub(crate) fn default_directory(user: Option<&User>) -> PathBuf {
    if let Some(directory) = &ImageDefaults::get().directory {
        return directory.clone();
    }
    let home = match user {
        Some(user) => user.home.as_deref().unwrap_or("/"),
        None => "/root",
    };
    let home = Path::new(home);
    if home.is_dir() { home } else { Path::new("/") }.to_owned()
}

/// As whom a program runs: whom the request names (`USER[:GROUP]`), or the image. None for the
/// superuser that we are.
pub(crate) fn user(named: Option<&str>) -> Result<Option<User>, String> {
    match named {
        Some(named) => user::find(named).map(Some),
        None => ImageDefaults::get().user(),
    }
}

/// Makes a program run as this user.
pub(crate) fn become_user(command: &mut Command, user: Option<&User>) {
    if let Some(user) = user {
        forkd_sys::user::run_as(command, user.id, user.group, &user.groups);
    }
}

/// Why a program cannot be run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unresolved {
    /// No such file.
    Missing,
    /// A file is there, but it is not executable.
    NotExecutable,
}

/// The file that a program's name means, as a shell with this search path would find it.
pub(crate) fn resolve(program: &str, path: &str, directory: &Path) -> Result<PathBuf, Unresolved> {
    if program.contains('/') {
        return check(directory.join(program));
    }
    let mut outcome = Unresolved::Missing;
    for folder in path.split(':') {
        match check(directory.join(folder).join(program)) {
            Ok(file) => return Ok(file),
            Err(Unresolved::NotExecutable) => outcome = Unresolved::NotExecutable,
            Err(Unresolved::Missing) => {}
        }
    }
    Err(outcome)
}

fn check(file: PathBuf) -> Result<PathBuf, Unresolved> {
    match std::fs::metadata(&file) {
        Ok(facts) if facts.is_file() && facts.permissions().mode() & 0o111 != 0 => Ok(file),
        Ok(_) => Err(Unresolved::NotExecutable),
        Err(_) => Err(Unresolved::Missing),
    }
}

/// The Python interpreter of the image.
pub(crate) fn python() -> Option<PathBuf> {
    let named = ImageDefaults::get().variables.iter().rfind(|(name, _)| name == "PATH");
    let path = named.map_or_else(search_path, |(_, path)| path.clone());
    resolve("python3", &path, Path::new("/")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_in_the_path_and_a_bad_one_says_why() {
        let root = Path::new("/");
        assert!(resolve("sh", PATH, root).is_ok());
        assert_eq!(resolve("no-such-program", PATH, root), Err(Unresolved::Missing));
        assert_eq!(resolve("passwd", "/etc", root), Err(Unresolved::NotExecutable));
        assert!(resolve("bin/sh", PATH, root).is_ok());
    }

    #[test]
    fn added_variables_replace_the_defaults() {
        let all = variables(None, &[("HOME".to_owned(), "/x".to_owned())]);
        assert_eq!(all.iter().filter(|(name, _)| name == "HOME").count(), 1);
        assert!(all.contains(&("HOME".to_owned(), "/x".to_owned())));
    }
}
