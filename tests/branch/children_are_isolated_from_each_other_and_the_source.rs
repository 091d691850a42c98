//! Goal: what one of three children or the source writes, in memory or on disk, none of the others
//! sees; what was there at the branch point, all see.
//!
//! Method: each writes its own value over the same Python variable and the same file on the root
//! disk, in pages shared until then; then all are read again, the disk past the page cache. Breaks
//! when a layer is mapped shared, or two VMs write one overlay.

use forkd_testkit::{Lab, block_on};

#[test]
fn three_children_and_the_source_each_see_only_their_own_writes() {
    block_on(async {
        let lab = Lab::shared().await;
        let source = lab.python().await;
        source.eval("data = bytearray(b'b' * 5_000_000); name = 'before'").await;
        source.sh("echo before > /srv/name && sync").await;
        let (_, children) = source.branch_into(3).await;
        let mut all = vec![("source".to_owned(), &source)];
        all.extend(children.iter().enumerate().map(|(i, child)| (format!("child{i}"), child)));

        for (name, guest) in &all {
            assert_eq!(guest.eval("name, data.count(b'b')").await, "('before', 5000000)");
            assert_eq!(guest.sh("cat /srv/name").await, "before");
            let byte = name.as_bytes()[name.len() - 1];
            guest.eval(&format!("name = '{name}'; data[:] = bytes([{byte}]) * len(data)")).await;
            guest
                .sh(&format!("echo {name} > /srv/name && echo {name} > /srv/{name} && sync"))
                .await;
        }
        for (name, guest) in &all {
            let byte = name.as_bytes()[name.len() - 1];
            let expected = format!("('{name}', 5000000)");
            assert_eq!(guest.eval(&format!("name, data.count(bytes([{byte}]))")).await, expected);
            guest.sh("echo 3 > /proc/sys/vm/drop_caches").await;
            assert_eq!(guest.sh("cat /srv/name").await, *name);
            let mut files: Vec<String> =
                guest.sh("ls /srv").await.split_whitespace().map(str::to_owned).collect();
            files.sort_unstable();
            let mut expected = ["name".to_owned(), name.clone()];
            expected.sort_unstable();
            assert_eq!(files, expected, "{name} sees files that are not its own");
        }
    });
}
