//! Goal: an image of which a file was changed after it was built boots no guest and starts no child
//! of an earlier template, and the error names the file; once the file is back, all works again.
//!
//! Method: a copy of an image; one byte of its kernel is flipped in place, when a template of it
//! exists and the file has been checked before. Breaks when a file is believed to be what it was.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use forkd_engine::EngineError;
use forkd_testkit::{Lab, block_on};
use forkd_types::{SnapshotStatus, SnapshotTag};

fn flip(path: &Path) {
    let file = fs::File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 1_000_000).unwrap();
    file.write_all_at(&[byte[0] ^ 1], 1_000_000).unwrap();
}

#[test]
fn a_changed_kernel_boots_nothing_until_it_is_back() {
    block_on(async {
        let built = std::env::var("FORKD_IMAGE_DIR").unwrap();
        let images = tempfile::tempdir().unwrap();
        for file in ["kernel/vmlinuz", "tiny/image.json", "tiny/initramfs.cpio"] {
            let copy = images.path().join(file);
            fs::create_dir_all(copy.parent().unwrap()).unwrap();
            fs::copy(Path::new(&built).join(file), copy).unwrap();
        }
        let lab = Lab::with_images(images.path()).await;
        let tag: SnapshotTag = "before".parse().unwrap();
        lab.build(&tag, "tiny", 128).await.unwrap();
        let kernel = images.path().join("kernel/vmlinuz");
        flip(&kernel);
        let later: SnapshotTag = "later".parse().unwrap();
        let refused = lab.build(&later, "tiny", 128).await.unwrap_err();
        assert!(matches!(refused, EngineError::BadRequest { field: "image", .. }), "{refused:?}");
        let no_child = lab.engine.fork(&tag, 1).await.unwrap_err();
        assert!(matches!(no_child, EngineError::SnapshotDamaged { .. }), "{no_child:?}");
        for error in [refused, no_child] {
            let text = error.to_string();
            for words in ["vmlinuz` is not the file that was built", "build the image again"] {
                assert!(text.contains(words), "{text}");
            }
        }
        assert_eq!(lab.vmm_count(), 0);
        // The template itself is fine.
        assert_eq!(lab.engine.snapshot(&tag).unwrap().status, SnapshotStatus::Ready);
        flip(&kernel);
        assert_eq!(lab.one(&tag).await.sh("echo works").await, "works");
    });
}
