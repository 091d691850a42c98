//! Which directories of the host a program needs in order to run: those of its libraries, as the
//! dynamic linker finds them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::job::{Access, Bind, Mounted};

/// The dynamic linker's list of libraries; without it, it searches.
const LINKER_CACHE: &str = "/etc/ld.so.cache";

/// What a program needs could not be found out.
#[derive(Debug, thiserror::Error)]
#[error("the libraries of `{program}` cannot be listed: {reason}")]
pub struct LibrariesError {
    program: PathBuf,
    reason: String,
}

/// What must be mounted for `program` to be executed with the library `preloaded`: the program, and
/// the directories of the libraries of both, each where it is on the host.
///
/// # Errors
/// When the dynamic linker cannot list the libraries.
pub fn needed_by(program: &Path, preloaded: Option<&Path>) -> Result<Vec<Bind>, LibrariesError> {
    let Listed { libraries, linker } = listed(program, preloaded)?;
    let mut directories = BTreeSet::new();
    for directory in libraries.iter().filter_map(|path| path.parent()) {
        // Under its own name too: plug-ins are not looked for where a link to it is.
        directories.extend(directory.canonicalize());
        directories.insert(directory.to_owned());
    }
    let is_mounted =
        |path: &PathBuf| path.parent().is_some_and(|place| directories.contains(place));
    let mut files: Vec<PathBuf> = vec![program.to_owned(), LINKER_CACHE.into()];
    files.extend(linker.filter(|path| !is_mounted(path)));
    files.retain(|file| file.exists());
    let bind = |path: PathBuf| Bind {
        from: path.clone(),
        to: path,
        access: Access::ReadOnly,
        mounted: Mounted::Programs,
    };
    Ok(outermost(directories).into_iter().chain(files).map(bind).collect())
}

struct Listed {
    libraries: Vec<PathBuf>,
    /// The dynamic linker itself, which the kernel looks for under this name.
    linker: Option<PathBuf>,
}

/// Asks the dynamic linker what `program` needs, and does not run it.
fn listed(program: &Path, preloaded: Option<&Path>) -> Result<Listed, LibrariesError> {
    let failed = |reason: String| LibrariesError { program: program.to_owned(), reason };
    let mut command = Command::new(program);
    command.env_clear().env("LD_TRACE_LOADED_OBJECTS", "1").stdin(Stdio::null());
    if let Some(library) = preloaded {
        command.env("LD_PRELOAD", library);
    }
    let output = command.output().map_err(|error| failed(error.to_string()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let missing = text.lines().find(|line| line.contains("not found"));
    if let Some(line) = missing {
        return Err(failed(line.trim().to_owned()));
    }
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(failed(format!("{}; {words}", output.status)));
    }
    Ok(understood(&text))
}

/// Reads lines as `libc.so.6 => /lib/libc.so.6 (0x7f..)` and `/lib64/ld.so.2 (0x7f..)`.
fn understood(text: &str) -> Listed {
    let mut listed = Listed { libraries: Vec::new(), linker: None };
    for line in text.lines() {
        let line = line.trim();
        let named = line.split_once(" => ");
        let path = named.map_or(line, |(_, path)| path).split(" (").next().unwrap_or_default();
        if !path.starts_with('/') {
            continue;
        }
        // The linker has no arrow, or has its own path before it; a preloaded library has none too.
        let linker = named.map_or(path, |(name, _)| name);
        let is_linker = linker.starts_with('/')
            && Path::new(linker)
                .file_name()
                .is_some_and(|name| name.as_encoded_bytes().starts_with(b"ld"));
        if is_linker {
            listed.linker = Some(linker.into());
        } else if named.is_some() {
            listed.libraries.push(path.into());
        }
    }
    listed
}

/// Without those that are below another one.
fn outermost(directories: BTreeSet<PathBuf>) -> Vec<PathBuf> {
    let mut kept: Vec<PathBuf> = Vec::new();
    for directory in directories {
        if !kept.iter().any(|above| directory.starts_with(above)) {
            kept.push(directory);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_linkers_words_are_understood() {
        let listed = understood(
            "\tlinux-vdso.so.1 (0x7ffc)\n\t/shim.so (0x7f0)\n\
             \tlibz.so.1 => /lib/x86/libz.so.1 (0x7f1)\n\t/lib64/ld-linux.so.2 (0x7f2)\n",
        );
        assert_eq!(listed.libraries, [PathBuf::from("/lib/x86/libz.so.1")]);
        assert_eq!(listed.linker, Some(PathBuf::from("/lib64/ld-linux.so.2")));
    }

    #[test]
    fn a_directory_below_another_one_is_not_mounted_again() {
        let set = ["/lib/x86", "/lib/x86/pulse", "/usr/lib"].map(PathBuf::from).into();
        assert_eq!(outermost(set), ["/lib/x86", "/usr/lib"].map(PathBuf::from));
    }

    #[test]
    fn a_program_of_this_host_is_listed_with_its_linker() {
        let binds = needed_by(Path::new("/bin/sh"), None).unwrap();
        assert!(binds.iter().any(|bind| bind.from == Path::new("/bin/sh")));
        assert!(binds.iter().any(|bind| bind.from.is_dir()), "{binds:?}");
        assert!(binds.iter().all(|bind| bind.access == Access::ReadOnly && bind.from == bind.to));
        assert!(needed_by(Path::new("/nonexistent"), None).is_err());
    }
}
