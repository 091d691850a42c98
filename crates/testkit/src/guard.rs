//! Cleaning up after a test program, however it ends.
//!
//! Statics are not dropped when a test program ends, and one that is killed drops nothing. So a
//! shell waits at the other end of a pipe: when the program is gone, the pipe closes, and it ends
//! the VMMs that name one of the program's directories on their command line, and removes the
//! directories.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Directories and the processes that name them, removed when the program ends or this is dropped.
#[derive(Debug)]
pub(crate) struct Guard {
    watcher: Child,
}

/// `$1` is the directory that VMMs name; all arguments are removed.
const SCRIPT: &str = r#"
cat > /dev/null
for process in /proc/[0-9]*; do
    if grep -qF -- "$1" "$process/cmdline" 2> /dev/null && [ "${process#/proc/}" != $$ ]; then
        kill -KILL "${process#/proc/}" 2> /dev/null
    fi
done
rm -rf -- "$@"
"#;

impl Guard {
    pub(crate) fn over(named: &Path, others: &[PathBuf]) -> Self {
        let watcher = Command::new("/bin/sh")
            .args(["-c", SCRIPT, "guard"])
            .arg(named)
            .args(others)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("a shell");
        Self { watcher }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.watcher.stdin.take());
        self.watcher.wait().expect("the guard ends");
    }
}
