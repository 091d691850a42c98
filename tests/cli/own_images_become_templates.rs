//! Goal: an OCI image that forkd has not made becomes a template; its programs get its variables,
//! directory and user, in branches too; `forkd run` reads entrypoint and command as Docker does.
//!
//! Method: a layout with one layer, busybox and no guest agent in it. Breaks when the disk cannot
//! be mounted or written, when what the image says gets lost on the way, or when the same image is
//! made into a disk twice.

use std::fs;
use std::path::Path;
use std::process::Command;

use forkd_oci::Digest;
use serde_json::{Value, json};

use crate::forkd::Forkd;

/// Writes a layout with a user `me`, and the image that a second layout without it shares.
fn layout(folder: &Path) {
    let (root, out) = (folder.join("root"), folder.join("layout"));
    for path in ["root/bin", "root/etc", "root/srv", "layout/blobs/sha256"] {
        fs::create_dir_all(folder.join(path)).unwrap();
    }
    fs::copy("/bin/busybox", root.join("bin/busybox")).unwrap();
    for applet in ["cat", "echo", "env", "id", "pwd", "sh", "touch"] {
        std::os::unix::fs::symlink("busybox", root.join("bin").join(applet)).unwrap();
    }
    fs::write(root.join("etc/passwd"), "me:x:1000:100::/srv:/bin/sh\n").unwrap();
    fs::write(root.join("etc/group"), "us:x:100:\nextra:x:7:me\n").unwrap();
    let mut tar = Command::new("tar");
    tar.args(["--owner=1000", "--group=100", "-cf", "-", "-C"]).arg(&root).arg(".");
    let layer = tar.output().unwrap().stdout;
    let blob = |bytes: &[u8]| -> Value {
        let digest = Digest::of(bytes);
        fs::write(out.join("blobs/sha256").join(digest.hex()), bytes).unwrap();
        json!({"digest": digest.to_string(), "size": bytes.len()})
    };
    let config = json!({
        "architecture": "amd64", "os": "linux",
        "config": {"Env": ["GREETING=good day", "PATH=/bin"], "WorkingDir": "/srv", "User": "me",
            "Entrypoint": ["sh", "-c"], "Cmd": ["echo $GREETING; id; pwd"]},
        "rootfs": {"type": "layers", "diff_ids": [Digest::of(&layer).to_string()]},
    });
    let config = blob(config.to_string().as_bytes());
    let manifest = json!({"schemaVersion": 2, "config": config, "layers": [blob(&layer)]});
    let manifest = blob(manifest.to_string().as_bytes());
    let index = json!({"schemaVersion": 2, "manifests": [manifest]});
    fs::write(out.join("index.json"), index.to_string()).unwrap();
}

#[test]
fn an_image_runs_and_branches_with_what_it_says_of_itself() {
    let mut forkd = Forkd::new();
    let folder = tempfile::tempdir().unwrap();
    layout(folder.path());
    let reference = format!("oci:{}/layout", folder.path().display());
    forkd.ok(&["template", "build", "--from", &reference, "--tag", "t", "--mem-size-mib", "128"]);
    forkd.hold_to_contract();

    let told = "good day\nuid=1000(me) gid=100(us) groups=7(extra)\n/srv";
    assert_eq!(forkd.ok(&["run", "t"]), told, "its command follows its entrypoint");
    assert_eq!(forkd.ok(&["run", "t", "--", "echo $0 $HOME", "x"]), "x /srv");
    assert_eq!(forkd.ok(&["run", "t", "--no-entrypoint", "--", "echo", "alone"]), "alone");

    let source = forkd.json(&["fork", "t"])[0]["id"].as_str().unwrap().to_owned();
    forkd.ok(&["exec", &source, "--", "sh", "-c", "echo kept > file; export X=1"]);
    let branch = forkd.json(&["branch", &source, "--tag", "b", "-n", "1"]);
    let child = branch["children"][0]["sandbox"]["id"].as_str().unwrap().to_owned();
    let script = "echo $GREETING; id -u; cat /srv/file";
    assert_eq!(forkd.ok(&["exec", &child, "--", "sh", "-c", script]), "good day\n1000\nkept");
    let told = forkd.ok(&["exec", &child, "--user", "0:7", "--", "sh", "-c", "id -u; id -G; pwd"]);
    assert_eq!(told, "0\n7\n/srv", "another user than the image's");
    assert_eq!(forkd.ok(&["run", "t", "-u", "5", "--", "id -u"]), "5");
    let (errors, _) = forkd.refused(&["exec", &child, "-u", "you", "--", "id"]);
    assert!(errors.contains("no user \"you\""), "{errors}");
    let (errors, _) = forkd.refused(&["eval", &child, "1"]);
    assert!(errors.contains("has no python3"), "{errors}");

    forkd.ok(&["template", "build", "--from", &reference, "--tag", "t2"]);
    let disks = fs::read_dir(forkd.home().join("state/oci/images")).unwrap().count();
    assert_eq!(disks, 1, "both templates share it");
}

#[test]
fn an_image_that_cannot_be_had_is_named_and_leaves_no_template() {
    let forkd = Forkd::held_to_contract();
    let folder = tempfile::tempdir().unwrap();
    layout(folder.path());
    let here = folder.path().display();
    let (missing, tag) = (format!("oci:{here}/no-such"), format!("oci:{here}/layout:v2"));
    let closed = format!("localhost:{}/team/app:v1", free_port());
    for (reference, told) in [
        (missing.as_str(), "No such file"),
        (&tag, "there is no image"),
        (&closed, "Connection refused"),
        ("Not/A Reference", "is not an image reference"),
    ] {
        let args = ["template", "build", "--from", reference, "--tag", "x"];
        let (errors, code) = forkd.refused(&args);
        assert!(errors.contains(told) && errors.contains("\nhint: "), "{reference}: {errors}");
        assert_eq!((code, forkd.json(&["snapshots"])), (1, json!([])), "{reference}");
    }
}

/// Where nobody listens.
fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}
