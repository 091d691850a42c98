//! Mirrors that are good, that lie, that break off, and that have nothing.

use std::fs;
use std::path::Path;

use forkd_oci::{Cache, Digest, OciError, Pulled};

use crate::image::{Nobody, pull};
use crate::registry::{Manner, Registry, layout};

/// Where nobody listens.
const CLOSED: &str = "127.0.0.1:1";

/// Pulls `team/app` of `registry`, which has these mirrors.
fn pull_by(
    mirrors: &[&str],
    registry: &str,
    version: &str,
    cache: &Path,
) -> Result<Pulled, OciError> {
    let file = cache.join("registries.conf");
    let mirrors = mirrors.iter().map(|mirror| format!("{{ location = \"{mirror}\" }}"));
    let mirrors = mirrors.collect::<Vec<_>>().join(", ");
    let entry = format!("[[registry]]\nlocation = \"{registry}\"\nmirror = [{mirrors}]\n");
    fs::write(&file, entry).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let cache = Cache::new(cache.to_owned()).with_registries_of(file);
    let reference = format!("{registry}/team/app{version}").parse()?;
    runtime.block_on(cache.pull(&reference, &Nobody))
}

#[test]
fn a_mirror_that_has_the_image_is_the_only_one_asked() {
    let layout = layout();
    let [mirror, registry] = [(); 2].map(|()| Registry::of(&layout, Manner::Good, true));
    let cache = tempfile::tempdir().unwrap();
    let image = pull_by(&[&mirror.address], &registry.address, ":v1", cache.path()).unwrap();
    assert!(image.name.starts_with(&registry.address), "its name stays: {}", image.name);
    assert_eq!((mirror.asked("/token?"), registry.asked("")), (1, 0));
}

#[test]
fn mirrors_that_fail_or_lie_are_passed_over_and_digests_hold_whoever_answers() {
    let layout = layout();
    let expected = {
        let registry = Registry::of(&layout, Manner::Good, false);
        pull(&registry.reference(), tempfile::tempdir().unwrap().path()).unwrap().id
    };
    for manner in [Manner::Corrupt, Manner::Endless, Manner::Cut(1000)] {
        let mirror = Registry::of(&layout, manner, false);
        let registry = Registry::of(&layout, Manner::Good, false);
        let cache = tempfile::tempdir().unwrap();
        let mirrors = [CLOSED, &mirror.address];
        let image = pull_by(&mirrors, &registry.address, ":v1", cache.path()).unwrap();
        assert_eq!(image.id, expected);
        assert!(mirror.asked("/blobs/") > 0 && registry.asked("/blobs/") > 0);
        for layer in layout.manifest["layers"].as_array().unwrap() {
            let digest: Digest = layer["digest"].as_str().unwrap().parse().unwrap();
            let bytes = fs::read(cache.path().join("blobs").join(digest.hex())).unwrap();
            assert_eq!(Digest::of(&bytes), digest);
        }
        let goes_on = registry.asked("range: bytes=4000-");
        assert_eq!(goes_on, usize::from(matches!(manner, Manner::Cut(_))), "where it broke off");
    }
}

#[test]
fn what_no_place_has_is_told_of_the_registry() {
    let layout = layout();
    let [mirror, registry] = [(); 2].map(|()| Registry::of(&layout, Manner::Good, false));
    let cache = tempfile::tempdir().unwrap();
    let version = format!("@{}", Digest::of(b"other"));
    let error = pull_by(&[&mirror.address], &registry.address, &version, cache.path());
    let told = format!("there is no image {}/team/app{version}", registry.address);
    assert_eq!(error.unwrap_err().to_string(), told);
    assert_eq!((mirror.asked("/manifests/"), registry.asked("/manifests/")), (1, 1));
}
