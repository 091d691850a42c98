//! Snapshots as files: out of one engine and into another.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use forkd_types::{Accelerator, ByteCount, CpuModel, OperationState, Owner, SnapshotStatus, limit};
use forkd_vmm::qemu;
use tokio::task::JoinHandle;

use super::fixture::{Fixture, Wishes, request, tag, template};
use crate::{
    Caller, Engine, EngineError, ImportRequest, Limits, NoProgress, OperationKind, OwnerLimits,
    Role, TemplateRequest, Trust,
};

async fn export(engine: &Engine, name: &str) -> Vec<u8> {
    let mut exported = engine.export_snapshot(&tag(name)).await.unwrap();
    let mut file = Vec::new();
    while let Some(piece) = exported.pieces.recv().await {
        file.extend(piece.unwrap());
    }
    assert_eq!(file.len() as u64, exported.bytes);
    file
}

fn wanted(name: &str) -> ImportRequest {
    ImportRequest { tag: Some(tag(name)), trust: Trust::Known }
}

async fn import(engine: &Engine, name: &str, file: &[u8]) -> Result<(), EngineError> {
    engine.import_snapshot(wanted(name), io::Cursor::new(file.to_vec())).await.map(drop)
}

/// A lab with the branch `b`, whose memory has `word`, and its file.
async fn exported_branch(word: u64) -> (Fixture, Vec<u8>) {
    let lab = Fixture::new().await;
    let source = lab.child().await;
    lab.write(&source.id, word);
    lab.engine.branch(&source.id, request("b")).await.unwrap();
    let file = export(&lab.engine, "b").await;
    (lab, file)
}

/// Another lab, which has nothing of this one's.
async fn that_trusts(here: &Fixture) -> Fixture {
    let there = Fixture::new().await;
    let key = here.engine.signing_key().await.unwrap();
    there.engine.trust_key("here".to_owned(), key).await.unwrap();
    there.until("it is durable", || there.engine.snapshot(&tag("t")).unwrap().durable).await;
    there
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_branch_goes_to_another_engine_that_trusts_the_first() {
    let (here, file) = exported_branch(42).await;
    let there = Fixture::new().await;
    let before = there.files();
    let refused = import(&there.engine, "b", &file).await.unwrap_err();
    let key = here.engine.signing_key().await.unwrap();
    assert!(matches!(refused, EngineError::KeyNotTrusted { key: found } if found == key));
    there.engine.trust_key("here".to_owned(), key).await.unwrap();
    import(&there.engine, "b", &file).await.unwrap();
    let child = there.engine.fork(&tag("b"), 1).await.unwrap().remove(0);
    assert_eq!(there.word(&child.id), 42);
    let info = there.engine.snapshot(&tag("b")).unwrap();
    assert_eq!((info.chain_depth, info.parent_tag), (2, None));
    there.until("it is durable", || there.engine.snapshot(&tag("b")).unwrap().durable).await;
    there.engine.remove_sandbox(&child.id).await.unwrap();
    there.engine.delete_snapshot(&tag("b"), crate::DeletePolicy::Refuse).await.unwrap();
    there.until("its files are gone", || there.files() == before).await;
    there.engine.remove_key("here".to_owned()).await.unwrap();
    assert!(import(&there.engine, "b", &file).await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_export_comes_back_under_another_tag_without_further_words() {
    let (lab, file) = exported_branch(7).await;
    let taken = import(&lab.engine, "b", &file).await.unwrap_err();
    assert!(matches!(taken, EngineError::TagTaken { .. }), "{taken}");
    import(&lab.engine, "c", &file).await.unwrap();
    let again = export(&lab.engine, "c").await;
    import(&lab.engine, "d", &again).await.unwrap();
    let child = lab.engine.fork(&tag("d"), 1).await.unwrap().remove(0);
    assert_eq!(lab.word(&child.id), 7);
    let named = ImportRequest { tag: None, ..wanted("x") };
    let taken = lab.engine.import_snapshot(named, io::Cursor::new(again)).await.unwrap_err();
    assert!(matches!(taken, EngineError::TagTaken { tag: name, .. } if name == tag("c")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn layers_that_are_here_already_are_shared_by_a_snapshot_that_comes() {
    let (here, file) = exported_branch(42).await;
    let there = that_trusts(&here).await;
    let key = there.engine.signing_key().await.unwrap();
    here.engine.trust_key("there".to_owned(), key).await.unwrap();
    import(&there.engine, "b", &file).await.unwrap();
    let source = there.engine.fork(&tag("b"), 1).await.unwrap().remove(0);
    there.write(&source.id, 43);
    there.engine.branch(&source.id, request("c")).await.unwrap();
    let above = export(&there.engine, "c").await;
    let before = here.files();
    import(&here.engine, "c", &above).await.unwrap();
    assert_eq!(here.files().minus(&before).layers.len(), 1, "the layer that is new in `c`");
    let before = here.files();
    import(&here.engine, "d", &above).await.unwrap();
    assert_eq!(here.files(), before, "all of it is here");
    // What is shared stays for as long as one of them lists it.
    for gone in ["b", "c"] {
        here.engine.delete_snapshot(&tag(gone), crate::DeletePolicy::Force).await.unwrap();
    }
    let child = here.engine.fork(&tag("d"), 1).await.unwrap().remove(0);
    assert_eq!(here.word(&child.id), 43);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_damaged_snapshot_would_have_spared_comes_again() {
    let (lab, file) = exported_branch(42).await;
    lab.until("it is durable", || lab.engine.snapshot(&tag("b")).unwrap().durable).await;
    for directory in [&lab.config.hot_dir, &lab.config.state_dir] {
        for entry in std::fs::read_dir(directory.join("layers")).unwrap() {
            std::fs::remove_file(entry.unwrap().path()).unwrap();
        }
    }
    import(&lab.engine, "c", &file).await.unwrap();
    assert_eq!(lab.engine.snapshot(&tag("b")).unwrap().status, SnapshotStatus::Failed);
    let child = lab.engine.fork(&tag("c"), 1).await.unwrap().remove(0);
    assert_eq!(lab.word(&child.id), 42);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_does_not_fit_or_is_damaged_is_refused_and_leaves_nothing() {
    let (lab, file) = exported_branch(1).await;
    lab.until("it is durable", || lab.engine.snapshot(&tag("b")).unwrap().durable).await;
    let (before, snapshots) = (lab.files(), lab.engine.snapshots().len());
    for cut in [0, 600, file.len() / 2, file.len() - 1] {
        let error = import(&lab.engine, "c", &file[..cut]).await.unwrap_err();
        assert!(matches!(error, EngineError::ArtifactRefused { .. }), "{cut}: {error}");
        assert!(error.to_string().contains("ends within"), "{cut}: {error}");
    }
    let mut flipped = file.clone();
    let at = flipped.len() - 3000;
    flipped[at] ^= 1;
    let error = import(&lab.engine, "c", &flipped).await.unwrap_err();
    assert!(matches!(error, EngineError::ArtifactRefused { .. }), "{error}");
    assert_eq!((lab.files(), lab.engine.snapshots().len()), (before, snapshots));
    let image = lab.config.image_dir.join("plain/image.json");
    let text = std::fs::read_to_string(&image).unwrap();
    std::fs::write(&image, text.replace("\"h\"", "\"other\"")).unwrap();
    let error = import(&lab.engine, "c", &file).await.unwrap_err();
    assert!(matches!(error, EngineError::ArtifactUnfit { .. }), "{error}");
    assert!(error.to_string().contains("another build of the image `plain`"), "{error}");
    let export = lab.engine.export_snapshot(&tag("b")).await.unwrap_err();
    assert!(matches!(export, EngineError::SnapshotDamaged { .. }), "{export}");
}

/// Gives what it has, then waits until it may say that this was not all.
struct Held {
    first: io::Cursor<Vec<u8>>,
    then: std::sync::mpsc::Receiver<()>,
}

impl Read for Held {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.first.read(buffer)? {
            0 => {
                self.then.recv().ok();
                Err(io::Error::other("broken off"))
            }
            count => Ok(count),
        }
    }
}

/// An import as `c` that comes to its last bytes and waits there, and what breaks it off.
fn import_held(lab: &Fixture, file: &[u8]) -> (Sender<()>, JoinHandle<Result<(), EngineError>>) {
    let (break_off, then) = channel();
    let first = io::Cursor::new(file[..file.len() - 100].to_vec());
    let engine = lab.engine.clone();
    let import =
        async move { engine.import_snapshot(wanted("c"), Held { first, then }).await.map(drop) };
    (break_off, tokio::spawn(import))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_import_under_way_is_an_operation_and_leaves_nothing_when_it_breaks_off() {
    let (here, file) = exported_branch(1).await;
    let lab = that_trusts(&here).await;
    let before = lab.files();
    let (break_off, import) = import_held(&lab, &file);
    let operation = || {
        let mut all = lab.engine.operations();
        all.retain(|operation| operation.kind == OperationKind::Import);
        all.pop()
    };
    lab.until("it is under way", || operation().is_some_and(|o| o.progress.is_some())).await;
    lab.until("some of it is there", || lab.files() != before).await;
    let writing = lab.engine.snapshot(&tag("c")).unwrap();
    assert_eq!(writing.status, SnapshotStatus::Writing);
    assert_eq!(writing.operation, operation().map(|operation| operation.id));
    break_off.send(()).unwrap();
    let error = import.await.unwrap().unwrap_err();
    assert!(matches!(error, EngineError::ArtifactRefused { .. }), "{error}");
    assert!(lab.engine.snapshot(&tag("c")).is_err(), "the tag is free");
    assert_eq!(lab.files(), before);
    assert_eq!(operation().unwrap().state, OperationState::Failed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_half_import_is_removed_by_the_next_daemon() {
    let (here, file) = exported_branch(1).await;
    let mut lab = that_trusts(&here).await;
    let before = lab.files();
    let (break_off, import) = import_held(&lab, &file);
    let half = || lab.engine.snapshot(&tag("c")).is_ok() && lab.files() != before;
    lab.until("it is half done", half).await;
    // As if it had been killed: the first engine does nothing more until the next one is there.
    lab.next_engine().await;
    let found = lab.engine.snapshot(&tag("c")).unwrap();
    assert_eq!(found.status, SnapshotStatus::Failed);
    assert_eq!(lab.files(), before, "what was half written is gone");
    import_again(&lab, &file).await;
    break_off.send(()).unwrap();
    import.await.unwrap().unwrap_err();
}

async fn import_again(lab: &Fixture, file: &[u8]) {
    import(&lab.engine, "d", file).await.unwrap();
    lab.engine.fork(&tag("d"), 1).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_export_waits_for_its_turn_and_can_be_cancelled() {
    let (lab, _) = exported_branch(1).await;
    let turns = u32::try_from(limit::ARTIFACTS_AT_ONCE).unwrap();
    let busy = lab.engine.snapshots.exporting.acquire_many(turns).await.unwrap();
    let engine = lab.engine.clone();
    let waiting = tokio::spawn(async move { engine.export_snapshot(&tag("b")).await });
    let running = || {
        let mut all = lab.engine.operations();
        all.retain(|it| it.kind == OperationKind::Export && it.state == OperationState::Running);
        all.pop()
    };
    lab.until("it waits", || running().is_some()).await;
    lab.engine.cancel_operation(&running().unwrap().id).unwrap();
    let error = waiting.await.unwrap().unwrap_err();
    assert!(matches!(error, EngineError::Cancelled { .. }), "{error}");
    drop(busy);
    assert!(!export(&lab.engine, "b").await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_user_imports_is_its_own_and_trust_is_for_admins() {
    let lab = Fixture::new().await;
    let file = export(&lab.engine, "t").await;
    let user = |name: &str| {
        let owner: Owner = name.parse().unwrap();
        lab.engine.seen_by(Caller::new(owner, Role::User))
    };
    let (ann, bob) = (user("ann"), user("bob"));
    let own = ImportRequest { tag: None, trust: Trust::Known };
    let read = || io::Cursor::new(file.clone());
    let imported = ann.import_snapshot(own.clone(), read()).await.unwrap();
    assert_eq!(imported.tag.to_string(), "ann/t");
    assert!(!imported.shared && bob.snapshot(&imported.tag).is_err());
    let others = ImportRequest { tag: Some(imported.tag.clone()), ..own.clone() };
    let refused = bob.import_snapshot(others, read()).await.unwrap_err();
    assert!(matches!(refused, EngineError::BadRequest { field: "tag", .. }), "{refused}");
    let once = ImportRequest { trust: Trust::Once, ..own.clone() };
    let refused = bob.import_snapshot(once, read()).await.unwrap_err();
    assert!(matches!(refused, EngineError::AdminOnly { .. }), "{refused}");
    let key = lab.engine.signing_key().await.unwrap();
    let refused = bob.trust_key("me".to_owned(), key).await.unwrap_err();
    assert!(matches!(refused, EngineError::AdminOnly { .. }), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_import_counts_for_its_owner() {
    let (_, file) = exported_branch(1).await;
    // Room for the template while it is made, and not for as much again beside it.
    let each_owner = OwnerLimits { disk: Some(ByteCount::from_mib(64)), ..OwnerLimits::default() };
    let limits = Limits { each_owner, ..Limits::default() };
    let lab = Fixture::with(Wishes { limits, ..Wishes::default() }).await;
    let once = ImportRequest { trust: Trust::Once, ..wanted("c") };
    let refused = lab.engine.import_snapshot(once, io::Cursor::new(file)).await.unwrap_err();
    assert!(matches!(refused, EngineError::LimitReached { .. }), "{refused}");
    assert!(lab.engine.snapshot(&tag("c")).is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_of_a_level_starts_on_another_processor_and_that_of_a_whole_one_does_not() {
    let [here, there] = ["old", "new"]
        .map(|cpu_model| Fixture::with(Wishes { cpu_model: Some(cpu_model), ..Wishes::default() }));
    let (here, there) = (here.await, there.await);
    let request = TemplateRequest { cpu: CpuModel::V2, ..template("level") };
    here.engine.build_template(request, Arc::new(NoProgress)).await.unwrap();
    let [whole, level] = [export(&here.engine, "t").await, export(&here.engine, "level").await];
    there
        .engine
        .trust_key("here".to_owned(), here.engine.signing_key().await.unwrap())
        .await
        .unwrap();
    let refused = import(&there.engine, "copy", &whole).await.unwrap_err().to_string();
    assert!(refused.contains("CPU model `old`, here it is `new`"), "{refused}");
    import(&there.engine, "copy", &level).await.unwrap();
    assert_eq!(there.engine.snapshot(&tag("copy")).unwrap().cpu, CpuModel::V2);
    let child = there.engine.fork(&tag("copy"), 1).await.unwrap().remove(0);
    there.engine.branch(&child.id, super::fixture::request("more")).await.unwrap();
    let branch = there.engine.snapshot(&tag("more")).unwrap();
    assert_eq!(branch.cpu, CpuModel::V2, "a branch has the processor of its source");
    let words = qemu::cpu_model(Accelerator::Tcg, CpuModel::V2);
    assert!(words.contains("enforce") && words.contains("sse4.2") && !words.contains("avx"));
}
