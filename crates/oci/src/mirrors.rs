//! Mirrors: where else the images of a registry are, as this host's files say.
//!
//! `registries.conf`, which Podman, Buildah and Skopeo read, has them for any registry. If no entry
//! there is for Docker Hub, `registry-mirrors` of Docker's `daemon.json` are its mirrors.
//!
//! Guarantees: mirrors come in the order of the file, and the registry itself last; what a host has
//! blocked is asked for nowhere; a file that cannot be read is an error, as it may block something.
//!
//! Does not do: complete short names; speak plain HTTP, or go without certificates, because a file
//! calls a place insecure.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::reference::DOCKER_HUB;
use crate::{OciError, Reference, RegistryReference, folders};

/// What the files of a host say.
#[derive(Debug, Default)]
pub(crate) struct Mirrors {
    /// Of entries for the same prefix, the last one holds.
    entries: Vec<Entry>,
    /// Hosts that have what Docker Hub has, by Docker's configuration.
    of_docker_hub: Vec<String>,
}

/// Where an image is asked for, in turn.
#[derive(Debug)]
pub(crate) struct Places {
    pub(crate) mirrors: Vec<RegistryReference>,
    /// Where it comes from in the end.
    pub(crate) registry: RegistryReference,
}

#[derive(Debug, Default, Deserialize)]
struct Registries {
    #[serde(default)]
    registry: Vec<Entry>,
}

/// What holds for all references that begin with `prefix`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct Entry {
    /// `location` if it is empty. `*.example.com` is for all hosts below that one.
    prefix: String,
    /// What the prefix is replaced with.
    location: String,
    blocked: bool,
    mirror_by_digest_only: bool,
    mirror: Vec<Mirror>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Mirror {
    location: String,
    #[serde(default)]
    pull_from_mirror: Kind,
}

/// Which references a mirror is asked for.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Kind {
    #[default]
    All,
    DigestOnly,
    TagOnly,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct OfDocker {
    #[serde(default)]
    registry_mirrors: Vec<String>,
}

impl Mirrors {
    /// What this host's files say to this user.
    pub(crate) fn of_host() -> Result<Self, OciError> {
        if let Some(file) = std::env::var_os("CONTAINERS_REGISTRIES_CONF") {
            return Self::of_file(Path::new(&file));
        }
        let system = PathBuf::from("/etc");
        let user = folders::of_configuration();
        let first_of = |name: &str| {
            let places = user.iter().chain([&system]).map(|folder| folder.join(name));
            places.into_iter().find(|file| file.exists())
        };
        let mut files: Vec<_> = first_of("containers/registries.conf").into_iter().collect();
        for folder in [&system].into_iter().chain(&user) {
            files.extend(parts_in(&folder.join("containers/registries.conf.d"))?);
        }
        let mut found = Self::default();
        for file in files {
            found.entries.extend(Self::of_file(&file)?.entries);
        }
        if let Some(file) = first_of("docker/daemon.json") {
            found.of_docker_hub = of_docker_hub(&file)?;
        }
        Ok(found)
    }

    /// What one `registries.conf` says.
    pub(crate) fn of_file(file: &Path) -> Result<Self, OciError> {
        let text = std::fs::read_to_string(file).map_err(OciError::file(file))?;
        let found: Registries = toml::from_str(&text)
            .map_err(|error| OciError::damaged(file.display().to_string(), error))?;
        Ok(Self { entries: found.registry, of_docker_hub: Vec::new() })
    }

    /// Where an image is asked for.
    pub(crate) fn places(&self, image: &RegistryReference) -> Result<Places, OciError> {
        let name = image.to_string();
        let found = self.entries.iter().filter(|entry| entry.covered(&name).is_some());
        // The last of several that are equal.
        let Some(entry) = found.max_by_key(|entry| entry.prefix().len()) else {
            let rest = name.strip_prefix(DOCKER_HUB);
            let mirrors =
                rest.iter().flat_map(|rest| self.of_docker_hub.iter().map(|it| at(it, rest)));
            return Ok(Places {
                mirrors: mirrors.collect::<Result<_, _>>()?,
                registry: image.clone(),
            });
        };
        if entry.blocked {
            return Err(OciError::Blocked { image: name, prefix: entry.prefix().to_owned() });
        }
        let rest = &name[entry.covered(&name).unwrap_or_default()..];
        let mirrors = entry.mirror.iter().filter(|mirror| entry.asks(mirror, image));
        let mirrors = mirrors.map(|mirror| at(&mirror.location, rest)).collect::<Result<_, _>>()?;
        let registry = match entry.location.as_str() {
            "" => image.clone(),
            location => at(location, rest)?,
        };
        Ok(Places { mirrors, registry })
    }
}

impl Entry {
    fn prefix(&self) -> &str {
        if self.prefix.is_empty() { &self.location } else { &self.prefix }
    }

    /// How many bytes at the beginning of a reference this entry is for.
    fn covered(&self, name: &str) -> Option<usize> {
        let prefix = self.prefix();
        if let Some(domain) = prefix.strip_prefix('*') {
            let (host, _) = name.split_once('/')?;
            return host.ends_with(domain).then_some(host.len());
        }
        let rest = name.strip_prefix(prefix).filter(|_| !prefix.is_empty())?;
        rest.starts_with(['/', ':', '@']).then_some(prefix.len())
    }

    fn asks(&self, mirror: &Mirror, image: &RegistryReference) -> bool {
        match (mirror.pull_from_mirror, self.mirror_by_digest_only) {
            (Kind::All, false) => true,
            (Kind::DigestOnly, _) | (Kind::All, true) => image.digest.is_some(),
            (Kind::TagOnly, _) => image.digest.is_none(),
        }
    }
}

/// The image at another place; `rest` is what follows there.
fn at(location: &str, rest: &str) -> Result<RegistryReference, OciError> {
    let name = format!("{location}{rest}");
    match name.parse() {
        // A place without a host would be one on Docker Hub.
        Ok(Reference::Registry(found)) if name.starts_with(&format!("{}/", found.registry)) => {
            Ok(found)
        }
        _ => Err(OciError::damaged(format!("the mirror `{location}`"), "it is no host, or path")),
    }
}

/// The files of a folder that are parts of a configuration, in the order of their names.
fn parts_in(folder: &Path) -> Result<Vec<PathBuf>, OciError> {
    let entries = match folder.read_dir() {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        entries => entries.map_err(OciError::file(folder))?,
    };
    let mut files = Vec::new();
    for entry in entries {
        files.push(entry.map_err(OciError::file(folder))?.path());
    }
    files.retain(|file| file.extension().is_some_and(|extension| extension == "conf"));
    files.sort_unstable();
    Ok(files)
}

/// The hosts that Docker's configuration calls mirrors of Docker Hub. It has them as URLs.
fn of_docker_hub(file: &Path) -> Result<Vec<String>, OciError> {
    let text = std::fs::read(file).map_err(OciError::file(file))?;
    let found: OfDocker = serde_json::from_slice(&text)
        .map_err(|error| OciError::damaged(file.display().to_string(), error))?;
    let host = |url: &String| {
        let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
        rest.unwrap_or(url).trim_end_matches('/').to_owned()
    };
    Ok(found.registry_mirrors.iter().map(host).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"
        unqualified-search-registries = ["docker.io"]
        [[registry]]
        prefix = "docker.io/library"
        location = "inside.example/hub"
        [[registry.mirror]]
        location = "near.example:5000/all/hub"
        insecure = true
        [[registry.mirror]]
        location = "pinned.example"
        pull-from-mirror = "digest-only"
        [[registry]]
        location = "docker.io/library/evil"
        blocked = true
        [[registry]]
        prefix = "*.cloud.example"
        mirror-by-digest-only = true
        mirror = [{ location = "cloud.near.example" }]
        [[registry]]
        location = "twice.example"
        [[registry]]
        location = "twice.example"
        mirror = [{ location = "second.example" }]
    "#;

    fn of(text: &str) -> Result<Mirrors, OciError> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("registries.conf");
        std::fs::write(&file, text).unwrap();
        Mirrors::of_file(&file)
    }

    fn places(mirrors: &Mirrors, image: &str) -> Result<Vec<String>, OciError> {
        let Ok(Reference::Registry(image)) = image.parse() else { panic!("{image}") };
        let Places { mut mirrors, registry } = mirrors.places(&image)?;
        mirrors.push(registry);
        Ok(mirrors.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn an_image_is_asked_for_at_its_mirrors_and_then_at_its_location() {
        let mirrors = of(FILE).unwrap();
        let digest = format!("@{}", crate::Digest::of(b"x"));
        let pinned = |places: &[&str]| -> Vec<String> {
            places.iter().map(|place| format!("{place}{digest}")).collect()
        };
        for (image, found) in [
            (
                "python:3",
                &["near.example:5000/all/hub/python:3", "inside.example/hub/python:3"][..],
            ),
            ("team/app:v1", &["docker.io/team/app:v1"]),
            ("docker.io/library2/x:v1", &["docker.io/library2/x:v1"]),
            ("a.cloud.example/x:v1", &["a.cloud.example/x:v1"]),
            ("cloud.example/x:v1", &["cloud.example/x:v1"]),
            ("twice.example/x:v1", &["second.example/x:v1", "twice.example/x:v1"]),
        ] {
            assert_eq!(places(&mirrors, image).unwrap(), found, "{image}");
        }
        let found = places(&mirrors, &format!("python{digest}")).unwrap();
        let [near, origin] = ["near.example:5000/all/hub/python", "inside.example/hub/python"];
        assert_eq!(found, pinned(&[near, "pinned.example/python", origin]));
        let found = places(&mirrors, &format!("a.cloud.example/x{digest}")).unwrap();
        assert_eq!(found, pinned(&["cloud.near.example/x", "a.cloud.example/x"]));
    }

    #[test]
    fn what_is_blocked_is_asked_for_nowhere() {
        let mirrors = of(FILE).unwrap();
        for image in ["evil:v1", "docker.io/library/evil:v2"] {
            let error = places(&mirrors, image).unwrap_err();
            assert!(matches!(error, OciError::Blocked { .. }), "{error}");
        }
        assert_eq!(places(&mirrors, "evil2:v1").unwrap().len(), 2, "another name");
    }

    #[test]
    fn files_that_say_nothing_clear_are_refused() {
        for bad in [
            "[[registry]]\nlocation = 1",
            "[[registry]]\nlocation = \"a.example\"\n[[registry.mirror]]\nlocation = \"near\"",
            "[[registry]]\nlocation = \"a.example\"\n[[registry.mirror]]\nlocation = \"http://x.y\"",
        ] {
            let found = of(bad).and_then(|mirrors| places(&mirrors, "a.example/x"));
            assert!(matches!(found, Err(OciError::Damaged { .. })), "{bad}: {found:?}");
        }
    }

    #[test]
    fn mirrors_of_docker_are_for_docker_hub_alone() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("daemon.json");
        let text =
            r#"{"debug": true, "registry-mirrors": ["https://a.example/", "http://[::1]:5"]}"#;
        std::fs::write(&file, text).unwrap();
        let of_docker_hub = of_docker_hub(&file).unwrap();
        let mut mirrors = Mirrors { entries: Vec::new(), of_docker_hub };
        let all = ["a.example/library/x:1", "[::1]:5/library/x:1", "docker.io/library/x:1"];
        assert_eq!(places(&mirrors, "x:1").unwrap(), all);
        assert_eq!(places(&mirrors, "b.example/x:1").unwrap(), ["b.example/x:1"]);
        mirrors.entries = of("[[registry]]\nlocation = \"docker.io\"").unwrap().entries;
        assert_eq!(places(&mirrors, "x:1").unwrap(), all[2..]);
    }

    #[test]
    fn parts_of_a_configuration_come_in_the_order_of_their_names() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["b.conf", "a.conf", "c.conf.bak"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let found = parts_in(folder.path()).unwrap();
        assert_eq!(found, ["a.conf", "b.conf"].map(|name| folder.path().join(name)));
        assert!(parts_in(&folder.path().join("none")).unwrap().is_empty());
    }
}
