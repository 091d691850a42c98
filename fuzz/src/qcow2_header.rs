//! The header of an overlay as a VMM may have written it: refused, or without a data file and with
//! no feature that forkd does not know, and with a backing file only if its name is in the header.

use forkd_store::{Qcow2Error, Qcow2Header};

/// The beginning of the file.
pub fn check(head: &[u8]) {
    let head = &head[..head.len().min(Qcow2Header::BYTES)];
    match Qcow2Header::decode(head) {
        Ok(header) => {
            assert_eq!(&head[..8], b"QFI\xfb\0\0\0\x03", "accepted without magic and version");
            assert_eq!(&head[72..79], [0; 7], "accepted with unknown features");
            assert!(head[79] <= 0b11, "accepted with a data file or unknown features");
            let name = header.backing_file.as_ref().map(|name| name.as_os_str().as_encoded_bytes());
            assert!(name.is_none_or(|name| head.windows(name.len()).any(|part| part == name)));
            assert_eq!(header.require_backing(|_| false).is_ok(), name.is_none());
        }
        Err(error) => assert!(!matches!(error, Qcow2Error::BackingFile { .. }), "none was asked"),
    }
}

/// As QEMU writes it: names nothing; names a backing file and its format; names a data file.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let mut plain = vec![0; 104];
    plain[..8].copy_from_slice(b"QFI\xfb\0\0\0\x03");
    plain[103] = 112;
    plain.extend([0; 8]);
    let end = [0; 8];
    let with = |parts: &[&[u8]]| [&[plain.as_slice()], parts].concat().concat();
    let mut backed = with(&[b"\xe2\x79\x2a\xca\0\0\0\x03raw\0\0\0\0\0", &end, b"/disk/base"]);
    (backed[15], backed[19]) = (136, 10);
    let mut external = with(&[b"DATA\0\0\0\x04/etc\0\0\0\0", &end]);
    external[79] = 4;
    vec![with(&[&end]), backed, external]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seeds_are_understood() {
        let [plain, backed, external] = seeds().try_into().unwrap();
        assert_eq!(Qcow2Header::decode(&plain).unwrap().backing_file, None);
        let backed = Qcow2Header::decode(&backed).unwrap().backing_file;
        assert_eq!(backed, Some("/disk/base".into()));
        let name = "/etc".to_owned();
        assert_eq!(Qcow2Header::decode(&external), Err(Qcow2Error::DataFile { name }));
    }
}
