//! Goal: an unknown tag, sandbox or image and a missing kernel each give an error that names the
//! thing; nothing is left of the attempt.
//!
//! Method: each is asked for; the error's text must contain the name. Breaks when an error is
//! swallowed, or tells only that something went wrong.

use std::fs;

use forkd_engine::EngineError;
use forkd_testkit::{Lab, block_on};
use forkd_types::{SandboxId, SnapshotTag};

#[test]
fn an_unknown_tag_and_an_unknown_sandbox_are_named() {
    block_on(async {
        let lab = Lab::shared().await;
        let tag: SnapshotTag = "no-such-tag".parse().unwrap();
        let error = lab.engine.fork(&tag, 1).await.unwrap_err();
        assert!(matches!(error, EngineError::UnknownSnapshot { .. }), "{error}");
        assert!(error.to_string().contains("no-such-tag"), "{error}");
        let id = SandboxId::random();
        let error = lab.engine.remove_sandbox(&id).await.unwrap_err();
        assert!(error.to_string().contains(id.as_str()), "{error}");
    });
}

#[test]
fn an_unknown_image_is_named_with_those_that_exist() {
    block_on(async {
        let lab = Lab::shared().await;
        let tag: SnapshotTag = "from-nothing".parse().unwrap();
        let error = lab.build(&tag, "no-such-image", 128).await.unwrap_err().to_string();
        assert!(error.contains("no-such-image") && error.contains("tiny"), "{error}");
        assert!(lab.engine.snapshot(&tag).is_err(), "the tag stays free");
    });
}

#[test]
fn a_missing_kernel_and_a_missing_root_disk_are_named_by_path() {
    block_on(async {
        let lab = Lab::shared().await;
        for (image, field, file) in
            [("tiny", "kernel", "gone-kernel"), ("python", "root_disk", "gone-disk")]
        {
            let images = tempfile::tempdir().unwrap();
            let source = lab.config().image_dir.join(image).canonicalize().unwrap();
            let mut json = fs::read_to_string(source.join("image.json")).unwrap();
            for key in ["kernel", "initramfs", "root_disk"] {
                let marker = format!("\"{key}\": \"");
                let Some(at) = json.find(&marker).map(|at| at + marker.len()) else { continue };
                let end = at + json[at..].find('"').unwrap();
                let path = source.join(&json[at..end]);
                let path = if key == field { source.join(file) } else { path };
                json.replace_range(at..end, path.to_str().unwrap());
            }
            let broken = images.path().join("broken");
            fs::create_dir(&broken).unwrap();
            fs::write(broken.join("image.json"), json).unwrap();
            let other = Lab::with_images(images.path()).await;
            let tag: SnapshotTag = "broken".parse().unwrap();
            let error = other.build(&tag, "broken", 128).await.unwrap_err().to_string();
            assert!(error.contains(file) && error.contains("does not exist"), "{error}");
            assert_eq!(other.vmm_count(), 0);
        }
    });
}
