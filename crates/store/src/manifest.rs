//! What a snapshot consists of, and its text in the registry.
//!
//! The text is JSON with the version of its format. Fields that were added later have defaults, so
//! an earlier text is read; one of a later version is refused, because it may say something that
//! this program would overlook.

use std::collections::BTreeMap;

use forkd_types::{ByteCount, Digest, LayerId, OverlayId, SandboxId, SnapshotTag};
use serde::{Deserialize, Serialize};

use crate::{FileChecksum, StoreError};

/// Version of the format. Raised when a program that does not know a change would use a snapshot
/// wrongly; a field that may be overlooked needs a default, and no other version. Version 2 knows
/// of network devices; version 1 is a manifest of a machine without one.
const FORMAT: u32 = 2;

/// What device state is bound to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineIdentity {
    /// The VMM's version.
    pub vmm_version: String,
    /// `kvm` or `tcg`.
    pub accelerator: String,
    /// CPU model.
    pub cpu_model: String,
}

impl std::fmt::Display for MachineIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "QEMU {} ({}, {})", self.vmm_version, self.accelerator, self.cpu_model)
    }
}

/// What a snapshot consists of. Nothing in it is live: no path, descriptor or process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotManifest {
    /// The image at the root of the lineage.
    pub image: String,
    /// Content hash of that image; another image of the same name does not fit.
    pub image_hash: String,
    /// Guest RAM.
    pub memory: ByteCount,
    /// Virtual CPUs.
    pub vcpus: u32,
    /// Memory layers, base first. The device state goes by the last one's name.
    pub layers: Vec<LayerId>,
    /// Frozen disk overlays, lowest first; empty for an image without disk.
    pub overlays: Vec<OverlayId>,
    /// Frozen overlays as they were when they became durable.
    #[serde(default, rename = "overlay_sums")]
    pub overlay_checksums: BTreeMap<OverlayId, FileChecksum>,
    /// The device state; known when the snapshot is ready.
    #[serde(default)]
    pub device_state: Option<FileChecksum>,
    /// What the parts hold, as far as they have come or gone as an artifact.
    #[serde(default, skip_serializing_if = "KnownContents::is_empty")]
    pub contents: KnownContents,
    /// What the device state needs.
    pub machine: MachineIdentity,
    /// The machine has a network device.
    #[serde(default)]
    pub network_device: bool,
    /// SHA-256 of the certificate of a network gateway that programs in the guest trust.
    #[serde(default)]
    pub gateway_certificate: Option<String>,
    /// It does not leave this host as an artifact, nor does what is branched from it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub private: bool,
    /// The snapshot below.
    pub parent_tag: Option<SnapshotTag>,
    /// The sandbox that it was branched from.
    pub branched_from: Option<SandboxId>,
}

/// What parts hold, whatever they are called here: so that they are known again in an artifact.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownContents {
    /// Of memory layers. A layer that was merged since is another one.
    pub layers: BTreeMap<LayerId, Digest>,
    /// Of disk overlays.
    pub overlays: BTreeMap<OverlayId, Digest>,
    /// Of the device state.
    pub device_state: Option<Digest>,
}

impl KnownContents {
    /// Whether nothing is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A manifest as it is written.
#[derive(Serialize)]
struct Written<'a> {
    format: u32,
    #[serde(flatten)]
    manifest: &'a SnapshotManifest,
}

/// What is read first. The first manifests did not say their format.
#[derive(Deserialize)]
struct Version {
    #[serde(default = "first")]
    format: u32,
}

const fn first() -> u32 {
    1
}

impl SnapshotManifest {
    /// The text of the manifest of the snapshot `tag`.
    ///
    /// # Errors
    /// When JSON cannot say it.
    pub fn encode(&self, tag: &SnapshotTag) -> Result<String, StoreError> {
        let written = Written { format: FORMAT, manifest: self };
        serde_json::to_string(&written).map_err(|error| damaged(tag, &error))
    }

    /// The manifest of the snapshot `tag` that `text` says.
    ///
    /// # Errors
    /// [`StoreError::ManifestFormat`] when another version of forkd wrote it,
    /// [`StoreError::RowDamaged`] when it is no manifest.
    pub fn decode(tag: &SnapshotTag, text: &str) -> Result<Self, StoreError> {
        let version: Version = serde_json::from_str(text).map_err(|error| damaged(tag, &error))?;
        match version.format {
            1..=FORMAT => serde_json::from_str(text).map_err(|error| damaged(tag, &error)),
            found => Err(StoreError::ManifestFormat { tag: tag.clone(), found, known: FORMAT }),
        }
    }
}

fn damaged(tag: &SnapshotTag, error: &serde_json::Error) -> StoreError {
    StoreError::RowDamaged { what: "snapshot", name: tag.to_string(), how: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a program of this version writes: touch it only with a new version.
    const TEXT: &str = concat!(
        r#"{"format":2,"image":"python","image_hash":"ab","memory":1610612736,"vcpus":2,"#,
        r#""layers":["ly-0123456789abcdef","ly-fedcba9876543210"],"#,
        r#""overlays":["ly-00000000000000aa"],"#,
        r#""overlay_sums":{"ly-00000000000000aa":{"bytes":4096,"crc32":7}},"#,
        r#""device_state":{"bytes":8192,"crc32":9},"#,
        r#""machine":{"vmm_version":"7.2.22","accelerator":"tcg","cpu_model":"max"},"#,
        r#""network_device":true,"gateway_certificate":"cd","#,
        r#""parent_tag":"base","branched_from":"sb-0123456789ab"}"#
    );

    fn tag() -> SnapshotTag {
        "one".parse().unwrap()
    }

    fn manifest() -> SnapshotManifest {
        let overlay: OverlayId = "ly-00000000000000aa".parse().unwrap();
        let checksum = FileChecksum { bytes: ByteCount::new(4096), crc32: 7 };
        SnapshotManifest {
            image: "python".to_owned(),
            image_hash: "ab".to_owned(),
            memory: ByteCount::from_mib(1536),
            vcpus: 2,
            layers: ["ly-0123456789abcdef", "ly-fedcba9876543210"]
                .map(|id| id.parse().unwrap())
                .to_vec(),
            overlays: vec![overlay.clone()],
            overlay_checksums: BTreeMap::from([(overlay, checksum)]),
            device_state: Some(FileChecksum { bytes: ByteCount::new(8192), crc32: 9 }),
            contents: KnownContents::default(),
            machine: MachineIdentity {
                vmm_version: "7.2.22".to_owned(),
                accelerator: "tcg".to_owned(),
                cpu_model: "max".to_owned(),
            },
            network_device: true,
            gateway_certificate: Some("cd".to_owned()),
            private: false,
            parent_tag: Some("base".parse().unwrap()),
            branched_from: Some("sb-0123456789ab".parse().unwrap()),
        }
    }

    #[test]
    fn the_format_is_what_it_was() {
        let text = manifest().encode(&tag()).unwrap();
        assert_eq!(text, TEXT, "changed the format? see FORMAT");
        assert_eq!(SnapshotManifest::decode(&tag(), &text).unwrap(), manifest());
    }

    #[test]
    fn what_parts_hold_is_kept() {
        let mut known = manifest();
        known.contents.layers.insert(known.layers[0].clone(), Digest::of(b"a"));
        known.contents.overlays.insert(known.overlays[0].clone(), Digest::of(b"b"));
        known.contents.device_state = Some(Digest::of(b"c"));
        let text = known.encode(&tag()).unwrap();
        assert_eq!(SnapshotManifest::decode(&tag(), &text).unwrap(), known);
    }

    #[test]
    fn a_text_without_what_was_added_later_is_read() {
        let mut json: serde_json::Value = serde_json::from_str(TEXT).unwrap();
        for added in
            ["format", "overlay_sums", "device_state", "network_device", "gateway_certificate"]
        {
            json.as_object_mut().unwrap().remove(added).unwrap();
        }
        let read = SnapshotManifest::decode(&tag(), &json.to_string()).unwrap();
        let wanted = SnapshotManifest {
            overlay_checksums: BTreeMap::new(),
            device_state: None,
            network_device: false,
            gateway_certificate: None,
            ..manifest()
        };
        assert_eq!(read, wanted);
    }

    #[test]
    fn a_text_of_another_format_is_refused_by_name_whatever_else_it_says() {
        for format in [0, FORMAT + 1, u32::MAX] {
            let later = format!(r#"{{"format":{format},"disks":[]}}"#);
            let error = SnapshotManifest::decode(&tag(), &later).unwrap_err();
            let says = |part: &str| error.to_string().contains(part);
            assert!(says("`one`") && says(&format!("format {format}")), "{error}");
            assert!(says("the version of forkd that made it"), "{error}");
        }
    }
}
