//! Goal: a snapshot that others depend on is not removed, and they are named; by force its tag goes
//! and they keep working; its files go with the last of them.
//!
//! Method: template, source, branch and child; the template is removed by force, everything else is
//! used, and then removed too. Breaks when a file goes that somebody needs, or stays that nobody
//! needs, or when a new snapshot of the same name is taken for the old one.

use std::fs;
use std::path::Path;

use forkd_engine::{DeletePolicy, EngineError};
use forkd_testkit::{Lab, block_on};

fn entries(directory: &Path) -> usize {
    let blank = |name: &str| name.starts_with("blank-");
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
    entries.filter(|name| !blank(name.to_str().unwrap())).count()
}

#[test]
fn dependents_keep_working_and_files_go_with_the_last_of_them() {
    block_on(async {
        let lab = Lab::new().await;
        let template = lab.template("python", 256).await;
        let source = lab.one(&template).await;
        source.sh("echo memory > /tmp/memory; echo disk > /srv/disk; sync").await;
        let branch = source.branch().await.tag;
        lab.wait_durable(&branch).await;
        let delete = async |tag, policy| lab.engine.delete_snapshot(tag, policy).await;
        let error = delete(&template, DeletePolicy::Refuse).await.unwrap_err();
        assert!(matches!(error, EngineError::SnapshotInUse { .. }), "{error:?}");
        for name in [source.id.to_string(), branch.to_string()] {
            assert!(error.to_string().contains(&name), "{error}");
        }
        delete(&template, DeletePolicy::Force).await.unwrap();
        assert!(lab.engine.snapshot(&template).is_err());
        assert_eq!(lab.engine.snapshot(&branch).unwrap().parent_tag, None);

        // Another one of the same name has nothing to do with them.
        lab.build(&template, "python", 256).await.unwrap();
        assert_eq!(source.sh("cat /tmp/memory /srv/disk").await, "memory\ndisk");
        let (next, children) = source.branch_into(1).await;
        assert_eq!(lab.engine.snapshot(&next).unwrap().parent_tag, None);
        assert_eq!(children[0].sh("cat /tmp/memory /srv/disk").await, "memory\ndisk");
        delete(&template, DeletePolicy::Refuse).await.unwrap();

        let child = lab.one(&branch).await;
        assert_eq!(child.sh("cat /tmp/memory /srv/disk").await, "memory\ndisk");
        for guest in [child, children[0].clone(), source] {
            guest.remove().await;
        }
        for tag in [&branch, &next] {
            delete(tag, DeletePolicy::Refuse).await.unwrap();
        }
        let config = lab.config();
        let state = &config.state_dir;
        for directory in
            [config.hot_dir.join("layers"), state.join("layers"), state.join("overlays")]
        {
            assert_eq!(entries(&directory), 0, "{}", directory.display());
        }
    });
}
