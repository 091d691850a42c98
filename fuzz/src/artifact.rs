//! An artifact as anybody may send it: the head of the file is read or refused, and so is a
//! manifest, which a search would never get to behind its digest and signature. A manifest that is
//! read is within the limits, and is written as the same again.

use forkd_artifact::{ArtifactManifest, SignedArtifact};
use forkd_types::limit;

const GOLDEN: &[u8] = include_bytes!("../../crates/artifact/testdata/format-1.tar");
/// How a manifest begins.
const BEGINNING: &[u8] = br#"{"format":"#;

/// A file, and a manifest.
pub fn check(input: &[u8]) {
    if let Ok(signed) = SignedArtifact::read(input) {
        signed.unpack().map(drop).ok();
    }
    let manifest = match ArtifactManifest::decode(input) {
        Ok(manifest) => manifest,
        Err(error) => return assert!(!error.to_string().is_empty(), "nothing is said"),
    };
    assert!((1..=limit::VCPUS_MAX).contains(&manifest.vcpus));
    assert!(manifest.memory_bytes.get() >> 20 <= limit::MEM_SIZE_MIB_MAX);
    assert!(!manifest.layers.is_empty() && manifest.layers.len() <= limit::CHAIN_DEPTH_MAX + 1);
    assert!(manifest.device_state.bytes <= limit::DEVICE_STATE_MAX.get());
    let again = serde_json::to_vec(&manifest).expect("what was read can be written");
    assert_eq!(again, input, "written again, it differs");
}

/// A file, and its manifest.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let mut places = GOLDEN.windows(BEGINNING.len());
    let begin = places.position(|bytes| bytes == BEGINNING).expect("it has a manifest");
    let rest = &GOLDEN[begin..];
    let end = rest.iter().position(|byte| *byte == 0).expect("it is padded");
    vec![GOLDEN.to_vec(), rest[..end].to_vec()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seeds_are_good() {
        let [file, manifest] = <[_; 2]>::try_from(seeds()).expect("two");
        assert!(SignedArtifact::read(&file[..]).is_ok_and(|signed| signed.unpack().is_ok()));
        assert!(ArtifactManifest::decode(&manifest).is_ok());
    }
}
