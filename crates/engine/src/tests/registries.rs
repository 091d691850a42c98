//! Snapshots through a registry: out of one engine and into another.

use forkd_testkit::{Fault, Registry};

use super::fixture::{Fixture, request, tag};
use crate::{
    BranchRequest, Caller, EngineError, ImportRequest, OperationKind, Role, Signer, Trust,
};

fn known(name: &str) -> ImportRequest {
    ImportRequest { tag: Some(tag(name)), trust: Trust::Known }
}

/// A lab with the branch `b`, whose memory has `word`, in a registry as `team/b:v1`.
async fn pushed_branch(word: u64) -> (Fixture, Registry) {
    let (lab, registry) = (Fixture::new().await, Registry::good());
    let source = lab.child().await;
    lab.write(&source.id, word);
    lab.engine.branch(&source.id, request("b")).await.unwrap();
    lab.until("it is durable", || lab.engine.snapshot(&tag("b")).unwrap().durable).await;
    lab.engine.push_snapshot(&tag("b"), &registry.reference("team/b:v1")).await.unwrap();
    (lab, registry)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_branch_goes_through_a_registry_to_an_engine_that_trusts_the_first() {
    let (here, registry) = pushed_branch(42).await;
    let there = Fixture::new().await;
    let before = there.files();
    let reference = registry.reference("team/b:v1");
    let asked = registry.asked().len();
    let refused = there.engine.pull_snapshot(&reference, known("b")).await.unwrap_err();
    assert!(matches!(refused, EngineError::KeyNotTrusted { .. }), "{refused}");
    assert_eq!(registry.asked().len() - asked, 3, "manifests and signature, and no memory");
    assert_eq!(there.files(), before);
    let key = here.engine.signing_key().await.unwrap();
    there.engine.trust_key("here".to_owned(), key).await.unwrap();
    there.engine.pull_snapshot(&reference, known("b")).await.unwrap();
    let child = there.engine.fork(&tag("b"), 1).await.unwrap().remove(0);
    assert_eq!(there.word(&child.id), 42);
    let kinds: Vec<_> = there.engine.operations().iter().map(|found| found.kind).collect();
    assert!(kinds.contains(&OperationKind::Pull), "{kinds:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_registry_has_is_not_sent_again() {
    let (lab, registry) = (Fixture::new().await, Registry::good());
    let push = async |name: &str, to: &str| {
        lab.engine.push_snapshot(&tag(name), &registry.reference(to)).await.unwrap()
    };
    let base = push("t", "team/t:v1").await;
    assert_eq!(base.bytes_sent, base.bytes);
    assert_eq!(usize::try_from(base.bytes_sent).unwrap(), registry.bytes());
    let source = lab.child().await;
    lab.write(&source.id, 7);
    lab.engine.branch(&source.id, request("b")).await.unwrap();
    let before = registry.bytes();
    let branch = push("b", "team/t:v2").await;
    assert_eq!(usize::try_from(branch.bytes_sent).unwrap(), registry.bytes() - before);
    assert!(branch.bytes_sent < branch.bytes, "{branch:?}");
    let again = push("b", "team/t:v3").await;
    assert_eq!((again.bytes, again.bytes_sent), (branch.bytes, 0), "not even the manifest");
}

/// Faults that a number decides: about one request in `one_in` goes wrong.
fn faults_of(seed: usize, one_in: usize) -> impl Fn(&forkd_testkit::Asked) -> Fault {
    move |asked| {
        let mut number = seed.wrapping_mul(0x9e37_79b9).wrapping_add(asked.before * 7919);
        number = (number ^ (number >> 13)).wrapping_mul(0x5bd1_e995) >> 7;
        if !number.is_multiple_of(one_in) {
            return Fault::None;
        }
        match (number / one_in) % 6 {
            0 | 1 => Fault::CutAnswer(number % 300),
            2 => Fault::Flip,
            3 => Fault::Nonsense,
            4 => Fault::Answer("404 Not Found", ""),
            _ => Fault::Answer("429 Too Many Requests", "Retry-After: 0\r\n"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pull_from_a_bad_registry_is_whole_or_leaves_nothing() {
    let (lab, good) = pushed_branch(9).await;
    let (before, snapshots) = (lab.files(), lab.engine.snapshots().len());
    let mut whole = 0;
    for seed in 0..12 {
        let bad = good.copy(faults_of(seed, 2 + seed % 6));
        match lab.engine.pull_snapshot(&bad.reference("team/b:v1"), known("c")).await {
            Err(error) => {
                assert!(error.to_string().len() > 15, "{seed}: {error}");
                assert!(lab.engine.snapshot(&tag("c")).is_err(), "{seed}: the tag is free");
            }
            Ok(_) => {
                whole += 1;
                let child = lab.engine.fork(&tag("c"), 1).await.unwrap().remove(0);
                assert_eq!(lab.word(&child.id), 9, "{seed}");
                lab.engine.remove_sandbox(&child.id).await.unwrap();
                lab.until("it is durable", || lab.engine.snapshot(&tag("c")).unwrap().durable)
                    .await;
                lab.engine.delete_snapshot(&tag("c"), crate::DeletePolicy::Refuse).await.unwrap();
            }
        }
        lab.until("nothing is left", || lab.files() == before).await;
        assert_eq!(lab.engine.snapshots().len(), snapshots, "{seed}");
    }
    assert!((1..12).contains(&whole), "some pulls get over what goes wrong: {whole}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_push_that_fails_leaves_no_manifest() {
    let lab = Fixture::new().await;
    let full = Registry::start(None, |asked| match asked.bytes {
        0 => Fault::None,
        _ if asked.before < 12 => Fault::None,
        _ => Fault::Answer("403 Forbidden", ""),
    });
    let pushed = lab.engine.push_snapshot(&tag("t"), &full.reference("team/t:v1")).await;
    let error = pushed.unwrap_err();
    assert!(matches!(error, EngineError::RegistryFailed { .. }), "{error}");
    assert_eq!(full.manifests(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn registries_are_for_admins_and_named_in_full() {
    let (lab, registry) = (Fixture::new().await, Registry::good());
    let reference = registry.reference("team/t:v1");
    let user = lab.engine.seen_by(Caller::new("ann".parse().unwrap(), Role::User));
    let refused = user.pull_snapshot(&reference, known("x")).await.unwrap_err();
    assert!(matches!(refused, EngineError::AdminOnly { .. }), "{refused}");
    let own = ImportRequest { tag: None, trust: Trust::Once };
    for bad in ["warm", "team/warm:v1", "oci:/tmp/x", "a b"] {
        let refused = lab.engine.push_snapshot(&tag("t"), bad).await.unwrap_err();
        assert!(matches!(refused, EngineError::BadRequest { field: "reference", .. }), "{refused}");
        let refused = lab.engine.pull_snapshot(bad, own.clone()).await.unwrap_err();
        assert!(matches!(refused, EngineError::BadRequest { field: "reference", .. }), "{refused}");
    }
    assert!(registry.asked().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_registry_has_is_told_before_any_memory_is_fetched() {
    let (here, registry) = pushed_branch(42).await;
    let there = Fixture::new().await;
    let reference = registry.reference("team/b:v1");
    let asked = registry.asked().len();
    let found = there.engine.hub_snapshot(&reference).await.unwrap();
    assert_eq!(registry.asked().len() - asked, 3, "manifests and signature, and no memory");
    assert!(found.reference.starts_with(&format!("{reference}@sha256:")), "{}", found.reference);
    assert_eq!((found.manifest.tag.as_str(), &found.signer), ("b", &Signer::Unknown));
    assert_eq!(found.unfit, None);
    let in_it = usize::try_from(found.bytes).unwrap();
    assert_eq!(in_it, registry.bytes(), "all blobs, and the manifest that forkd reads");
    let key = here.engine.signing_key().await.unwrap();
    assert_eq!(found.key, key);
    there.engine.trust_key("here".to_owned(), key).await.unwrap();
    let found = there.engine.hub_snapshot(&reference).await.unwrap();
    assert_eq!(found.signer, Signer::Trusted("here".to_owned()));
    assert_eq!(here.engine.hub_snapshot(&reference).await.unwrap().signer, Signer::Own);
    let flipped = registry.copy(|asked| match asked.path.contains("/blobs/") {
        true => Fault::Flip,
        false => Fault::None,
    });
    let refused = there.engine.hub_snapshot(&flipped.reference("team/b:v1")).await.unwrap_err();
    assert!(matches!(refused, EngineError::RegistryFailed { .. }), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_search_goes_through_all_pages_and_finds_snapshots_by_the_name_of_their_repository() {
    let (lab, registry) = pushed_branch(1).await;
    for name in ["team/a:v1", "team/a:v2", "team/a:v3", "other/c:v1"] {
        lab.engine.push_snapshot(&tag("b"), &registry.reference(name)).await.unwrap();
    }
    let host = registry.reference("");
    let host = host.trim_end_matches('/');
    let search = async |term| {
        let found = lab.engine.hub_search(host, term).await.unwrap();
        assert!(found.is_complete);
        let names = found.snapshots.into_iter().map(|entry| {
            assert!(entry.bytes > 0);
            entry.reference.trim_start_matches(host).trim_start_matches('/').to_owned()
        });
        names.collect::<Vec<_>>()
    };
    let all = ["other/c:v1", "team/a:v1", "team/a:v2", "team/a:v3", "team/b:v1"];
    assert_eq!(search("").await, all);
    assert_eq!(search("team/").await, all[1..]);
    assert_eq!(search("nothing").await, [""; 0]);
    let unlisted = registry.copy(|asked| match asked.path.contains("_catalog") {
        true => Fault::Answer("404 Not Found", ""),
        false => Fault::None,
    });
    let host = unlisted.reference("");
    for bad in [host.trim_end_matches('/'), "no host", "oci:/tmp", ""] {
        let refused = lab.engine.hub_search(bad, "").await.unwrap_err();
        assert!(matches!(refused, EngineError::BadRequest { field: "registry", .. }), "{refused}");
    }
    let user = lab.engine.seen_by(Caller::new("ann".parse().unwrap(), Role::User));
    let refused = user.hub_search(host.trim_end_matches('/'), "").await.unwrap_err();
    assert!(matches!(refused, EngineError::AdminOnly { .. }), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_private_stays_here_and_so_does_what_is_branched_or_compacted_from_it() {
    let (lab, registry) = (Fixture::new().await, Registry::good());
    let source = lab.child().await;
    let order = BranchRequest { private: true, children: 1, ..request("private") };
    let child = lab.engine.branch(&source.id, order).await.unwrap().children.remove(0).unwrap();
    lab.branch(&child.id, "below").await.unwrap();
    lab.engine.compact_snapshot(&tag("below"), &tag("alone")).await.unwrap();
    for name in ["private", "below", "alone"] {
        assert!(lab.engine.snapshot(&tag(name)).unwrap().private, "{name}");
        let pushed = lab.engine.push_snapshot(&tag(name), &registry.reference("team/t:v1")).await;
        let exported = lab.engine.export_snapshot(&tag(name)).await.err();
        for refused in [pushed.unwrap_err(), exported.unwrap()] {
            assert!(matches!(refused, EngineError::SnapshotPrivate { .. }), "{name}: {refused}");
        }
    }
    assert!(registry.asked().is_empty());
    lab.branch(&source.id, "open").await.unwrap();
    lab.engine.push_snapshot(&tag("open"), &registry.reference("team/t:v1")).await.unwrap();
}
