//! References: the names of images, as Docker and Podman read them.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::Digest;

/// Where short names are looked up.
pub(crate) const DOCKER_HUB: &str = "docker.io";
/// Under which images without an owner are kept there.
const LIBRARY: &str = "library/";
const TAG_DEFAULT: &str = "latest";
const REFERENCE_BYTES_MAX: usize = 4096;
const TAG_BYTES_MAX: usize = 128;
const REPOSITORY_BYTES_MAX: usize = 255;
/// Of a host's name and of each of its parts (RFC 1035, section 2.3.4), as text.
const HOST_BYTES_MAX: usize = 253;
const HOST_LABEL_BYTES_MAX: usize = 63;

/// Where an image is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reference {
    /// In a registry.
    Registry(RegistryReference),
    /// `oci:DIR[:TAG]`: a directory in the OCI image layout.
    Layout {
        /// The directory.
        path: PathBuf,
        /// Which of its images; the only one when absent.
        tag: Option<String>,
    },
    /// `oci-archive:FILE[:TAG]`: such a directory as a tar file.
    OciArchive {
        /// The file.
        path: PathBuf,
        /// Which of its images; the only one when absent.
        tag: Option<String>,
    },
    /// `docker-archive:FILE[:NAME]`: what `docker save` writes.
    DockerArchive {
        /// The file.
        path: PathBuf,
        /// Which of its images; the only one when absent.
        tag: Option<String>,
    },
    /// `docker-daemon:NAME`: in the Docker daemon of this host.
    DockerDaemon {
        /// A name with a tag or a digest, or `sha256:` and the image's id.
        image: String,
    },
}

/// An image in a registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegistryReference {
    /// The registry's host, with a port if it is not the usual one.
    pub registry: String,
    /// The name there.
    pub repository: String,
    /// The tag; `latest` when the reference has neither a tag nor a digest.
    pub tag: Option<String>,
    /// The digest of the manifest; it wins over the tag.
    pub digest: Option<Digest>,
}

/// The given text is no reference.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not an image reference: {problem}")]
pub struct ReferenceError {
    text: String,
    problem: String,
}

impl Reference {
    /// Whether it names files or a daemon of this host.
    #[must_use]
    pub fn is_local(&self) -> bool {
        !matches!(self, Self::Registry(_))
    }

    /// Whether a path in it is absolute; the references of registries and of Docker have none.
    #[must_use]
    pub fn is_absolute(&self) -> bool {
        match self {
            Self::Registry(_) | Self::DockerDaemon { .. } => true,
            Self::Layout { path, .. }
            | Self::OciArchive { path, .. }
            | Self::DockerArchive { path, .. } => path.is_absolute(),
        }
    }

    /// The same with its path made absolute against `base`; a registry's stays as it is.
    #[must_use]
    pub fn below(mut self, base: &std::path::Path) -> Self {
        if let Self::Layout { path, .. }
        | Self::OciArchive { path, .. }
        | Self::DockerArchive { path, .. } = &mut self
        {
            *path = base.join(&*path);
        }
        self
    }
}

impl FromStr for Reference {
    type Err = ReferenceError;

    fn from_str(text: &str) -> Result<Self, ReferenceError> {
        let bad = |problem: &str| ReferenceError {
            text: text.chars().take(200).collect(),
            problem: problem.to_owned(),
        };
        if text.len() > REFERENCE_BYTES_MAX || text.chars().any(char::is_control) {
            return Err(bad("it is too long or has control characters"));
        }
        if let Some((transport, rest)) = text.split_once(':') {
            let local = matches!(transport, "oci" | "oci-archive" | "docker-archive");
            // A path with a colon cannot be told from a path with a tag, as elsewhere.
            let (path, tag) = match rest.split_once(':') {
                Some((path, tag)) => (PathBuf::from(path), Some(tag.to_owned())),
                None => (PathBuf::from(rest), None),
            };
            if local && path.as_os_str().is_empty() {
                return Err(bad("the path is missing"));
            }
            if local && tag.as_deref() == Some("") {
                return Err(bad("the tag is empty"));
            }
            match transport {
                "oci" => return Ok(Self::Layout { path, tag }),
                "oci-archive" => return Ok(Self::OciArchive { path, tag }),
                "docker-archive" => return Ok(Self::DockerArchive { path, tag }),
                "docker-daemon" => {
                    let image = in_docker(rest).map_err(|problem| bad(&problem))?;
                    return Ok(Self::DockerDaemon { image });
                }
                "containers-storage" | "dir" | "docker" => {
                    return Err(bad(
                        "this transport is not supported; name the image in its registry, or \
                         save it to a file and use docker-archive:FILE",
                    ));
                }
                _ => {}
            }
        }
        registry_reference(text).map(Self::Registry).map_err(|problem| bad(&problem))
    }
}

/// The name of an image as Docker on this host is asked for it.
fn in_docker(text: &str) -> Result<String, String> {
    if let Some(hex) = text.strip_prefix("sha256:") {
        let is_id = (12..=64).contains(&hex.len()) && hex.bytes().all(|b| b.is_ascii_hexdigit());
        return match is_id {
            true => Ok(text.to_owned()),
            false => Err("an id has 12 to 64 hexadecimal digits".to_owned()),
        };
    }
    // Docker keeps names as they were given; without a tag it would save all images of the name.
    let RegistryReference { tag, digest, .. } = registry_reference(text)?;
    let has_tag = text.rsplit('/').next().is_some_and(|last| last.contains(':'));
    Ok(match (tag, digest) {
        (Some(tag), None) if !has_tag => format!("{text}:{tag}"),
        _ => text.to_owned(),
    })
}

fn registry_reference(text: &str) -> Result<RegistryReference, String> {
    let (rest, digest) = match text.split_once('@') {
        Some((rest, digest)) => {
            (rest, Some(digest.parse::<Digest>().map_err(|error| error.to_string())?))
        }
        None => (text, None),
    };
    let (name, tag) = match rest.rsplit_once(':') {
        // A colon before a slash is that of a port.
        Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
        _ => (rest, None),
    };
    if let Some(tag) = tag
        && !is_tag(tag)
    {
        return Err(format!("`{tag}` is not a tag"));
    }
    // The first part is a host when it looks like one: this is Docker's rule.
    let (registry, repository) = match name.split_once('/') {
        Some((host, rest)) if host.contains(['.', ':']) || host == "localhost" => (host, rest),
        _ => (DOCKER_HUB, name),
    };
    if !is_host(registry) {
        return Err(format!("`{registry}` is not a host"));
    }
    let on_hub = matches!(registry, "docker.io" | "index.docker.io");
    let repository = if on_hub && !repository.contains('/') {
        format!("{LIBRARY}{repository}")
    } else {
        repository.to_owned()
    };
    if repository.len() > REPOSITORY_BYTES_MAX || !repository.split('/').all(is_component) {
        return Err(
            "a name consists of lower-case letters and digits, separated by `.`, `_`, `-` or `/`"
                .to_owned(),
        );
    }
    let registry = if on_hub { DOCKER_HUB } else { registry }.to_owned();
    let tag = tag.map(str::to_owned);
    let tag = tag.or_else(|| digest.is_none().then(|| TAG_DEFAULT.to_owned()));
    Ok(RegistryReference { registry, repository, tag, digest })
}

fn is_tag(tag: &str) -> bool {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
    (1..=TAG_BYTES_MAX).contains(&tag.len())
        && !tag.starts_with(['.', '-'])
        && tag.bytes().all(good)
}

fn is_host(host: &str) -> bool {
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, Some(port)),
        _ => (host, None),
    };
    let inner = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let good_name = match inner {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => name.len() <= HOST_BYTES_MAX && name.split('.').all(is_host_label),
    };
    // A number of Rust may have a sign.
    let is_port =
        |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok();
    good_name && port.is_none_or(is_port)
}

fn is_host_label(label: &str) -> bool {
    (1..=HOST_LABEL_BYTES_MAX).contains(&label.len())
        && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// `[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*`
fn is_component(part: &str) -> bool {
    let plain = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9');
    let bytes = part.as_bytes();
    let edges = bytes.first().zip(bytes.last()).is_some_and(|(a, z)| plain(*a) && plain(*z));
    let separators = part.split(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
    let good =
        |run: &str| matches!(run, "" | "." | "_" | "__") || run.bytes().all(|byte| byte == b'-');
    edges && separators.into_iter().all(good)
}

impl fmt::Display for RegistryReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.repository)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (transport, path, tag) = match self {
            Self::Registry(reference) => return reference.fmt(f),
            Self::Layout { path, tag } => ("oci", path, tag),
            Self::OciArchive { path, tag } => ("oci-archive", path, tag),
            Self::DockerArchive { path, tag } => ("docker-archive", path, tag),
            Self::DockerDaemon { image } => return write!(f, "docker-daemon:{image}"),
        };
        write!(f, "{transport}:{}", path.display())?;
        tag.iter().try_for_each(|tag| write!(f, ":{tag}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEX: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn names_are_completed_as_docker_does() {
        let pinned = format!("a/b@sha256:{HEX}");
        let pinned_full = format!("docker.io/a/b@sha256:{HEX}");
        for (short, full) in [
            ("python", "docker.io/library/python:latest"),
            ("python:3.12-slim", "docker.io/library/python:3.12-slim"),
            ("index.docker.io/python", "docker.io/library/python:latest"),
            ("me/app:v1", "docker.io/me/app:v1"),
            ("localhost/app", "localhost/app:latest"),
            ("localhost:5000/app", "localhost:5000/app:latest"),
            ("registry.example/team/x:tag", "registry.example/team/x:tag"),
            ("[::1]:5000/x", "[::1]:5000/x:latest"),
            ("a--b/c__d.e:T_1", "docker.io/a--b/c__d.e:T_1"),
            (&pinned, &pinned_full),
            ("oci:/tmp/x", "oci:/tmp/x"),
            ("oci:x:tag", "oci:x:tag"),
            ("docker-archive:/a.tar:img:v1", "docker-archive:/a.tar:img:v1"),
            ("docker-daemon:app", "docker-daemon:app:latest"),
            ("docker-daemon:team/app:v1", "docker-daemon:team/app:v1"),
            ("docker-daemon:localhost:5000/app", "docker-daemon:localhost:5000/app:latest"),
            ("docker-daemon:sha256:0123456789ab", "docker-daemon:sha256:0123456789ab"),
        ] {
            let reference: Reference = short.parse().unwrap();
            assert_eq!(reference.to_string(), full);
            assert_eq!(full.parse::<Reference>().unwrap(), reference, "{full}");
        }
    }

    #[test]
    fn the_longest_reference_can_be_read_again_when_it_is_completed() {
        let host = format!("{}{}", format!("{}.", "a".repeat(63)).repeat(3), "b".repeat(61));
        let longest = format!("{host}:65535/{}", "c".repeat(255));
        let reference: Reference = longest.parse().unwrap();
        assert_eq!(reference.to_string().parse::<Reference>().unwrap(), reference);
    }

    #[test]
    fn what_is_no_reference_is_refused() {
        let short = format!("a@sha256:{}", &HEX[1..]);
        let long = "a".repeat(300);
        let long_host = format!("{}x/a", "a.".repeat(127));
        let long_label = format!("{}.b/a", "a".repeat(64));
        for bad in [
            "",
            "/",
            "Python",
            "a:",
            "a:-x",
            "a b",
            "a//b",
            "../a",
            "a/../b",
            "a@sha256:",
            &short,
            "oci:",
            "oci:x:",
            "docker-daemon:",
            "docker-daemon:../x",
            "docker-daemon:sha256:x",
            "docker:x",
            "x.y:99999/a",
            "a\n",
            "a/-b",
            "a___b",
            &long,
            &long_host,
            &long_label,
            "x.y:+5/a",
            "oci::tag",
            "http://a.b/c",
            "[::1/x",
            "user@host.x/a",
        ] {
            assert!(bad.parse::<Reference>().is_err(), "{bad}");
        }
    }
}
