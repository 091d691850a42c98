//! The documents that describe an image: index, manifest and configuration.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::limit::{BLOB_BYTES_MAX, DOCUMENT_BYTES_MAX, LAYERS_MAX};
use crate::{Digest, OciError};

/// The machine that images must be for.
const OS: &str = "linux";
const ARCHITECTURE: &str = "amd64";

/// In an index of a layout: the tag.
pub(crate) const REFERENCE_NAME: &str = "org.opencontainers.image.ref.name";

/// Kinds of documents that are asked for.
pub(crate) const ACCEPTED: [&str; 4] = [
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.docker.distribution.manifest.v2+json",
];

/// Names a blob or a document.
#[derive(Debug, Clone)]
pub(crate) struct Descriptor {
    pub(crate) digest: Digest,
    pub(crate) size: u64,
    pub(crate) annotations: BTreeMap<String, String>,
    platform: Option<Platform>,
}

#[derive(Debug, Clone, Deserialize)]
struct Platform {
    #[serde(default)]
    os: String,
    #[serde(default)]
    architecture: String,
}

/// What a reference leads to.
#[derive(Debug)]
pub(crate) enum Document {
    Index(Vec<Descriptor>),
    Manifest(Manifest),
}

#[derive(Debug)]
pub(crate) struct Manifest {
    pub(crate) config: Descriptor,
    pub(crate) layers: Vec<Descriptor>,
}

/// As it is written, before anything is checked.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Raw {
    #[serde(default)]
    schema_version: u32,
    config: Option<RawDescriptor>,
    layers: Option<Vec<RawDescriptor>>,
    manifests: Option<Vec<RawDescriptor>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawDescriptor {
    digest: String,
    size: u64,
    #[serde(default)]
    media_type: String,
    platform: Option<Platform>,
    annotations: Option<BTreeMap<String, String>>,
}

impl RawDescriptor {
    fn check(self, what: &str, size_max: u64) -> Result<Descriptor, OciError> {
        let digest = self.digest.parse().map_err(|error| OciError::damaged(what, error))?;
        if self.size > size_max {
            let what = format!("{digest} of {what}");
            return Err(OciError::TooLarge { what, max: format!("{size_max} bytes") });
        }
        let annotations = self.annotations.unwrap_or_default();
        Ok(Descriptor { digest, size: self.size, annotations, platform: self.platform })
    }
}

/// Understands a manifest or an index. `what` names it in errors.
pub(crate) fn document(bytes: &[u8], what: &str) -> Result<Document, OciError> {
    let raw: Raw = serde_json::from_slice(bytes).map_err(|error| OciError::damaged(what, error))?;
    if raw.schema_version == 1 {
        let what = format!("{what}, an image of schema 1,");
        return Err(OciError::Unsupported {
            what,
            remedy: "push it again with a newer tool".into(),
        });
    }
    if let Some(manifests) = raw.manifests {
        let checked = manifests.into_iter().map(|raw| raw.check(what, DOCUMENT_BYTES_MAX));
        return Ok(Document::Index(checked.collect::<Result<_, _>>()?));
    }
    let (Some(config), Some(layers)) = (raw.config, raw.layers) else {
        return Err(OciError::damaged(what, "it is neither a manifest nor an index"));
    };
    if layers.len() > LAYERS_MAX {
        let max = format!("{LAYERS_MAX} layers");
        return Err(OciError::TooLarge { what: what.to_owned(), max });
    }
    if let Some(layer) = layers.iter().find(|layer| layer.media_type.contains("encrypted")) {
        return Err(OciError::Unsupported {
            what: format!("{} of {what}, which is encrypted,", layer.digest),
            remedy: "use an image that is not".to_owned(),
        });
    }
    let layers = layers.into_iter().map(|raw| raw.check(what, BLOB_BYTES_MAX));
    Ok(Document::Manifest(Manifest {
        config: config.check(what, DOCUMENT_BYTES_MAX)?,
        layers: layers.collect::<Result<_, _>>()?,
    }))
}

/// The part of an index that is for our machine.
pub(crate) fn for_this_machine(index: &[Descriptor], image: &str) -> Result<Descriptor, OciError> {
    let ours = |platform: &Platform| platform.os == OS && platform.architecture == ARCHITECTURE;
    let fits = |found: &&Descriptor| found.platform.as_ref().is_some_and(ours);
    if let Some(found) = index.iter().find(fits) {
        return Ok(found.clone());
    }
    // Layouts often name no platform.
    if let [only @ Descriptor { platform: None, .. }] = index {
        return Ok(only.clone());
    }
    let named = index.iter().filter_map(|found| found.platform.as_ref());
    let mut platforms: Vec<String> =
        named.map(|platform| format!("{}/{}", platform.os, platform.architecture)).collect();
    // Attestations.
    platforms.retain(|name| name != "unknown/unknown");
    platforms.dedup();
    let platforms = if platforms.is_empty() { "nothing".into() } else { platforms.join(", ") };
    Err(OciError::Platform { image: image.to_owned(), platforms })
}

/// The configuration of an image, as far as it matters here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageConfig {
    /// What programs of the image get.
    pub program: ProgramConfig,
    /// The digest of each layer, unpacked; the lowest first.
    pub(crate) layers: Vec<Digest>,
}

/// What programs of an image get unless somebody says otherwise. The names are those of the OCI
/// image specification.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct ProgramConfig {
    /// Variables, `NAME=VALUE`.
    #[serde(default, deserialize_with = "or_default")]
    pub env: Vec<String>,
    /// The program that is run, or the beginning of its arguments.
    #[serde(default, deserialize_with = "or_default")]
    pub entrypoint: Vec<String>,
    /// Its arguments.
    #[serde(default, deserialize_with = "or_default")]
    pub cmd: Vec<String>,
    /// Where it is run.
    #[serde(default, deserialize_with = "or_default")]
    pub working_dir: String,
    /// As whom: `USER[:GROUP]`, names or numbers.
    #[serde(default, deserialize_with = "or_default")]
    pub user: String,
    /// The signal that ends it.
    #[serde(default, deserialize_with = "or_default")]
    pub stop_signal: String,
    /// What its maker says about the image.
    #[serde(default, deserialize_with = "or_default")]
    pub labels: BTreeMap<String, String>,
}

/// Many tools write `null` for what is absent.
fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[derive(Deserialize)]
struct RawConfig {
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    os: String,
    #[serde(default, deserialize_with = "or_default")]
    config: ProgramConfig,
    rootfs: RawRoot,
}

#[derive(Deserialize)]
struct RawRoot {
    #[serde(default, deserialize_with = "or_default")]
    diff_ids: Vec<String>,
}

/// Understands a configuration.
pub(crate) fn configuration(bytes: &[u8], image: &str) -> Result<ImageConfig, OciError> {
    let what = format!("the configuration of {image}");
    let raw: RawConfig =
        serde_json::from_slice(bytes).map_err(|error| OciError::damaged(&what, error))?;
    if (raw.os.as_str(), raw.architecture.as_str()) != (OS, ARCHITECTURE) {
        let platforms = format!("{}/{}", raw.os, raw.architecture);
        return Err(OciError::Platform { image: image.to_owned(), platforms });
    }
    let program = &raw.config;
    let texts = program.env.iter().chain(&program.entrypoint).chain(&program.cmd);
    if texts.chain([&program.working_dir, &program.user]).any(|text| text.contains('\0')) {
        return Err(OciError::damaged(&what, "a text in it has a zero byte"));
    }
    let digests = raw.rootfs.diff_ids.iter().map(|text| text.parse());
    let layers = digests.collect::<Result<Vec<Digest>, _>>();
    Ok(ImageConfig {
        program: raw.config,
        layers: layers.map_err(|error| OciError::damaged(&what, error))?,
    })
}

/// Documents as they may come: they are understood or refused.
#[cfg(feature = "fuzzing")]
pub fn fuzz_documents(input: &[u8]) {
    if let Ok(Document::Manifest(manifest)) = document(input, "it") {
        assert!(manifest.layers.len() <= LAYERS_MAX);
        assert!(manifest.layers.iter().all(|layer| layer.size <= BLOB_BYTES_MAX));
    }
    if let Ok(Document::Index(index)) = document(input, "it") {
        let _found = for_this_machine(&index, "it");
    }
    if let Ok(config) = configuration(input, "it") {
        assert!(config.program.env.iter().all(|text| !text.contains('\0')));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(of: &str) -> String {
        Digest::of(of.as_bytes()).to_string()
    }

    fn index(platforms: &[(&str, &str)]) -> Vec<Descriptor> {
        let manifests: Vec<_> = platforms
            .iter()
            .map(|(os, architecture)| {
                serde_json::json!({"digest": digest(architecture), "size": 1,
                    "platform": {"os": os, "architecture": architecture}})
            })
            .collect();
        let text = serde_json::json!({"schemaVersion": 2, "manifests": manifests}).to_string();
        match document(text.as_bytes(), "x").unwrap() {
            Document::Index(index) => index,
            Document::Manifest(_) => panic!("a manifest"),
        }
    }

    #[test]
    fn the_part_for_this_machine_is_chosen_and_its_absence_names_what_there_is() {
        let found = index(&[("linux", "arm64"), ("linux", "amd64"), ("unknown", "unknown")]);
        let chosen = for_this_machine(&found, "x").unwrap();
        assert_eq!(chosen.digest.to_string(), digest("amd64"));
        let foreign = index(&[("linux", "arm64"), ("windows", "amd64"), ("unknown", "unknown")]);
        let error = for_this_machine(&foreign, "x").unwrap_err().to_string();
        assert!(error.ends_with("it is for: linux/arm64, windows/amd64"), "{error}");
    }

    #[test]
    fn a_manifest_with_too_much_is_refused() {
        let layer = |size: u64| serde_json::json!({"digest": digest("l"), "size": size});
        let manifest = |layers: Vec<serde_json::Value>| {
            let text =
                serde_json::json!({"schemaVersion": 2, "config": layer(2), "layers": layers});
            document(text.to_string().as_bytes(), "x")
        };
        assert!(manifest(vec![layer(1); LAYERS_MAX]).is_ok());
        assert!(matches!(manifest(vec![layer(1); LAYERS_MAX + 1]), Err(OciError::TooLarge { .. })));
        let large = manifest(vec![layer(BLOB_BYTES_MAX + 1)]);
        assert!(matches!(large, Err(OciError::TooLarge { .. })));
        for bad in ["{}", "[]", r#"{"schemaVersion":1,"fsLayers":[]}"#] {
            assert!(document(bad.as_bytes(), "x").is_err(), "{bad}");
        }
    }

    #[test]
    fn what_a_configuration_leaves_out_or_calls_null_is_empty() {
        let read = |config: &str| {
            let text = format!(
                r#"{{"architecture":"amd64","os":"linux","config":{config},
                "rootfs":{{"type":"layers","diff_ids":["{}"]}}}}"#,
                digest("l")
            );
            configuration(text.as_bytes(), "x").unwrap().program
        };
        assert_eq!(read(r#"{"Env":null,"Cmd":null,"User":null}"#), ProgramConfig::default());
        assert_eq!(read("null"), ProgramConfig::default());
        let full = read(r#"{"Env":["A=b"],"Entrypoint":["/e"],"WorkingDir":"/w","User":"u"}"#);
        assert_eq!((full.env.len(), full.working_dir.as_str()), (1, "/w"));
        let arm = br#"{"architecture":"arm64","os":"linux","rootfs":{"diff_ids":[]}}"#;
        assert!(matches!(configuration(arm, "x"), Err(OciError::Platform { .. })));
    }

    /// As images of Docker Hub say it, in the form that BuildKit writes.
    #[test]
    fn configurations_of_well_known_images_are_read_whole() {
        let path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
        let text = |config: serde_json::Value| {
            serde_json::json!({
                "architecture": "amd64", "os": "linux", "config": config, "history": [],
                "created": "2026-01-01T00:00:00Z",
                "rootfs": {"type": "layers", "diff_ids": [digest("l")]},
            })
            .to_string()
        };
        let python = serde_json::json!({
            "Env": [path, "GPG_KEY=7169", "PYTHON_VERSION=3.12.8"],
            "Cmd": ["python3"], "ArgsEscaped": true, "OnBuild": null,
        });
        let postgres = serde_json::json!({
            "Env": [path, "PGDATA=/var/lib/postgresql/data"], "StopSignal": "SIGINT",
            "Entrypoint": ["docker-entrypoint.sh"], "Cmd": ["postgres"],
            "ExposedPorts": {"5432/tcp": {}}, "Volumes": {"/var/lib/postgresql/data": {}},
        });
        let redis = serde_json::json!({
            "Env": [path], "WorkingDir": "/data", "Volumes": {"/data": {}},
            "Entrypoint": ["docker-entrypoint.sh"], "Cmd": ["redis-server"],
        });
        let nginx = serde_json::json!({
            "Env": [path, "NGINX_VERSION=1.27.3"], "StopSignal": "SIGQUIT",
            "Entrypoint": ["/docker-entrypoint.sh"], "Cmd": ["nginx", "-g", "daemon off;"],
            "Labels": {"maintainer": "somebody"},
        });
        for (config, variables, directory, signal, labels) in [
            (python, 3, "", "", 0),
            (postgres, 2, "", "SIGINT", 0),
            (redis, 1, "/data", "", 0),
            (nginx, 2, "", "SIGQUIT", 1),
        ] {
            let read = configuration(text(config.clone()).as_bytes(), "x").unwrap().program;
            let found = (read.env.len(), read.working_dir.as_str(), read.stop_signal.as_str());
            assert_eq!(found, (variables, directory, signal), "{config}");
            assert_eq!((read.labels.len(), read.env[0].as_str()), (labels, path));
            let words = |name: &str| config.get(name).cloned().unwrap_or(serde_json::json!([]));
            assert_eq!(serde_json::json!(read.entrypoint), words("Entrypoint"));
            assert_eq!(serde_json::json!(read.cmd), words("Cmd"));
        }
    }
}
