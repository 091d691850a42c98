//! A cpio archive ("newc") in memory: what the kernel unpacks as its initramfs. Pure functions, so
//! that no root is needed for the device node in it.
//!
//! Guarantees: the same calls give the same bytes (times, owners and inode numbers are fixed);
//! every entry's parent folders come before it. Does not read archives.

use std::collections::BTreeSet;

const MAGIC: &str = "070701";
const TRAILER: &str = "TRAILER!!!";

const KIND_DIRECTORY: u32 = 0o040_000;
const KIND_FILE: u32 = 0o100_000;
const KIND_SYMLINK: u32 = 0o120_000;
const KIND_CHARACTER_DEVICE: u32 = 0o020_000;

/// An archive being written. Paths are relative to the root, without a leading slash.
#[derive(Default)]
pub(super) struct Archive {
    bytes: Vec<u8>,
    paths: BTreeSet<String>,
}

/// One entry's header fields.
struct Entry<'a> {
    path: &'a str,
    mode: u32,
    device: (u32, u32),
    content: &'a [u8],
}

impl Archive {
    /// Adds a folder, unless it is there.
    pub(super) fn directory(&mut self, path: &str) {
        if !self.paths.contains(path) {
            self.add(&Entry { path, mode: KIND_DIRECTORY | 0o755, device: (0, 0), content: &[] });
        }
    }

    /// Adds a file with these permission bits. Of two files with one path the guest sees the
    /// later one.
    pub(super) fn file(&mut self, path: &str, permissions: u32, content: &[u8]) {
        self.add(&Entry { path, mode: KIND_FILE | permissions, device: (0, 0), content });
    }

    /// Adds a symbolic link, unless something has this path.
    pub(super) fn symlink(&mut self, path: &str, target: &str) {
        if !self.paths.contains(path) {
            let content = target.as_bytes();
            self.add(&Entry { path, mode: KIND_SYMLINK | 0o777, device: (0, 0), content });
        }
    }

    /// Adds a character device node.
    pub(super) fn character_device(&mut self, path: &str, permissions: u32, device: (u32, u32)) {
        let mode = KIND_CHARACTER_DEVICE | permissions;
        self.add(&Entry { path, mode, device, content: &[] });
    }

    /// The complete archive.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.write(&Entry { path: TRAILER, mode: 0, device: (0, 0), content: &[] }, 0);
        while !self.bytes.len().is_multiple_of(512) {
            self.bytes.push(0);
        }
        self.bytes
    }

    fn add(&mut self, entry: &Entry<'_>) {
        if let Some((parent, _)) = entry.path.rsplit_once('/') {
            self.directory(parent);
        }
        self.paths.insert(entry.path.to_owned());
        // A repeated number would make the kernel hard-link the entries.
        self.write(entry, self.paths.len());
    }

    fn write(&mut self, entry: &Entry<'_>, inode: usize) {
        let links = if entry.mode & 0o170_000 == KIND_DIRECTORY { 2 } else { 1 };
        let (major, minor) = entry.device;
        let name_length = entry.path.len() + 1;
        let size = entry.content.len();
        let header = format!(
            "{MAGIC}{inode:08x}{mode:08x}{zero:08x}{zero:08x}{links:08x}{zero:08x}{size:08x}\
             {zero:08x}{zero:08x}{major:08x}{minor:08x}{name_length:08x}{zero:08x}",
            mode = entry.mode,
            zero = 0,
        );
        self.bytes.extend_from_slice(header.as_bytes());
        self.bytes.extend_from_slice(entry.path.as_bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend_from_slice(entry.content);
        self.align();
    }

    fn align(&mut self) {
        while !self.bytes.len().is_multiple_of(4) {
            self.bytes.push(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Path, mode, device and content.
    type Found = (String, u32, (u32, u32), Vec<u8>);

    /// Reads an archive back by the format's definition.
    fn read(bytes: &[u8]) -> Vec<Found> {
        let mut entries = Vec::new();
        let mut at = 0;
        loop {
            let field = |index: usize| {
                let start = at + 6 + index * 8;
                let text = std::str::from_utf8(&bytes[start..start + 8]).unwrap();
                u32::from_str_radix(text, 16).unwrap()
            };
            assert_eq!(&bytes[at..at + 6], b"070701");
            assert_eq!(at % 4, 0, "headers are aligned");
            let (size, name_length) = (field(6) as usize, field(11) as usize);
            let name = String::from_utf8(bytes[at + 110..at + 110 + name_length - 1].to_vec());
            let start = (at + 110 + name_length).next_multiple_of(4);
            let name = name.unwrap();
            if name == "TRAILER!!!" {
                return entries;
            }
            let content = bytes[start..start + size].to_vec();
            entries.push((name, field(1), (field(9), field(10)), content));
            at = (start + size).next_multiple_of(4);
        }
    }

    #[test]
    fn entries_are_read_back_with_parents_before_them() {
        let mut archive = Archive::default();
        archive.file("lib/modules/a.ko", 0o644, b"12345");
        archive.symlink("bin/sh", "busybox");
        archive.character_device("dev/console", 0o600, (5, 1));
        let entries = read(&archive.finish());
        let names: Vec<&str> = entries.iter().map(|entry| entry.0.as_str()).collect();
        let expected =
            ["lib", "lib/modules", "lib/modules/a.ko", "bin", "bin/sh", "dev", "dev/console"];
        assert_eq!(names, expected);
        assert_eq!(entries[2].3, b"12345");
        assert_eq!(entries[2].1, 0o100_644);
        assert_eq!(entries[4].3, b"busybox");
        assert_eq!((entries[6].1, entries[6].2), (0o020_600, (5, 1)));
    }

    #[test]
    fn a_symlink_never_replaces_an_earlier_entry() {
        let mut archive = Archive::default();
        archive.file("bin/busybox", 0o755, b"x");
        archive.symlink("bin/busybox", "busybox");
        assert_eq!(read(&archive.finish()).len(), 2);
    }

    #[test]
    fn the_same_calls_give_the_same_bytes_in_whole_blocks() {
        let build = || {
            let mut archive = Archive::default();
            archive.file("init", 0o755, b"program");
            archive.finish()
        };
        assert_eq!(build(), build());
        assert_eq!(build().len() % 512, 0);
    }
}
