//! Goal: a running state goes from one daemon to another as one file. A child there has the state
//! in memory and on disk. Without trust in the key, and of a damaged file, nothing comes.
//!
//! Method: two daemons with directories of their own. A sandbox gets a variable and a file, is
//! branched, changes both, and its branch is exported, through a pipe and as a file. Breaks when a
//! layer, the device state or an overlay is another's or of another moment.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::Stdio;

use crate::forkd::Forkd;

/// Bytes that the files of a directory occupy.
fn allocated(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).unwrap();
    entries.map(|entry| entry.unwrap().metadata().unwrap().blocks() * 512).sum()
}

#[test]
fn snapshots_travel_to_other_daemons() {
    let here = Forkd::new();
    here.ok(&["template", "build", "python", "--tag", "t", "--mem-size-mib", "256"]);
    let id = here.ok(&["fork", "t"]);
    here.ok(&["eval", &id, "state = [n * n for n in range(100000)]"]);
    here.ok(&["exec", &id, "--", "sh", "-c", "echo warm > /srv/state; sync"]);
    here.ok(&["-q", "branch", &id, "--tag", "warm"]);
    here.ok(&["eval", &id, "state = None"]);
    here.ok(&["exec", &id, "--", "sh", "-c", "echo cold > /srv/state; sync"]);

    let file = here.home().join("warm.tar");
    let path = file.to_str().unwrap();
    let exported = here.run(&["snapshot", "export", "warm", path]);
    let warning = String::from_utf8(exported.stderr).unwrap();
    assert!(exported.status.success() && warning.contains("password"), "{warning}");
    let metadata = fs::metadata(&file).unwrap();
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600, "nobody else reads it");
    let stored = allocated(&here.hot().join("layers"));
    println!("the file has {} bytes, the layers of both snapshots {stored}", metadata.len());
    assert!(metadata.len() < stored, "zero pages cost nothing, others are compressed");

    let there = Forkd::new();
    let (errors, code) = there.refused(&["snapshot", "import", path]);
    let key = here.ok(&["key"]);
    assert!(errors.contains(&key) && errors.contains("forkd key trust") && code == 1, "{errors}");
    there.ok(&["key", "trust", "here", &key]);
    let damaged = here.home().join("damaged.tar");
    let mut bytes = fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&damaged, bytes).unwrap();
    let (errors, _) = there.refused(&["snapshot", "import", damaged.to_str().unwrap()]);
    assert!(errors.contains("digest") && errors.contains("hint:"), "{errors}");
    assert_eq!(there.ok(&["snapshots", "-q"]), "", "nothing is left");
    assert_eq!(allocated(&there.hot().join("layers")), 0);

    assert_eq!(there.ok(&["snapshot", "import", path]), "warm");
    let child = there.ok(&["fork", "warm"]);
    assert_eq!(there.ok(&["eval", &child, "sum(state)"]), "333328333350000");
    assert_eq!(there.ok(&["exec", &child, "--", "cat", "/srv/state"]), "warm");
    assert_eq!(there.json(&["snapshot", "info", "warm"])["chain_depth"], 2);

    // Once more, with nothing in between, of what was imported.
    let mut export = there
        .command(&["snapshot", "export", "warm", "-"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut import = here.command(&["snapshot", "import", "-", "--tag", "back", "--trust-once"]);
    let import = import.stdin(export.stdout.take().unwrap()).output().unwrap();
    assert!(export.wait().unwrap().success());
    assert!(import.status.success(), "{}", String::from_utf8_lossy(&import.stderr));
    let child = here.ok(&["fork", "back"]);
    assert_eq!(here.ok(&["eval", &child, "sum(state)"]), "333328333350000");
}
