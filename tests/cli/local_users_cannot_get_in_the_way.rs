//! Goal: another user of the host can neither prepare the daemon's directories for it nor read what
//! it keeps there.
//!
//! Method: the hot, state and run directories are made in advance as another user could make them:
//! theirs, open to all, or a link; a start must name the directory, what is wrong and the remedy.
//! Then a session runs and the modes of all that it left are looked at. Breaks when a foreign
//! directory is used, or a file of a guest can be read by others.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};

use crate::forkd::Forkd;

/// `nobody`.
const OTHER: u32 = 65534;

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// The daemon does not start, and says these words.
fn refuses(forkd: &Forkd, path: &Path, words: &[&str]) {
    let (error, _) = forkd.refused(&["serve"]);
    for word in words.iter().copied().chain([path.to_str().unwrap()]) {
        assert!(error.contains(word), "`{word}` is not in: {error}");
    }
    let left = fs::read_dir(path).into_iter().flatten().count();
    assert_eq!(left, 0, "nothing is put into {}", path.display());
}

#[test]
fn directories_that_another_user_has_prepared_are_refused_with_a_remedy() {
    let forkd = Forkd::new();
    let state = forkd.home().join("state");
    let run = forkd.home().join("run");
    let elsewhere = tempfile::tempdir().unwrap();
    for path in [forkd.hot(), &state, &run] {
        fs::create_dir_all(path).unwrap();
        chown(path, Some(OTHER), Some(OTHER)).unwrap();
        set_mode(path, 0o777);
        // The command that starts the daemon looks at the run directory first, in its own words.
        let words = |words: &[&'static str]| if *path == run { vec![] } else { words.to_vec() };
        let theirs = words(&["belongs to user 65534 (mode 0777)", "another directory"]);
        refuses(&forkd, path, &theirs);
        chown(path, Some(0), Some(0)).unwrap();
        refuses(&forkd, path, &words(&["written by others", "mode 0777", "chmod 700"]));
        fs::remove_dir(path).unwrap();
        symlink(elsewhere.path(), path).unwrap();
        refuses(&forkd, path, &words(&["is a symbolic link"]));
        fs::remove_file(path).unwrap();
        fs::create_dir(path).unwrap();
        for lock in [forkd.hot(), &state, &run] {
            // What the daemon has left in those that it took before.
            fs::remove_file(lock.join("daemon.lock")).ok();
        }
    }
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0, "links were not followed");
    forkd.ok(&["ls"]);
}

/// All files and directories below `path`, which need not stay there.
fn below(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.flat_map(|entry| [vec![entry.path()], below(&entry.path())].concat()).collect()
}

#[test]
fn what_a_session_leaves_is_for_its_owner_alone() {
    let forkd = Forkd::new();
    forkd.ok(&["template", "build", "python", "--tag", "t", "--mem-size-mib", "256"]);
    let sandbox = forkd.json(&["fork", "t"])[0]["id"].as_str().unwrap().to_owned();
    forkd.ok(&["branch", &sandbox, "--tag", "b", "-n", "1"]);
    let mut seen = 0;
    for path in [forkd.hot().to_owned(), forkd.home().join("state"), forkd.home().join("run")] {
        let inside = below(&path).into_iter().chain([path]);
        for found in inside {
            let Ok(facts) = fs::symlink_metadata(&found) else { continue };
            seen += 1;
            // What its VMM or the gateway can read, below directories that nobody else can enter.
            let is_handed_over = found
                .components()
                .any(|part| part.as_os_str() == "vms" || part.as_os_str() == "netd")
                || found.extension().is_some_and(|end| end == "qcow2");
            if is_handed_over {
                continue;
            }
            let (owner, mode) = (facts.uid(), facts.mode() & 0o7777);
            assert_eq!((owner, mode & 0o077), (0, 0), "{} has {mode:04o}", found.display());
        }
    }
    assert!(seen > 20, "{seen} things were looked at");
}
