//! What a disk has: every kind of file with all that is known of it.

use std::os::unix::fs::{FileExt as _, MetadataExt as _};

use serde_json::json;
use tar::EntryType;

use crate::image::{Layer, Layout, Packing, disk_of, make};

#[test]
fn every_kind_of_file_arrives_with_owner_mode_time_and_attributes() {
    let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let long_target = "x/".repeat(45);
    let layer = Layer::new()
        .records(&[("mtime", b"1700000000.123456789"), ("uid", b"4000000"), ("gid", b"70000")])
        .entry("program", b"#!/bin/sh\n", |header| header.set_mode(0o4755))
        .records(&[("SCHILY.xattr.security.capability", &capability)])
        .file("capable", "c")
        .records(&[("SCHILY.xattr.user.large", &[b'v'; 1000])])
        .file("attributed", "a")
        .symlink("short", "../../../outside")
        .symlink("long", &long_target)
        .entry("null", b"", |header| {
            header.set_entry_type(EntryType::Char);
            header.set_device_major(1).unwrap();
            header.set_device_minor(3).unwrap();
        })
        .entry("disk", b"", |header| {
            header.set_entry_type(EntryType::Block);
            header.set_device_major(259).unwrap();
            header.set_device_minor(70000).unwrap();
        })
        .entry("pipe", b"", |header| header.set_entry_type(EntryType::Fifo))
        .file("a", "shared")
        .hard_link("b", "a")
        .entry("sticky", b"", |header| {
            header.set_entry_type(EntryType::Directory);
            header.set_mode(0o1777);
        });
    let disk = disk_of(vec![layer.finish()]);
    let program = disk.stat("program");
    for part in ["Mode:  04755", "User: 4000000", "Group: 70000", "0x6553f100:1d6f3454"] {
        assert!(program.contains(part), "{part}: {program}");
    }
    let capable = disk.stat("capable");
    assert!(capable.contains("security.capability (20) = 01 00 00 02 00 04"), "{capable}");
    assert!(disk.stat("attributed").contains("user.large (1000)"));
    assert!(disk.stat("short").contains("Fast link dest: \"../../../outside\""));
    assert_eq!(disk.text("long"), long_target);
    let null = disk.stat("null");
    assert!(
        null.contains("character special") && null.contains("Device major/minor number: 01:03")
    );
    assert!(disk.stat("disk").contains("major/minor number: 259:70000"));
    assert!(disk.stat("pipe").contains("FIFO"));
    assert_eq!((disk.inode("a"), disk.text("b").as_str()), (disk.inode("b"), "shared"));
    assert!(disk.stat("a").contains("Links: 2"));
    assert!(disk.stat("sticky").contains("Mode:  01777"));
}

#[test]
fn a_file_of_more_than_4_gib_is_as_large_as_it_says_and_its_zeros_take_no_room() {
    let large: u64 = (5 << 30) + 3;
    let temporary = tempfile::tempdir().unwrap();
    let file = std::fs::File::create(temporary.path().join("large")).unwrap();
    file.write_all_at(b"in the middle", 3 << 30).unwrap();
    file.set_len(large).unwrap();
    file.write_all_at(b"end", large - 3).unwrap();
    for format in ["gnu", "pax"] {
        // GNU tar writes the holes as holes, each format in its own way.
        let mut tar = std::process::Command::new("tar");
        tar.args(["--sparse", &format!("--format={format}"), "-cf", "-", "-C"]);
        let output = tar.arg(temporary.path()).arg("large").output().unwrap();
        assert!(output.status.success() && output.stdout.len() < 1 << 20);
        let disk = disk_of(vec![output.stdout]);
        let stat = disk.stat("large");
        assert!(stat.contains(&format!("Size: {large}")), "{stat}");
        // What is where, by the block of the file.
        for (at, text) in [(3 << 30, &b"in the middle"[..]), (large - 3, b"end")] {
            let block = disk.ask(&format!("bmap large {}", at / 4096));
            let block: u64 = String::from_utf8(block).unwrap().trim().parse().unwrap();
            let mut found = vec![0; text.len()];
            let image = std::fs::File::open(&disk.path).unwrap();
            image.read_exact_at(&mut found, block * 4096 + at % 4096).unwrap();
            assert_eq!(found, text);
        }
        assert_eq!(disk.ask("bmap large 1000"), b"0\n", "a hole");
        let blocks = disk.path.metadata().unwrap().blocks();
        assert!(blocks * 512 < 64 << 20, "{} MiB", blocks >> 11);
    }
}

#[test]
fn a_hundred_thousand_entries_and_a_file_of_many_pieces_are_whole() {
    let mut layer = Layer::new();
    for number in 0..100_000 {
        layer = layer.file(&format!("many/{}/{number}", number % 7), "");
    }
    // Chunks with and without content in turns: no two of its extents are one.
    let piece = [vec![7; 65_536], vec![0; 65_536]].concat();
    layer = layer.file("pieces", piece.repeat(400));
    let disk = disk_of(vec![layer.finish()]);
    let names: usize = (0..7).map(|part| disk.names(&format!("many/{part}")).len()).sum();
    assert_eq!(names, 100_000);
    assert_eq!(disk.cat("pieces"), piece.repeat(400));
}

#[test]
fn equal_images_give_equal_disks_however_they_are_packed() {
    let layers = || {
        let random: Vec<u8> =
            (0..300_000_u32).map(|n| n.wrapping_mul(n).to_be_bytes()[1]).collect();
        vec![Layer::new().file("a", random).finish(), Layer::new().file("b", "b").finish()]
    };
    let config = json!({"Env": ["A=b c", "D="], "WorkingDir": "/w", "User": "u:g", "Cmd": ["x"]});
    let disks: Vec<_> = [Packing::Plain, Packing::Gzip, Packing::Zstd]
        .into_iter()
        .map(|packing| {
            make(&Layout::packed(layers(), packing, config.clone()).reference()).unwrap()
        })
        .collect();
    for disk in &disks {
        assert_eq!(disk.text("etc/forkd/image-defaults"), "env A=b c\0env D=\0cwd /w\0user u:g\0");
        let said: serde_json::Value =
            serde_json::from_slice(&disk.cat("etc/forkd/image.json")).unwrap();
        assert_eq!((&said["Cmd"], &said["WorkingDir"]), (&json!(["x"]), &json!("/w")));
        assert!(disk.bytes() == disks[0].bytes());
    }
}

#[test]
fn an_image_without_anything_gets_what_the_agent_needs() {
    let disk = disk_of(Vec::new());
    assert_eq!(disk.names("/"), ["dev", "etc", "lost+found", "proc", "run", "sys", "tmp"]);
    assert!(disk.stat("tmp").contains("Mode:  01777"));
    assert!(disk.disk.bytes >= 4 << 30);
    // What an image has is left as it is.
    let layer = Layer::new().symlink("run", "var/run").folder("var/run").symlink("etc", "cfg");
    let disk = disk_of(vec![layer.folder("cfg").finish()]);
    assert!(disk.stat("run").contains("Fast link dest"));
    assert_eq!(disk.names("cfg"), ["forkd"]);
}
