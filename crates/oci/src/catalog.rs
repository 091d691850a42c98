//! What a registry has: the names of its repositories, their tags, and what each tag names.
//!
//! Guarantees: no list and no page of one is longer than its limit; a page leads to no other host;
//! what is no name of a repository or a tag is passed over.
//!
//! Does not do: work everywhere. Many registries, Docker Hub among them, list nothing: the error
//! says so.

use std::time::Duration;

use reqwest::header::LINK;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::limit::{LIST_PAGES_MAX, LISTED_NAMES_MAX};
use crate::reference::{Reference, RegistryReference};
use crate::registry::{Registry, Rights};
use crate::{Digest, OciError};

/// For one page, or one manifest.
const DEADLINE: Duration = Duration::from_secs(60);

/// A registry as a whole.
pub struct Catalog {
    registry: Registry,
    host: String,
}

/// Names, and whether there are no others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    /// In the order of the registry.
    pub names: Vec<String>,
    /// There are no more.
    pub are_all: bool,
}

#[derive(Deserialize)]
struct Repositories {
    repositories: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct Tags {
    tags: Option<Vec<String>>,
}

impl Catalog {
    /// Of the registry at `host`, with a port if it is not the usual one.
    ///
    /// # Errors
    /// [`OciError::Reference`] when it is no name of a host, [`OciError::Unreachable`] when
    /// certificates cannot be read.
    pub fn of(host: &str) -> Result<Self, OciError> {
        // A reference with a repository of any name: what it says of the host holds.
        let reference = in_registry(host, "any/name", "latest").ok_or_else(|| {
            let what = format!("`{}` as a registry", crate::tree::shown(host.as_bytes()));
            let remedy = "name its host, with a port if it has one of its own".to_owned();
            OciError::Unsupported { what, remedy }
        })?;
        let registry = Registry::new(&reference, Rights::Pull)?;
        Ok(Self { registry, host: host.to_owned() })
    }

    /// The names of its repositories.
    ///
    /// # Errors
    /// See [`OciError`]; [`OciError::Unsupported`] of a registry that does not list them.
    pub async fn repositories(&self) -> Result<Names, OciError> {
        let what = format!("the repositories of {}", self.host);
        let listed = self.pages(&what, "/v2/_catalog?n=1000", |page: Repositories| {
            page.repositories.unwrap_or_default()
        });
        match listed.await {
            Err(OciError::NotFound(_)) => Err(OciError::Unsupported {
                what: format!("a list of {what}"),
                remedy: "that registry gives none; name what you look for in full".to_owned(),
            }),
            listed => listed,
        }
    }

    /// The tags of a repository.
    ///
    /// # Errors
    /// See [`OciError`].
    pub async fn tags(&self, repository: &str) -> Result<Names, OciError> {
        let what = format!("the tags of {}/{repository}", self.host);
        let path = format!("/v2/{repository}/tags/list?n=1000");
        self.pages(&what, &path, |page: Tags| page.tags.unwrap_or_default()).await
    }

    /// The reference of a tag. None if the registry's names are none.
    #[must_use]
    pub fn reference(&self, repository: &str, tag: &str) -> Option<RegistryReference> {
        in_registry(&self.host, repository, tag)
    }

    /// The manifest that a tag names, and its digest.
    ///
    /// # Errors
    /// See [`OciError`].
    pub async fn manifest(
        &self,
        reference: &RegistryReference,
    ) -> Result<(Digest, Vec<u8>), OciError> {
        let tag = reference.tag.as_deref().unwrap_or_default();
        let path = format!("/v2/{}/manifests/{tag}", reference.repository);
        let what = format!("the manifest of {reference}");
        let bytes = self.registry.within(DEADLINE, self.registry.bytes(&what, &path)).await?;
        Ok((Digest::of(&bytes), bytes))
    }

    /// All pages of a list, one after the other.
    async fn pages<T: DeserializeOwned>(
        &self,
        what: &str,
        path: &str,
        names_of: fn(T) -> Vec<String>,
    ) -> Result<Names, OciError> {
        let mut url = self.registry.url(path)?;
        let mut names = Vec::new();
        for _ in 0..LIST_PAGES_MAX {
            let request = self.registry.client.get(url.clone());
            let page = self.registry.within(DEADLINE, self.registry.page(what, request));
            let (headers, bytes) = page.await?;
            let page: T =
                serde_json::from_slice(&bytes).map_err(|error| OciError::damaged(what, error))?;
            names.extend(names_of(page));
            let link = headers.get(LINK).and_then(|value| value.to_str().ok());
            let next = link.and_then(next_of).and_then(|next| url.join(next).ok());
            let next = next.filter(|next| next.origin() == url.origin());
            if names.len() > LISTED_NAMES_MAX {
                names.truncate(LISTED_NAMES_MAX);
                return Ok(Names { names, are_all: false });
            }
            match next {
                Some(next) => url = next,
                None => return Ok(Names { names, are_all: true }),
            }
        }
        Ok(Names { names, are_all: false })
    }
}

/// A reference whose registry, repository and tag are these, if they are names of such.
fn in_registry(host: &str, repository: &str, tag: &str) -> Option<RegistryReference> {
    let found = match format!("{host}/{repository}:{tag}").parse() {
        Ok(Reference::Registry(found)) => found,
        _ => return None,
    };
    let same = found.registry == host && found.repository == repository;
    (same && found.tag.as_deref() == Some(tag) && found.digest.is_none()).then_some(found)
}

/// Where the next page is: `<ADDRESS>; rel="next"` (RFC 8288).
fn next_of(link: &str) -> Option<&str> {
    let (address, rest) = link.strip_prefix('<')?.split_once('>')?;
    rest.to_ascii_lowercase().replace(' ', "").contains("rel=\"next\"").then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_repositories_and_tags_become_references() {
        let shown = |host, repository, tag| {
            in_registry(host, repository, tag).map(|reference| reference.to_string())
        };
        let good = Some("registry.example:5000/team/a:v1".to_owned());
        assert_eq!(shown("registry.example:5000", "team/a", "v1"), good);
        for (host, repository, tag) in [
            ("registry.example", "../a", "v1"),
            ("registry.example", "a", "v1@sha256:00"),
            ("registry.example", "a:b", "v1"),
            ("registry.example", "A", "v1"),
            ("registry.example", "", "v1"),
            ("registry.example/x", "a", "v1"),
            ("oci:/tmp", "a", "v1"),
            ("", "a", "v1"),
            ("plain", "a", "v1"),
        ] {
            assert_eq!(shown(host, repository, tag), None, "{host} {repository} {tag}");
        }
    }

    #[test]
    fn the_next_page_is_where_its_link_says() {
        assert_eq!(
            next_of("</v2/_catalog?last=b&n=2>; rel=\"next\""),
            Some("/v2/_catalog?last=b&n=2")
        );
        assert_eq!(next_of("<x>; Rel = \"next\""), Some("x"));
        assert_eq!(next_of("<x>; rel=\"prev\""), None);
        assert_eq!(next_of("x; rel=\"next\""), None);
    }
}
