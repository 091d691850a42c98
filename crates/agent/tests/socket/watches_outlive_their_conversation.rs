//! Goal: a watch that the guest keeps goes on with whoever comes next: a branch's child, a later
//! daemon. What was done before its changes are asked for is told, once, in its order and with what
//! was there then; and nobody's absence makes the agent grow. Method: conversations with the real
//! agent, one after the other, and one that is broken off in the middle of an answer. What would
//! break it: a watch that ends with its conversation, changes that are told late, twice or never.

use std::time::Instant;

use crate::raw::Raw;
use crate::support::{LocalAgent, SOON};
use forkd_engine::guest::{
    ChangeDetail, Depth, FileChange, FileKind, FileWrite, GuestAgent, GuestError, Mounts,
    WatchExtent,
};
use forkd_protocol::{Keep, Reply, Request, WATCHES_KEPT_MAX, credit_cost};

/// A directory to be watched.
fn folder(local: &LocalAgent) -> std::path::PathBuf {
    let folder = local.folder.path().join("tree");
    std::fs::create_dir(&folder).unwrap();
    folder
}

fn refused(error: GuestError) -> String {
    let GuestError::Remote { code, .. } = error else { panic!("{error}") };
    code
}

async fn taken(agent: &GuestAgent, name: &str) -> Vec<FileChange> {
    let taken = agent.take_changes(name, SOON).await.unwrap();
    assert_eq!(taken.record, "the host's own");
    taken.changes.into_iter().map(|told| told.change).collect()
}

async fn keep(agent: &GuestAgent, name: &str, path: &std::path::Path) -> Result<(), GuestError> {
    agent.keep_watch(name, "the host's own", path.to_str().unwrap(), Depth::Recursive).await
}

#[tokio::test]
async fn the_next_host_is_told_what_nobody_was_and_nothing_twice() {
    let local = LocalAgent::start();
    let (agent, folder) = (local.greet().await, folder(&local));
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    keep(&agent, "w", &folder).await.unwrap();
    assert_eq!(refused(keep(&agent, "w", &folder).await.unwrap_err()), "duplicate_id");
    std::fs::create_dir(path("a")).unwrap();
    assert_eq!(taken(&agent, "w").await, [FileChange::Created(path("a"))]);
    agent.leave();
    drop(agent);
    // A conversation that asks for nothing.
    drop(local.greet().await);
    std::fs::rename(path("a"), path("b")).unwrap();

    let agent = local.greet().await;
    let renamed = FileChange::Renamed { from: path("a"), path: path("b") };
    assert_eq!(taken(&agent, "w").await, [renamed]);
    // Gone out of sight, it has no second half that could be waited for.
    std::fs::rename(path("b"), local.path("outside")).unwrap();
    assert_eq!(taken(&agent, "w").await, [FileChange::Removed(path("b"))]);
    assert_eq!(taken(&agent, "w").await, []);
    agent.end_watch("w", SOON).await.unwrap();
    assert_eq!(refused(agent.end_watch("w", SOON).await.unwrap_err()), "not_kept");
    assert_eq!(refused(agent.take_changes("w", SOON).await.unwrap_err()), "not_kept");
}

#[tokio::test]
async fn a_change_is_told_with_what_was_there_when_it_happened() {
    let local = LocalAgent::start();
    let (agent, folder) = (local.greet().await, folder(&local));
    let path = folder.join("x").to_str().unwrap().to_owned();
    keep(&agent, "w", &folder).await.unwrap();
    agent.write_file(FileWrite::new(path.clone()), b"four".to_vec(), SOON).await.unwrap();
    let told = agent.take_changes("w", SOON).await.unwrap().changes;
    let [told] = &told[..] else { panic!("{told:?}") };
    let entry = told.entry.as_ref().unwrap();
    assert_eq!((&*entry.name, &entry.path, entry.bytes), ("x", &path, 4));
    assert_eq!((entry.kind, entry.mode), (FileKind::File, 0o644));
    std::fs::remove_file(&path).unwrap();
    let told = agent.take_changes("w", SOON).await.unwrap().changes;
    assert!(told.iter().all(|told| told.entry.is_none()), "{told:?}");
}

/// The details of the changes at a path, without repetitions.
async fn details(agent: &GuestAgent, path: &str) -> Vec<ChangeDetail> {
    let told = agent.take_changes("w", SOON).await.unwrap().changes;
    let mut details = Vec::new();
    for one in told {
        match &one.change {
            FileChange::Created(at) | FileChange::Modified(at) if at == path => {
                details.push(one.detail);
            }
            FileChange::Created(at) => assert!(!at.contains(".forkd-"), "{at} is a secret"),
            other => panic!("{other:?}"),
        }
    }
    details
}

#[tokio::test]
async fn a_file_of_the_host_is_told_once_as_put_and_one_of_a_program_step_by_step() {
    let local = LocalAgent::start();
    let (agent, folder) = (local.greet().await, folder(&local));
    let path = folder.join("new/deep/x").to_str().unwrap().to_owned();
    keep(&agent, "w", &folder).await.unwrap();
    let write = || FileWrite { create_parents: true, ..FileWrite::new(path.clone()) };
    agent.write_file(write(), b"four".to_vec(), SOON).await.unwrap();
    assert_eq!(details(&agent, &path).await, [ChangeDetail::Put], "in new directories too");
    agent.write_file(write(), b"five".to_vec(), SOON).await.unwrap();
    assert_eq!(details(&agent, &path).await, [ChangeDetail::Replaced]);

    let of_program = folder.join("new/y").to_str().unwrap().to_owned();
    std::fs::write(&of_program, "one").unwrap();
    let seen = details(&agent, &of_program).await;
    assert_eq!(seen, [ChangeDetail::Made, ChangeDetail::Content]);
    std::fs::set_permissions(&of_program, std::os::unix::fs::PermissionsExt::from_mode(0o600))
        .unwrap();
    assert_eq!(details(&agent, &of_program).await, [ChangeDetail::Attributes]);
    std::fs::write(&of_program, "two").unwrap();
    let mut seen = details(&agent, &of_program).await;
    seen.dedup();
    assert_eq!(seen, [ChangeDetail::Content], "it is emptied, and written");
    std::fs::write(local.path("outside"), "text").unwrap();
    let moved = folder.join("moved").to_str().unwrap().to_owned();
    std::fs::rename(local.path("outside"), &moved).unwrap();
    assert_eq!(details(&agent, &moved).await, [ChangeDetail::Made]);
}

#[tokio::test]
async fn directories_that_the_host_makes_are_watched_when_it_hears_that_they_are_there() {
    let local = LocalAgent::start();
    let (agent, folder) = (local.greet().await, folder(&local));
    keep(&agent, "w", &folder).await.unwrap();
    for number in 0..50 {
        let below = folder.join(number.to_string()).join("below");
        agent.make_directory(below.to_str().unwrap(), None, SOON).await.unwrap();
        let path = below.join("x").to_str().unwrap().to_owned();
        std::fs::write(&path, "text").unwrap();
        let mut seen = details(&agent, &path).await;
        seen.dedup();
        assert_eq!(seen, [ChangeDetail::Made, ChangeDetail::Content], "{number}");
    }
}

#[tokio::test]
async fn where_the_network_is_left_out_what_is_local_is_watched() {
    let local = LocalAgent::start();
    let (agent, folder) = (local.greet().await, folder(&local));
    let extent = WatchExtent { depth: Depth::Itself, mounts: Mounts::Local };
    let root = folder.to_str().unwrap();
    agent.keep_watch("w", "the host's own", root, extent).await.unwrap();
    std::fs::write(folder.join("x"), "").unwrap();
    let path = folder.join("x").to_str().unwrap().to_owned();
    assert_eq!(details(&agent, &path).await, [ChangeDetail::Made]);
}

#[tokio::test]
async fn a_watch_whose_path_is_gone_tells_what_is_left_then_that_and_makes_room() {
    let local = LocalAgent::start();
    let (agent, folder) = (local.greet().await, folder(&local));
    let elsewhere = local.folder.path().join("other");
    std::fs::create_dir(&elsewhere).unwrap();
    for number in 0..WATCHES_KEPT_MAX {
        keep(&agent, &number.to_string(), if number == 7 { &folder } else { &elsewhere })
            .await
            .unwrap();
    }
    assert_eq!(refused(keep(&agent, "more", &elsewhere).await.unwrap_err()), "busy");
    std::fs::remove_dir(&folder).unwrap();
    let gone = FileChange::Removed(folder.to_str().unwrap().to_owned());
    assert_eq!(taken(&agent, "7").await, [gone]);
    assert_eq!(refused(agent.take_changes("7", SOON).await.unwrap_err()), "file_not_found");
    keep(&agent, "more", &elsewhere).await.unwrap();
    assert_eq!(refused(agent.take_changes("7", SOON).await.unwrap_err()), "not_kept");
    for number in (0..WATCHES_KEPT_MAX).filter(|number| *number != 7) {
        agent.end_watch(&number.to_string(), SOON).await.unwrap();
    }
    agent.end_watch("more", SOON).await.unwrap();
    local.idle().await;
}

#[tokio::test]
async fn what_could_not_be_sent_waits_for_the_next_host() {
    let local = LocalAgent::start();
    let folder = folder(&local);
    let agent = local.greet().await;
    keep(&agent, "w", &folder).await.unwrap();
    for number in 0..20 {
        std::fs::create_dir(folder.join(number.to_string())).unwrap();
    }
    drop(agent);
    // It allows as much as the record and three changes need, and then goes.
    let mut raw = Raw::new(local.stream().await);
    raw.hello(3).await;
    let path = folder.join("0").to_str().unwrap().len();
    let output_credit =
        credit_cost("the host's own".len()) + 3 * credit_cost("createddirectory".len() + path);
    raw.ask(5, &Request::TakeChanges { name: "w".to_owned(), output_credit }).await;
    let mut told = 0;
    while told < 3 {
        if let (5, Reply::Change { .. }) = raw.reply().await {
            told += 1;
        }
    }
    drop(raw);
    let agent = local.greet().await;
    let start = Instant::now();
    let mut left = Vec::new();
    // The answer that is broken off gives its change back when it has noticed.
    while left.len() < 17 {
        left.extend(taken(&agent, "w").await);
        assert!(start.elapsed() < SOON, "{left:?}");
    }
    let number = |change: &FileChange| match change {
        FileChange::Created(path) => path.rsplit('/').next().unwrap().parse::<u32>().unwrap(),
        other => panic!("{other:?}"),
    };
    let mut numbers: Vec<u32> = left.iter().map(number).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (3..20).collect::<Vec<_>>());
}

#[tokio::test]
async fn what_is_kept_with_a_watch_is_bounded() {
    let local = LocalAgent::start();
    let (agent, folder) = (local.greet().await, folder(&local));
    let long = Keep { name: "n".repeat(200), record: String::new() };
    let path = folder.to_str().unwrap();
    let refusal = agent.keep_watch(&long.name, "", path, Depth::Itself).await.unwrap_err();
    assert_eq!(refused(refusal), "bad_request");
    let refusal = agent.keep_watch("w", &"r".repeat(20_000), path, Depth::Itself).await;
    assert_eq!(refused(refusal.unwrap_err()), "bad_request");
    let refusal = agent.keep_watch("w", "", "/no/such/path", Depth::Itself).await.unwrap_err();
    assert_eq!(refused(refusal), "file_not_found");
}
