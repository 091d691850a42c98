//! Blobs and manifests into a registry and out of it, when it is good and when it is not.

use forkd_oci::{Digest, OciError, Reference, Repository};
use forkd_testkit::{Asked, Fault, Registry};

const KIND: &str = "application/vnd.oci.image.manifest.v1+json";

fn content(seed: u8) -> Vec<u8> {
    let mut state = u32::from(seed) + 1;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    };
    (0..100_000).map(|_| next()).collect()
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.unwrap().block_on(work)
}

fn repository(
    registry: &Registry,
    open: fn(&forkd_oci::RegistryReference) -> Result<Repository, OciError>,
) -> Repository {
    match registry.reference("team/warm:v1").parse().unwrap() {
        Reference::Registry(reference) => open(&reference).unwrap(),
        other => panic!("{other:?}"),
    }
}

fn upload(registry: &Registry, content: &[u8]) -> Result<(), OciError> {
    let repository = repository(registry, Repository::to_push);
    block_on(repository.upload(&Digest::of(content), content))
}

fn download(registry: &Registry, digest: &Digest, size: usize) -> Result<Vec<u8>, OciError> {
    let repository = repository(registry, Repository::to_pull);
    block_on(repository.blob(digest, size as u64))
}

/// Bytes of bodies that were sent with this method.
fn sent(registry: &Registry, method: &str) -> Vec<usize> {
    let all = registry.asked().into_iter().filter(|asked| asked.method == method);
    all.map(|asked| asked.bytes).collect()
}

#[test]
fn what_is_pushed_is_pulled_and_is_known_to_be_there() {
    let (registry, blob) = (Registry::good(), content(1));
    let repository = repository(&registry, Repository::to_push);
    let digest = Digest::of(&blob);
    block_on(async {
        assert!(!repository.has(&digest).await.unwrap());
        repository.upload(&digest, &blob).await.unwrap();
        assert!(repository.has(&digest).await.unwrap());
        let manifest = format!("{{\"layers\":[{{\"digest\":\"{digest}\"}}]}}").into_bytes();
        repository.put_manifest(KIND, manifest.clone()).await.unwrap();
        assert_eq!(repository.manifest().await.unwrap(), manifest);
        assert_eq!(repository.blob(&digest, blob.len() as u64).await.unwrap(), blob);
    });
    assert_eq!(sent(&registry, "PUT")[0], blob.len(), "in one request");
}

#[test]
fn an_upload_that_breaks_off_goes_on_with_the_rest() {
    let put = |asked: &Asked| asked.method == "PUT" && asked.bytes > 0;
    let registry = Registry::start(None, move |asked| match put(asked) {
        true => Fault::CutBody(60_000),
        false => Fault::None,
    });
    upload(&registry, &content(1)).unwrap();
    assert_eq!(sent(&registry, "PATCH"), [40_000], "what was received is not sent again");
    assert_eq!(registry.bytes(), 100_000);
}

#[test]
fn an_upload_that_the_registry_has_forgotten_begins_anew() {
    let registry = Registry::start(None, |asked| match asked.method.as_str() {
        "PUT" if asked.before < 4 => Fault::CutBody(60_000),
        "GET" => Fault::Answer("404 Not Found", ""),
        _ => Fault::None,
    });
    upload(&registry, &content(1)).unwrap();
    assert_eq!((sent(&registry, "PUT"), registry.bytes()), (vec![100_000; 2], 100_000));
}

#[test]
fn a_busy_registry_is_asked_again_when_it_says() {
    let registry = Registry::start(None, |asked| match (asked.method.as_str(), asked.before) {
        ("POST", 0 | 1) => Fault::Answer("429 Too Many Requests", "Retry-After: 0\r\n"),
        ("PUT", 0..4) => Fault::Answer("503 Service Unavailable", "Retry-After: 0\r\n"),
        _ => Fault::None,
    });
    upload(&registry, &content(1)).unwrap();
    assert_eq!(registry.bytes(), 100_000);
}

#[test]
fn a_registry_that_never_takes_or_understands_is_given_up() {
    type Bad = fn(&Asked) -> Fault;
    let bad: [(&str, Bad); 5] = [
        ("cut", |asked| if asked.bytes > 0 { Fault::CutBody(0) } else { Fault::None }),
        ("nonsense", |_| Fault::Nonsense),
        ("no place", |_| Fault::Answer("202 Accepted", "")),
        ("place elsewhere", |_| {
            Fault::Answer("202 Accepted", "Location: http://registry.example/x\r\n")
        }),
        ("full", |asked| match asked.bytes {
            0 => Fault::None,
            _ => Fault::Answer("413 Payload Too Large", ""),
        }),
    ];
    for (name, faults) in bad {
        let registry = Registry::start(None, faults);
        upload(&registry, &content(1)).unwrap_err();
        assert!(registry.asked().len() < 30, "{name}: {} requests", registry.asked().len());
        assert_eq!(registry.bytes(), 0, "{name}");
    }
}

#[test]
fn a_blob_that_breaks_off_goes_on_and_a_damaged_one_never_arrives() {
    let (source, blob) = (Registry::good(), content(1));
    upload(&source, &blob).unwrap();
    let digest = Digest::of(&blob);
    let get = |asked: &Asked| asked.method == "GET";
    let cut = source.copy(move |asked| match get(asked) {
        true => Fault::CutAnswer(40_000),
        false => Fault::None,
    });
    assert_eq!(download(&cut, &digest, blob.len()).unwrap(), blob);
    let ranges: Vec<_> = cut.asked().into_iter().filter_map(|asked| asked.range).collect();
    assert_eq!(ranges, ["bytes=40000-", "bytes=80000-"]);
    let damaged = source.copy(|_| Fault::Flip);
    let error = download(&damaged, &digest, blob.len()).unwrap_err();
    assert!(matches!(error, OciError::Digest { .. }), "{error}");
    let longer = download(&source, &digest, blob.len() - 1).unwrap_err();
    assert!(matches!(longer, OciError::TooLarge { .. }), "{longer}");
    let shorter = download(&source, &digest, blob.len() + 1).unwrap_err();
    assert!(matches!(shorter, OciError::Unreachable { .. }), "{shorter}");
}
