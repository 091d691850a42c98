//! How layers make one tree, and what a hostile one is told.

use forkd_oci::OciError;
use tar::EntryType;

use crate::image::{Layer, Layout, disk_of, make, pull};

#[test]
fn upper_layers_replace_and_hide_what_is_below() {
    let lower = Layer::new()
        .file("keep", "k")
        .file("replaced", "old")
        .file("gone", "g")
        .file("d/gone", "g")
        .file("d/keep", "k")
        .file("tree/a/b", "b")
        .file("opaque/old/x", "x")
        .file("opaque/sub/old", "o")
        .file("becomes-folder", "f")
        .file("becomes-file/x", "x")
        .file("linked", "first");
    let middle = Layer::new().hard_link("link", "linked").file("late", "l");
    let upper = Layer::new()
        .file("replaced", "new")
        .file(".wh.gone", "")
        .file("d/.wh.gone", "")
        .file(".wh.tree", "")
        // What this layer has itself stays, also when it comes before what hides.
        .file("opaque/sub/new", "n")
        .file("opaque/.wh..wh..opq", "")
        .file("opaque/new", "n")
        .file("becomes-folder/x", "")
        .file(".wh..wh.plnk", "");
    let between =
        Layer::new().folder("becomes-folder").file("becomes-file", "f").file("linked", "second");
    let layers = [lower, middle, between, upper].map(Layer::finish).to_vec();
    let disk = disk_of(layers);
    assert_eq!(disk.text("replaced"), "new");
    assert_eq!(disk.names("d"), ["keep"]);
    assert_eq!(disk.names("opaque"), ["new", "sub"]);
    assert_eq!(disk.names("opaque/sub"), ["new"]);
    assert_eq!(disk.names("becomes-folder"), ["x"]);
    assert_eq!(disk.text("becomes-file"), "f");
    assert_eq!((disk.text("linked").as_str(), disk.text("link").as_str()), ("second", "first"));
    for gone in ["gone", "tree", ".wh.gone", ".wh..wh.plnk"] {
        assert!(!disk.has(gone), "{gone}");
    }
    assert!(disk.has("keep") && disk.has("late"));
}

#[test]
fn a_directory_that_comes_again_keeps_what_it_has() {
    let lower = Layer::new().folder("d").file("d/x", "x");
    let upper = Layer::new().entry("d", b"", |header| {
        header.set_entry_type(EntryType::Directory);
        header.set_mode(0o700);
    });
    let disk = disk_of(vec![lower.finish(), upper.finish()]);
    assert!(disk.stat("d").contains("Mode:  0700"));
    assert_eq!(disk.names("d"), ["x"]);
}

#[test]
fn a_path_through_a_link_stays_in_the_image() {
    let lower = Layer::new()
        .folder("usr/lib")
        .symlink("lib", "usr/lib")
        .symlink("up", "../../../../../..")
        .symlink("absolute", "/usr");
    let upper = Layer::new()
        .file("lib/x", "through a link")
        .file("up/y", "at the root")
        .file("absolute/z", "below the root")
        .file("/leading", "slash")
        .file("./dot", "dot");
    let disk = disk_of(vec![lower.finish(), upper.finish()]);
    assert_eq!(disk.names("usr"), ["lib", "z"]);
    assert_eq!(disk.text("usr/lib/x"), "through a link");
    assert_eq!(disk.text("y"), "at the root");
    assert!(disk.has("leading") && disk.has("dot") && disk.stat("lib").contains("Fast link"));
}

#[test]
fn hostile_archives_are_refused_by_name() {
    let file = |path: &str| Layer::new().file(path, "x").finish();
    let kind = |kind: u8| Layer::new().entry("x", b"", |h| h.as_mut_bytes()[156] = kind).finish();
    let field = |at: usize, text: &'static [u8]| {
        let change = move |header: &mut tar::Header| {
            header.as_mut_bytes()[at..at + text.len()].copy_from_slice(text);
        };
        Layer::new().entry("x", b"", change).finish()
    };
    let mut broken = file("x");
    broken[0] = b'y';
    let long = "n".repeat(300);
    let records =
        |key: &str, value: &[u8]| Layer::new().records(&[(key, value)]).file("x", "").finish();
    let loops = Layer::new().symlink("a", "b").symlink("b", "a").file("a/x", "");
    let sparse = |records: &[(&str, &[u8])], content: &str| {
        let version: [(&str, &[u8]); 2] = [("GNU.sparse.major", b"1"), ("GNU.sparse.minor", b"0")];
        let content = format!("{content:\0<512}");
        Layer::new().records(&[&version[..], records].concat()).file("x", content).finish()
    };
    for (archive, told) in [
        (file("../x"), "`../x`: its path has `..` in it"),
        (file("a/../../x"), "its path has `..` in it"),
        (file("/../x"), "its path has `..` in it"),
        (file(".wh."), "it hides nothing"),
        (file(".wh..."), "it hides nothing"),
        (Layer::new().hard_link("x", "/etc/passwd").finish(), "its target `/etc/passwd` does not"),
        (Layer::new().hard_link("x", "../../etc/passwd").finish(), "its path has `..` in it"),
        (Layer::new().folder("d").hard_link("x", "d").finish(), "hard link to a directory"),
        (Layer::new().symlink("x", "").finish(), "its target is empty"),
        (Layer::new().file("f", "").file("f/x", "").finish(), "`f` on its path is not a directory"),
        (Layer::new().symlink("./", "x").finish(), "the root is not a directory"),
        (loops.finish(), "through too many symbolic links"),
        (kind(b'Z'), "unknown kind 'Z'"),
        (broken, "a header is broken"),
        (file("x")[..512].to_vec(), "ends in the middle of a file"),
        (file("x")[..100].to_vec(), "ends in the middle of a header"),
        (field(124, b"9"), "a number is broken"),
        (field(124, &[0xff; 12]), "a number is negative"),
        (field(124, b"77777777777"), "ends in the middle of a file"),
        (field(124, &[0x80, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]), "a number is too large"),
        (records("path", long.as_bytes()), "more than 255 bytes"),
        (records("path", b"a\0b"), "has a zero byte"),
        (records("path", &b"a/".repeat(3000)), "its path is too long"),
        (records("SCHILY.xattr.user.x", &[1; 5000]), "of extended attributes"),
        (records("comment", &vec![b'c'; 2 << 20]), "attributes of an entry are too long"),
        (records("size", b"99999999999999999999"), "a number is broken"),
        (records("uid", b"99999999999"), "an id or a device number is too large"),
        (sparse(&[("GNU.sparse.realsize", b"10")], "1\n5\n6\n"), "not in order"),
        (sparse(&[("GNU.sparse.realsize", b"10")], "1\n0\n6\n"), "not what is stored"),
        (sparse(&[("GNU.sparse.realsize", b"10")], "999999999\n0\n"), "has too many parts"),
    ] {
        let made = make(&Layout::new(vec![archive]).reference());
        let error = made.expect_err(told);
        assert!(matches!(error, OciError::Damaged { .. }), "{told}: {error:?}");
        assert!(error.to_string().contains(told), "{told}: {error}");
    }
}

#[test]
fn bytes_that_are_not_what_their_document_names_are_refused() {
    let refused = |change: fn(&mut Layout)| {
        let mut layout = Layout::new(vec![Layer::new().file("x", "x").finish()]);
        change(&mut layout);
        make(&layout.reference()).unwrap_err()
    };
    // The content of a blob, of the same length.
    let layer = refused(|layout| {
        let path = blob_of(layout, "/layers/0");
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[512] = b'y';
        std::fs::write(path, bytes).unwrap();
    });
    let config = refused(|layout| {
        let path = blob_of(layout, "/config");
        let text = std::fs::read_to_string(&path).unwrap().replace("{}", "{ }");
        std::fs::write(path, text).unwrap();
    });
    // A layer that is what the manifest names, and not what the configuration does.
    let unpacked = refused(|layout| {
        let mut manifest = layout.manifest.clone();
        manifest["layers"][0] = layout.blob(&Layer::new().file("x", "z").finish());
        layout.publish(manifest);
    });
    for error in [layer, config, unpacked] {
        assert!(matches!(error, OciError::Digest { .. }), "{error}");
    }
}

#[test]
fn layers_for_which_there_is_no_room_are_refused_before_any_is_fetched() {
    let layers = (0..200).map(|number| Layer::new().file("f", [number]).finish()).collect();
    let mut layout = Layout::new(layers);
    let mut manifest = layout.manifest.clone();
    for layer in manifest["layers"].as_array_mut().unwrap() {
        layer["size"] = (60_u64 << 30).into();
    }
    layout.publish(manifest);
    let folder = tempfile::tempdir().unwrap();
    let error = pull(&layout.reference(), folder.path()).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, OciError::NoRoom { .. }), "{text}");
    assert!(text.contains(&layout.reference()) && text.contains("are free"), "{text}");
    for kept in ["blobs", "partial"] {
        assert_eq!(std::fs::read_dir(folder.path().join(kept)).unwrap().count(), 0, "{kept}");
    }
}

fn blob_of(layout: &Layout, pointer: &str) -> std::path::PathBuf {
    let digest = layout.manifest.pointer(pointer).unwrap()["digest"].as_str().unwrap();
    layout.blob_path(&digest.parse().unwrap())
}
