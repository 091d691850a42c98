//! Goal: a VMM that was taken over and answers its monitor with lies gets no byte of another
//! sandbox: one that names a foreign overlay, or leaves out one of its own, is not taken over by
//! the next daemon; one that says it has frozen its disk, and has not, makes no snapshot.
//!
//! Method: before the monitors of real VMMs stands a stand-in that changes their answers. Another
//! daemon takes them over. One whose stand-in changes nothing goes on, which shows that the lie is
//! what is refused.
//!
//! Broken by: a name that is believed, a disk that is not compared with what was written down, a
//! kernel that is not asked whether a frozen overlay is still written.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forkd_engine::AtShutDown;
use forkd_testkit::audit::field;
use forkd_testkit::{Guest, Lab, block_on};
use forkd_types::{BranchMode, SandboxState, SnapshotStatus};
use serde_json::{Value, json};

use crate::lying_monitor::{Lie, put_before};
use crate::prisoner::{pid, top_overlay};

/// Who has the file, and how it may be used.
fn owner_and_mode(path: &Path) -> (u32, u32, u32) {
    let metadata = fs::metadata(path).unwrap();
    (metadata.uid(), metadata.gid(), metadata.mode())
}

/// Every name of the overlay `own` is that of `foreign`.
fn names_foreign(own: &Path, foreign: &Path) -> impl Lie + use<> {
    let [own, foreign] = [own, foreign].map(|path| path.file_stem().unwrap().to_owned());
    let [own, foreign] = [own, foreign].map(|name| name.into_string().unwrap());
    move |_: &Value, ask: &mut dyn FnMut() -> Value| {
        serde_json::from_str(&ask().to_string().replace(&own, &foreign)).unwrap()
    }
}

/// The disk has one overlay less: the top one is not told.
fn leaves_out_the_top(command: &Value, ask: &mut dyn FnMut() -> Value) -> Value {
    let mut answer = ask();
    if command["execute"] == "query-block" {
        for disk in answer["return"].as_array_mut().unwrap() {
            let image = &mut disk["inserted"]["image"];
            *image = image["backing-image"].take();
        }
    }
    answer
}

/// Does not do what would take its disk away from it, and says that it was done.
fn keeps_its_disk(lies: &Arc<AtomicBool>) -> impl Lie + use<> {
    let lies = Arc::clone(lies);
    move |command: &Value, ask: &mut dyn FnMut() -> Value| {
        let takes = ["blockdev-snapshot", "blockdev-reopen"].map(Value::from);
        if lies.load(Ordering::SeqCst) && takes.contains(&command["execute"]) {
            return json!({"return": {}});
        }
        ask()
    }
}

fn monitor(lab: &Lab, guest: &Guest<'_>, name: &str) -> PathBuf {
    lab.config().run_dir.join(guest.id.as_str()).join(name)
}

/// The next daemon shows that sandbox as dead, and why.
fn refused(lab: &Lab, guest: &Guest<'_>, why: &str) {
    let found = lab.engine.sandbox(&guest.id).unwrap();
    let error = found.error.unwrap_or_default();
    assert!(found.state == SandboxState::Dead && error.contains(why), "{why}: {error}");
}

#[test]
fn a_vmm_that_lies_about_its_disk_gets_no_foreign_byte() {
    block_on(async {
        let first = Lab::new().await;
        let tag = first.template("python", 256).await;
        let [foreign, shorter, keeping, sibling] = [
            first.one(&tag).await,
            first.one(&tag).await,
            first.one(&tag).await,
            first.one(&tag).await,
        ];
        sibling.sh("echo of-the-sibling > /srv/words && sync").await;
        let (own, of_sibling) = (top_overlay(&first, &foreign).0, top_overlay(&first, &sibling).0);
        shorter.branch().await;
        let before = owner_and_mode(&of_sibling);
        let liars = [pid(&first, &foreign), pid(&first, &shorter)];
        first.engine.shut_down(AtShutDown::Leave).await;

        let lies = Arc::new(AtomicBool::new(false));
        put_before(&monitor(&first, &foreign, "qmp.sock"), names_foreign(&own, &of_sibling));
        put_before(&monitor(&first, &shorter, "qmp.sock"), leaves_out_the_top);
        for name in ["qmp.sock", "qmp-freeze.sock"] {
            put_before(&monitor(&first, &keeping, name), keeps_its_disk(&lies));
        }
        let config = first.config();
        let directories = [&config.state_dir, &config.hot_dir, &config.run_dir];
        let lab = Lab::in_directories(directories.map(|path| path.as_path()), |_| {}).await;
        refused(&lab, &foreign, "a file that it was not given");
        refused(&lab, &shorter, "names disk overlays that it was not given");
        assert_eq!(owner_and_mode(&of_sibling), before, "another VMM's file has changed hands");
        // The first daemon is in this process, which has not collected them.
        let gone = |pid: &u32| {
            let state = field(Path::new(&format!("/proc/{pid}")), "State");
            state.is_empty() || state.starts_with('Z')
        };
        lab.wait_until("the liars are ended", || liars.iter().all(gone)).await;

        let keeping = Guest::new(&lab, keeping.id.clone());
        assert!(keeping.branch().await.status == SnapshotStatus::Ready, "it tells the truth");
        lies.store(true, Ordering::SeqCst);
        let error = keeping.try_branch(BranchMode::Diff).await.unwrap_err();
        let words = forkd_engine::describe(&error);
        assert!(words.contains("open for writing"), "{words}");
        assert_eq!(keeping.sh("echo goes on").await, "goes on");
        let sibling = Guest::new(&lab, sibling.id.clone());
        assert_eq!(sibling.sh("cat /srv/words").await, "of-the-sibling");
        lab.engine.shut_down(AtShutDown::Remove).await;
    });
}
