//! Snapshots: what they look like, and building templates.

use std::collections::BTreeMap;

use forkd_types::{
    BranchMode, ByteCount, CpuModel, MachineSize, MachineSizeError, SnapshotStatus, TagName,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::check::{FieldError, no_zero_byte};
use crate::{ErrorBody, Word};

/// Guest RAM of a template whose request names none, in MiB.
const MEM_SIZE_MIB_DEFAULT: u64 = 512;

/// A snapshot.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Snapshot {
    /// Its name; `OWNER/TAG` for another owner's.
    pub tag: String,
    /// To whom it belongs.
    #[serde(default)]
    pub owner: String,
    /// Whether all owners may look at it and start from it.
    #[serde(default)]
    pub shared: bool,
    /// Whether it is neither pushed nor exported, nor what is branched from it.
    #[serde(default)]
    pub private: bool,
    /// Where its durable files are.
    pub dir: String,
    /// When it was requested, in seconds since 1970.
    pub created_at_unix: u64,
    /// The sandbox that it was branched from; absent for a template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branched_from: Option<String>,
    /// The snapshot whose layers it builds on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_tag: Option<String>,
    /// Whether it can be used. Sandboxes start from ready ones only.
    #[schema(value_type = SnapshotStatus)]
    pub status: Word<SnapshotStatus>,
    /// Whether it is also on disk and survives a reboot.
    pub durable: bool,
    /// Whether sandboxes can be started from it now.
    pub bootable: bool,
    /// The operation that makes it, while its status is `writing`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation_id: Option<String>,
    /// The image at the root of its lineage.
    #[serde(default)]
    pub image: String,
    /// Guest RAM, in MiB.
    #[serde(default)]
    pub mem_size_mib: u64,
    /// Virtual CPUs.
    #[serde(default)]
    pub vcpus: u32,
    /// What guests see as their processor: `host` for all of it, or a level of x86-64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<CpuModel>)]
    pub cpu: Option<Word<CpuModel>>,
    /// How the branch was taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<BranchMode>)]
    pub mode: Option<Word<BranchMode>>,
    /// The pause window: from the pause request to the confirmed resume, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause_ms: Option<f64>,
    /// The same by the VMM's own clock, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_by_vmm_ms: Option<f64>,
    /// From the request to the usable snapshot, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_ms: Option<f64>,
    /// Milliseconds by phase of the branch.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub phases_ms: BTreeMap<String, f64>,
    /// Bytes of the pages that may have been written since the source's last branch, or since its
    /// start: they were looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub captured_bytes: Option<u64>,
    /// Bytes of those that differ from what the layers below hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dirty_bytes: Option<u64>,
    /// Bytes of those that were stored: pages of zeros are only noted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored_bytes: Option<u64>,
    /// Write faults of the guest that were served during the capture.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub faults: Option<u64>,
    /// Median time to serve such a fault, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault_service_p50_ms: Option<f64>,
    /// The longest time to serve such a fault, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault_service_max_ms: Option<f64>,
    /// The pause that a diff has, in milliseconds. In mode `diff` it is `pause_ms`; in mode `full`
    /// the part of it up to the last dirty page, with the resume: dirty pages are copied first.
    /// Absent in mode `live`, which copies nothing during the pause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diff_ms: Option<f64>,
    /// Bytes that a diff stores: the dirty pages without those of zeros. In modes `diff` and
    /// `full`, and in mode `live` when `measure_diff` asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diff_physical_bytes: Option<u64>,
    /// Bytes of the dirty pages, zeros included. Present as `diff_physical_bytes` is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diff_logical_bytes: Option<u64>,
    /// Something that the request asked for and did not get.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A snapshot and its place among others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotInfo {
    /// The snapshot.
    #[serde(flatten)]
    pub snapshot: Snapshot,
    /// How many layers a sandbox started from it maps.
    pub chain_depth: usize,
    /// The snapshots that it builds on, nearest first.
    pub ancestors: Vec<String>,
    /// Snapshots that build on it and sandboxes that were started from it.
    pub dependents: Vec<String>,
    /// Bytes of its own memory layer.
    pub memory_layer_bytes: u64,
}

/// Builds a template: boots an image, warms it and freezes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreateSnapshot {
    /// The tag of the snapshot to make.
    pub tag: String,
    /// Name of the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Reference of an OCI image, in place of `image`: `python:3.12-slim`, `HOST/NAME@sha256:HEX`,
    /// or `oci:DIR`, `oci-archive:FILE`, `docker-archive:FILE` with an absolute path on the
    /// daemon's host, and with `:TAG` if it has several; or `docker-daemon:NAME`. For admins alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Must be absent: a kernel belongs to an image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// Must be absent: a root file system belongs to an image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rootfs: Option<String>,
    /// Guest RAM, in MiB.
    #[serde(default = "mem_size_mib_default")]
    pub mem_size_mib: u64,
    /// Virtual CPUs.
    #[serde(default = "vcpus_default")]
    pub vcpus: u32,
    /// What guests see as their processor: `host`, which is all of it, or a level of x86-64. A
    /// snapshot of a level starts on other hosts that have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<CpuModel>)]
    pub cpu: Option<Word<CpuModel>>,
    /// Program and arguments, run in the guest before the freeze.
    #[serde(default)]
    pub warm: Vec<String>,
    /// Answer when the template is ready; else at once, with 202 and the snapshot that is being
    /// written.
    #[serde(default = "yes")]
    pub wait: bool,
    /// Lets all owners look at it and start from it, as `OWNER/TAG`. For admins alone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shared: bool,
    /// Neither push nor export it, nor what is branched from it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub private: bool,
}

const fn yes() -> bool {
    true
}

const fn mem_size_mib_default() -> u64 {
    MEM_SIZE_MIB_DEFAULT
}

const fn vcpus_default() -> u32 {
    1
}

/// What a template boots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckedImage {
    /// An image by its name.
    Named(String),
    /// An OCI image by its reference.
    Reference(String),
}

/// A request to build a template whose fields are in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckedCreateSnapshot {
    /// The tag.
    pub tag: TagName,
    /// What it boots.
    pub image: CheckedImage,
    /// Guest RAM and virtual CPUs.
    pub size: MachineSize,
    /// What guests see as their processor.
    pub cpu: CpuModel,
}

impl CreateSnapshot {
    /// Builds `tag` from `image` with default sizes and no warm-up.
    #[must_use]
    pub fn new(tag: impl Into<String>, image: impl Into<String>) -> Self {
        Self {
            tag: tag.into(),
            image: Some(image.into()),
            from: None,
            kernel: None,
            rootfs: None,
            mem_size_mib: mem_size_mib_default(),
            vcpus: vcpus_default(),
            cpu: None,
            warm: Vec::new(),
            wait: yes(),
            shared: false,
            private: false,
        }
    }

    /// Builds `tag` from an OCI image with default sizes and no warm-up.
    #[must_use]
    pub fn from_reference(tag: impl Into<String>, reference: impl Into<String>) -> Self {
        Self { image: None, from: Some(reference.into()), ..Self::new(tag, "") }
    }

    /// The parsed fields, when all are in order.
    ///
    /// # Errors
    /// Names the field that is not.
    pub fn check(&self) -> Result<CheckedCreateSnapshot, FieldError> {
        let tag = self.tag.parse().map_err(|error| FieldError::new("tag", error))?;
        for (field, value) in [("kernel", &self.kernel), ("rootfs", &self.rootfs)] {
            if value.is_some() {
                let problem = "belongs to an image here: name one with `image`";
                return Err(FieldError::new(field, problem));
            }
        }
        let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        let image = match (given(&self.image), given(&self.from)) {
            (Some(name), None) => CheckedImage::Named(name),
            (None, Some(reference)) => CheckedImage::Reference(reference),
            (Some(_), Some(_)) => {
                return Err(FieldError::new("from", "cannot be given together with `image`"));
            }
            (None, None) => return Err(FieldError::new("image", "is missing; or name `from`")),
        };
        let memory = ByteCount::new(self.mem_size_mib.saturating_mul(1 << 20));
        let size = MachineSize::new(memory, self.vcpus).map_err(|error| {
            let field = match error {
                MachineSizeError::Memory(_) => "mem_size_mib",
                MachineSizeError::Vcpus(_) => "vcpus",
            };
            FieldError::new(field, error)
        })?;
        if self.warm.first().is_some_and(String::is_empty) {
            return Err(FieldError::new("warm", "the program's name is empty"));
        }
        self.warm.iter().try_for_each(|text| no_zero_byte("warm", text))?;
        let cpu = match &self.cpu {
            Some(word) => word.as_str().parse().map_err(|error| FieldError::new("cpu", error))?,
            None => CpuModel::default(),
        };
        Ok(CheckedCreateSnapshot { tag, image, size, cpu })
    }
}

/// Makes a snapshot of the same state that depends on no other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CompactSnapshot {
    /// The tag of the snapshot to make.
    pub to: String,
    /// Answer when the snapshot is ready; else at once, with 202 and the snapshot that is being
    /// written.
    #[serde(default = "yes")]
    pub wait: bool,
}

impl CompactSnapshot {
    /// Makes the snapshot `to` and waits for it.
    #[must_use]
    pub fn new(to: impl Into<String>) -> Self {
        Self { to: to.into(), wait: yes() }
    }

    /// The tag, when it is one.
    ///
    /// # Errors
    /// Names the field.
    pub fn check(&self) -> Result<TagName, FieldError> {
        self.to.parse().map_err(|error| FieldError::new("to", error))
    }
}

/// One line of a streamed template build. The last is `snapshot` or `error`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum BuildEvent {
    /// A step has begun.
    Step(String),
    /// The template is ready.
    Snapshot(Box<Snapshot>),
    /// The build failed.
    Error(ErrorBody),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_field() {
        let field = |change: fn(&mut CreateSnapshot)| {
            let mut request = CreateSnapshot::new("py", "python");
            assert!(request.check().is_ok());
            change(&mut request);
            request.check().unwrap_err().field
        };
        assert_eq!(field(|r| r.tag = "a b".into()), "tag");
        assert_eq!(field(|r| r.image = None), "image");
        assert_eq!(field(|r| r.from = Some("python:3.12".into())), "from");
        assert_eq!(field(|r| r.kernel = Some("/k".into())), "kernel");
        assert_eq!(field(|r| r.rootfs = Some("/r".into())), "rootfs");
        assert_eq!(field(|r| r.mem_size_mib = 1), "mem_size_mib");
        assert_eq!(field(|r| r.mem_size_mib = (1 << 44) + 512), "mem_size_mib");
        assert_eq!(field(|r| r.vcpus = 0), "vcpus");
        assert_eq!(field(|r| r.warm = vec![String::new()]), "warm");
        assert_eq!(field(|r| r.warm = vec!["a".into(), "b\0".into()]), "warm");
    }

    #[test]
    fn a_compacted_snapshot_needs_a_tag_of_its_own() {
        let field = |to: &str| CompactSnapshot::new(to).check().map_err(|e| e.field);
        assert_eq!(field("a b"), Err("to"));
        assert_eq!(field("b").unwrap().plain(), Some("b"));
    }

    #[test]
    fn a_build_event_is_an_object_with_its_kind_as_the_only_key() {
        let json = serde_json::to_string(&BuildEvent::Step("boot".into())).unwrap();
        assert_eq!(json, r#"{"step":"boot"}"#);
    }
}
