//! A reference as a user may write it: read or refused, and what was read is written as the
//! same again.

use forkd_oci::Reference;

/// The text of a reference.
pub fn check(text: &[u8]) {
    let Ok(text) = std::str::from_utf8(text) else { return };
    let Ok(reference) = text.parse::<Reference>() else { return };
    let again = reference.to_string().parse::<Reference>().expect("what was written can be read");
    assert_eq!(reference, again, "read again, it differs");
    if let Reference::Registry(found) = reference {
        assert!(
            !found.repository.split('/').any(|part| matches!(part, "" | "." | "..")),
            "{found}"
        );
    }
}

/// One of each kind.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let digest = format!("team/app@sha256:{}", "0a".repeat(32));
    let texts =
        ["python:3.12-slim", "registry.example:5000/a/b:v1", "oci:/a:b", "[::1]:1/x", &digest];
    texts.map(|text| text.as_bytes().to_vec()).to_vec()
}
