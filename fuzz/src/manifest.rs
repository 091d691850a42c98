//! A snapshot's manifest and figures as text from the registry: read or refused, and what was read
//! is written as the same again. Ids in it are ids: none leads out of the store's folders.

use forkd_store::{SnapshotFigures, SnapshotManifest};
use forkd_types::{LayerId, OverlayId, SnapshotTag};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The text of a manifest or of figures.
pub fn check(text: &[u8]) {
    if let Some(manifest) = manifest(text) {
        let layers = manifest.layers.iter().map(LayerId::as_str);
        for id in layers.chain(manifest.overlays.iter().map(OverlayId::as_str)) {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
            assert!(id.bytes().all(plain), "{id} is no name of a file");
            assert!(!id.is_empty());
        }
    }
    let _figures = same_again::<SnapshotFigures>(text);
}

fn manifest(text: &[u8]) -> Option<SnapshotManifest> {
    let tag: SnapshotTag = "fuzzed".parse().expect("a good tag");
    let manifest = SnapshotManifest::decode(&tag, std::str::from_utf8(text).ok()?).ok()?;
    let written = manifest.encode(&tag).expect("plain values have a text");
    let again = SnapshotManifest::decode(&tag, &written).expect("what was written can be read");
    assert_eq!(manifest, again, "read again, it differs");
    Some(manifest)
}

fn same_again<T>(text: &[u8]) -> Option<T>
where
    T: DeserializeOwned + Serialize + PartialEq + std::fmt::Debug,
{
    let value: T = serde_json::from_slice(text).ok()?;
    let written = serde_json::to_vec(&value).expect("plain values have a text");
    let again: T = serde_json::from_slice(&written).expect("what was written can be read");
    assert_eq!(value, again, "read again, it differs");
    Some(value)
}

/// A branch's manifest with all that it may have, an old one, and figures.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let sum = r#"{"bytes":4096,"crc32":7}"#;
    let machine = r#"{"vmm_version":"7.2.22","accelerator":"tcg","cpu_model":"max"}"#;
    let layers = r#"["ly-0123456789abcdef","ly-fedcba9876543210"]"#;
    let whole = format!(
        r#"{{"format":1,"image":"python","image_hash":"ab","memory":1610612736,
        "vcpus":2,"layers":{layers},"overlays":["ly-00000000000000aa"],"overlay_sums":{{"ly-00000000000000aa":{sum}}},
        "device_state":{sum},"machine":{machine},"parent_tag":"base",
        "branched_from":"sb-0123456789ab"}}"#
    );
    let old = format!(
        r#"{{"image":"tiny","image_hash":"","memory":67108864,"vcpus":1,"layers":{layers},
        "overlays":[],"machine":{machine},"parent_tag":null,"branched_from":null}}"#
    );
    let figures = r#"{"mode":"live","phases_us":{"pause":250,"sweep":100},"pause_us":900,
        "held_by_vmm_us":null,"ready_us":1200,"captured":4096,"dirty":4096,"stored":0,"faults":3,
        "fault_service_median_us":40,"fault_service_max_us":70}"#;
    vec![whole.into_bytes(), old.into_bytes(), figures.as_bytes().to_vec()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seeds_are_read() {
        let [whole, old, figures] = seeds().try_into().unwrap();
        assert!(manifest(&whole).is_some());
        assert!(manifest(&old).is_some());
        assert!(same_again::<SnapshotFigures>(&figures).is_some());
    }
}
