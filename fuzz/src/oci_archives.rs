//! A layer from a registry: merged into a tree that can be written, or refused.

/// An archive that is not compressed.
pub fn check(archive: &[u8]) {
    forkd_oci::fuzzing::fuzz_archive(archive);
}

/// A file, a link to it, a whiteout, and a name in a record of pax.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let file = [entry("d/file", b'0', "", b"text"), entry("link", b'1', "d/file", b"")].concat();
    let hidden = [file.clone(), entry("d/.wh.file", b'0', "", b"")].concat();
    let record = b"26 path=d/a-name-in-a-rec\n";
    let named = [entry("x", b'x', "", record), entry("short", b'0', "", b"text")].concat();
    let device = [entry("dev", b'3', "", b""), entry("s", b'2', "../..", b"")].concat();
    vec![file, hidden, named, device]
}

fn entry(path: &str, kind: u8, target: &str, content: &[u8]) -> Vec<u8> {
    let mut header = vec![0; 512];
    let size = format!("{:011o}", content.len());
    for (at, text) in [(0, path), (100, "0000644"), (108, "0000000"), (116, "0000000")] {
        header[at..at + text.len()].copy_from_slice(text.as_bytes());
    }
    for (at, text) in [(124, size.as_str()), (136, "00000000000"), (157, target), (257, "ustar")] {
        header[at..at + text.len()].copy_from_slice(text.as_bytes());
    }
    header[148..156].fill(b' ');
    header[156] = kind;
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    header.extend_from_slice(content);
    header.resize(header.len().next_multiple_of(512), 0);
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_of_a_seed_is_a_good_one() {
        // One that is not is refused before anything is looked at.
        assert!(forkd_oci::fuzzing::is_archive(&seeds().concat()));
        assert!(!forkd_oci::fuzzing::is_archive(&[1; 512]));
    }
}
