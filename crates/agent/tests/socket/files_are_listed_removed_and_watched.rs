//! Goal: directories are listed as they are, removed as far as asked, and every change in a watched
//! tree is told. No agent can give names that lead elsewhere, or grow the daemon. Method: the real
//! agent in a directory of its own, and one that breaks the rules. What would break it: a watch
//! that is confirmed before it is set, a directory that is made and filled before it is watched.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;
use std::time::Duration;

use crate::raw::{Raw, client_of_raw_agent};
use crate::support::{LocalAgent, SOON};
use forkd_engine::guest::{
    Depth, FileChange, FileKind, FileLink, FileLook, FileOwner, FileWatch, FileWrite, GuestError,
    OUTPUT_BYTES_MAX, WithEntries,
};
use forkd_protocol::{Reply, Request};

fn code_of(error: GuestError) -> String {
    match error {
        GuestError::Remote { code, .. } => code,
        other => panic!("not the agent's own error: {other}"),
    }
}

/// A directory that is empty.
fn folder(local: &LocalAgent) -> PathBuf {
    let folder = PathBuf::from(local.path("folder"));
    std::fs::create_dir(&folder).unwrap();
    folder
}

fn text(path: PathBuf) -> String {
    path.to_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_directory_is_listed_by_name_and_told_what_each_is() {
    let local = LocalAgent::start();
    let (agent, folder) = (local.greet().await, folder(&local));
    std::fs::write(folder.join("b"), "12345").unwrap();
    std::fs::set_permissions(folder.join("b"), PermissionsExt::from_mode(0o4711)).unwrap();
    std::fs::create_dir(folder.join("c")).unwrap();
    symlink("nowhere", folder.join("a")).unwrap();
    let root = text(folder);
    let entries = agent.list_files(&format!("{root}/"), SOON).await.unwrap();
    let seen: Vec<_> =
        entries.iter().map(|entry| (&*entry.name, entry.kind, &*entry.path)).collect();
    let path = |name: &str| format!("{root}/{name}");
    let expected = [
        ("a", FileKind::Symlink, &*path("a")),
        ("b", FileKind::File, &*path("b")),
        ("c", FileKind::Directory, &*path("c")),
    ];
    assert_eq!(seen, expected);
    assert_eq!((entries[1].bytes, entries[1].mode), (5, 0o4711));
    assert!(entries[1].modified_at.elapsed().unwrap() < SOON);
    assert_eq!(agent.stat_file(&path("b"), SOON).await.unwrap(), entries[1]);
    assert_eq!(agent.stat_file(&path("a"), SOON).await.unwrap().kind, FileKind::Symlink);
    let top = agent.stat_file("/", SOON).await.unwrap();
    assert_eq!((top.name.as_str(), top.kind), ("/", FileKind::Directory));
    assert_eq!(agent.stat_file("/dev/null", SOON).await.unwrap().kind, FileKind::Other);
    for path in [path("d"), path("a/x")] {
        assert_eq!(code_of(agent.stat_file(&path, SOON).await.unwrap_err()), "file_not_found");
        assert_eq!(code_of(agent.list_files(&path, SOON).await.unwrap_err()), "file_not_found");
    }
    assert_eq!(code_of(agent.list_files(&path("b"), SOON).await.unwrap_err()), "file_failed");
    assert_eq!(code_of(agent.list_files("tmp", SOON).await.unwrap_err()), "bad_request");
}

#[tokio::test]
async fn a_link_tells_where_it_leads_at_last_when_asked_for() {
    let local = LocalAgent::start();
    let (agent, folder) = (local.greet().await, folder(&local).canonicalize().unwrap());
    let path = |name: &str| text(folder.join(name));
    std::fs::write(path("file"), "12345").unwrap();
    std::fs::set_permissions(path("file"), PermissionsExt::from_mode(0o640)).unwrap();
    std::fs::create_dir(path("sub")).unwrap();
    for (to, from) in
        [("file", "one"), ("one", "two"), ("sub", "dir"), ("nowhere", "broken"), ("round", "round")]
    {
        symlink(to, path(from)).unwrap();
    }
    let link_of = async |name: &str| {
        let path = path(name);
        let look = FileLook { links: true, ..(&path).into() };
        agent.stat_file(look, SOON).await.unwrap().link
    };
    let (file, bytes) = (FileKind::File, 5);
    let to_file = FileLink::To { path: path("file"), kind: file, bytes, mode: 0o640 };
    assert_eq!(link_of("one").await, Some(to_file.clone()));
    assert_eq!(link_of("two").await, Some(to_file), "through another link");
    assert_eq!(link_of("broken").await, Some(FileLink::Nowhere));
    assert_eq!(link_of("round").await, Some(FileLink::Nowhere));
    assert_eq!(link_of("file").await, None, "it is none");
    let Some(FileLink::To { kind: FileKind::Directory, .. }) = link_of("dir").await else {
        panic!("a link to a directory")
    };
    let root = text(folder.clone());
    let listed = FileLook { links: true, ..(&root).into() };
    let listed = agent.list_files(listed, SOON).await.unwrap();
    let told: Vec<_> = listed.iter().filter(|it| it.link.is_some()).map(|it| &*it.name).collect();
    assert_eq!(told, ["broken", "dir", "one", "round", "two"]);
    let unasked = agent.list_files(&root, SOON).await.unwrap();
    assert!(unasked.iter().all(|entry| entry.link.is_none()));
}

#[tokio::test]
async fn attributes_are_those_of_the_last_write_and_are_told_when_asked_for() {
    let local = LocalAgent::start();
    let (agent, folder) = (local.greet().await, folder(&local));
    let path = text(folder.join("a"));
    let of = |value: &str| BTreeMap::from([("user.x.one".to_owned(), value.to_owned())]);
    let write = |attributes| FileWrite { attributes, ..FileWrite::new(path.clone()) };
    let look = FileLook { path: &path, attributes: Some("user.x."), links: false };
    let other = FileLook { path: &path, attributes: Some("user.y."), links: false };
    agent.write_file(write(of("1")), b"one".to_vec(), SOON).await.unwrap();
    let above = text(folder);
    let listed = FileLook { path: &above, ..look };
    assert_eq!(agent.stat_file(look, SOON).await.unwrap().attributes, of("1"));
    assert_eq!(agent.list_files(listed, SOON).await.unwrap()[0].attributes, of("1"));
    assert_eq!(agent.stat_file(other, SOON).await.unwrap().attributes, BTreeMap::new());
    assert_eq!(agent.stat_file(&path, SOON).await.unwrap().attributes, BTreeMap::new());
    let more = FileWrite { append: true, ..write(of("2")) };
    agent.write_file(more, b" two".to_vec(), SOON).await.unwrap();
    assert_eq!(agent.stat_file(look, SOON).await.unwrap().attributes, of("2"));
    agent.write_file(write(BTreeMap::new()), b"three".to_vec(), SOON).await.unwrap();
    assert_eq!(agent.stat_file(look, SOON).await.unwrap().attributes, BTreeMap::new());
    // The kernel knows no such name: the file stays as it was.
    let wrong = write(BTreeMap::from([("nowhere.one".to_owned(), "1".to_owned())]));
    let refused = agent.write_file(wrong, b"four".to_vec(), SOON).await.unwrap_err();
    assert_eq!(code_of(refused), "file_failed");
    assert_eq!(std::fs::read(&path).unwrap(), b"three");
}

#[tokio::test]
async fn a_directory_of_more_than_a_window_of_credit_is_listed_whole() {
    let local = LocalAgent::start();
    let (agent, folder) = (local.greet().await, folder(&local));
    for number in 0..3000 {
        std::fs::write(folder.join(format!("{number:04}")), "").unwrap();
    }
    let entries = agent.list_files(&text(folder), SOON).await.unwrap();
    assert!(entries.iter().map(|e| e.name.clone()).eq((0..3000).map(|n| format!("{n:04}"))));
}

#[tokio::test]
async fn no_more_entries_are_sent_than_the_host_allows() {
    let local = LocalAgent::start();
    let folder = folder(&local);
    for number in 0..5 {
        std::fs::write(folder.join(format!("{number}")), "").unwrap();
    }
    let mut raw = Raw::new(local.stream().await);
    raw.hello(1).await;
    // Enough for two.
    raw.ask(
        2,
        &Request::ListFiles {
            path: text(folder),
            attributes: None,
            links: false,
            output_credit: 1100,
        },
    )
    .await;
    for _ in 0..2 {
        assert!(matches!(raw.reply().await, (2, Reply::Entry { .. })));
    }
    let more = tokio::time::timeout(Duration::from_millis(300), raw.frame()).await;
    assert!(more.is_err(), "{more:?}");
    raw.ask(2, &Request::Credit { bytes: 100_000 }).await;
    for _ in 0..3 {
        assert!(matches!(raw.reply().await, (2, Reply::Entry { .. })));
    }
    assert_eq!(raw.reply().await, (2, Reply::Done {}));
}

#[tokio::test]
async fn only_what_is_asked_for_is_removed() {
    let local = LocalAgent::start();
    let (agent, folder) = (local.greet().await, folder(&local));
    let path = |name: &str| text(folder.join(name));
    agent.make_directory(&path("a/b/c"), None, SOON).await.unwrap();
    agent.make_directory(&path("a/b"), None, SOON).await.unwrap();
    std::fs::write(path("a/file"), "x").unwrap();
    assert_eq!(
        code_of(agent.make_directory(&path("a/file"), None, SOON).await.unwrap_err()),
        "file_failed"
    );
    for depth in [Depth::Itself, Depth::Recursive] {
        symlink(path("a"), path("link")).unwrap();
        agent.remove_file(&path("link"), depth, SOON).await.unwrap();
        assert!(std::fs::exists(path("a/file")).unwrap(), "the link was followed");
    }
    let refused = agent.remove_file(&path("a"), Depth::Itself, SOON).await.unwrap_err();
    assert_eq!(code_of(refused), "file_failed");
    agent.remove_file(&path("a/file"), Depth::Itself, SOON).await.unwrap();
    agent.remove_file(&path("a/b/c"), Depth::Itself, SOON).await.unwrap();
    agent.remove_file(&path("a"), Depth::Recursive, SOON).await.unwrap();
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
    let refused = agent.remove_file(&path("a"), Depth::Recursive, SOON).await.unwrap_err();
    assert_eq!(code_of(refused), "file_not_found");
    let refused = agent.remove_file("/", Depth::Recursive, SOON).await.unwrap_err();
    assert_eq!(code_of(refused), "bad_request");
}

/// A user that is not the agent's, as far as the test may give things to others.
fn other_user() -> (FileOwner, [u32; 2]) {
    let is_root = rustix::process::getuid().is_root();
    let ids = match is_root {
        true => [65_534, 65_533],
        false => [rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw()],
    };
    (FileOwner::User(format!("{}:{}", ids[0], ids[1])), ids)
}

fn ids_of(path: &str) -> [u32; 2] {
    let facts = std::fs::symlink_metadata(path).unwrap();
    [facts.uid(), facts.gid()]
}

#[tokio::test]
async fn what_is_made_belongs_to_the_user_that_was_asked_for_and_what_was_there_does_not() {
    let local = LocalAgent::start();
    let (agent, folder) = (local.greet().await, folder(&local));
    let path = |name: &str| text(folder.join(name));
    let (owner, ids) = other_user();
    let before = ids_of(&path(""));
    agent.make_directory(&path("a/b"), Some(owner.clone()), SOON).await.unwrap();
    assert_eq!([ids_of(&path("a")), ids_of(&path("a/b"))], [ids, ids]);
    let owned = Some(owner.clone());
    let file = FileWrite { create_parents: true, owner: owned, ..FileWrite::new(path("a/c/file")) };
    agent.write_file(file.clone(), b"one".to_vec(), SOON).await.unwrap();
    assert_eq!([ids_of(&path("a/c")), ids_of(&path("a/c/file"))], [ids, ids]);
    assert_eq!(ids_of(&path("")), before);
    // A file is taken over, unless something is added to it.
    let root = |name: &str| FileWrite::new(path(name));
    agent.write_file(root("rooted"), b"one".to_vec(), SOON).await.unwrap();
    let rooted = ids_of(&path("rooted"));
    let more = FileWrite { append: true, owner: file.owner.clone(), ..root("rooted") };
    agent.write_file(more, b" two".to_vec(), SOON).await.unwrap();
    assert_eq!(ids_of(&path("rooted")), rooted);
    let anew = FileWrite { owner: file.owner.clone(), ..root("rooted") };
    agent.write_file(anew, b"three".to_vec(), SOON).await.unwrap();
    assert_eq!(ids_of(&path("rooted")), ids);
    // And stays whose it is if nobody is named.
    agent.write_file(root("rooted"), b"four".to_vec(), SOON).await.unwrap();
    assert_eq!(ids_of(&path("rooted")), ids);
    let told = agent.stat_file(&path("rooted"), SOON).await.unwrap();
    let listed = agent.list_files(&path("a/c"), SOON).await.unwrap();
    assert_eq!([&told.owner, &told.group], [&listed[0].owner, &listed[0].group]);
    assert!(told.owner.is_some() && told.group.is_some());
}

#[tokio::test]
async fn a_user_that_the_guest_does_not_have_is_refused_and_nothing_is_made() {
    let local = LocalAgent::start();
    let (agent, folder) = (local.greet().await, folder(&local));
    let place = text(folder.join("a/file"));
    let owner = Some(FileOwner::User("no-such-user".to_owned()));
    let refused = agent.make_directory(&place, owner.clone(), SOON).await.unwrap_err();
    assert!(refused.to_string().contains("no user \"no-such-user\""), "{refused}");
    let file = FileWrite { create_parents: true, owner, ..FileWrite::new(&place) };
    let refused = agent.write_file(file, b"x".to_vec(), SOON).await.unwrap_err();
    assert_eq!(code_of(refused), "user_not_found");
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
}

#[tokio::test]
async fn a_link_in_the_way_of_a_new_directory_is_followed_and_stays_whose_it_is() {
    let local = LocalAgent::start();
    let (agent, folder) = (local.greet().await, folder(&local));
    let path = |name: &str| text(folder.join(name));
    let (owner, ids) = other_user();
    std::fs::create_dir(path("real")).unwrap();
    symlink(path("real"), path("link")).unwrap();
    let before = ids_of(&path("real"));
    agent.make_directory(&path("link/new"), Some(owner.clone()), SOON).await.unwrap();
    assert_eq!([ids_of(&path("real")), ids_of(&path("real/new"))], [before, ids]);
    symlink(path("nowhere"), path("broken")).unwrap();
    agent.make_directory(&path("broken/new"), Some(owner), SOON).await.unwrap_err();
    assert!(!std::fs::exists(path("nowhere")).unwrap());
}

async fn next(watch: &mut FileWatch) -> Option<FileChange> {
    let told = tokio::time::timeout(SOON, watch.next()).await.expect("a change is told").unwrap();
    told.map(|told| told.change)
}

/// The changes up to the creation of `last`, without repetitions.
async fn until(watch: &mut FileWatch, last: &str) -> Vec<FileChange> {
    let mut seen = Vec::new();
    loop {
        let change = next(watch).await.unwrap();
        if change == FileChange::Created(last.to_owned()) {
            return seen;
        }
        if seen.last() != Some(&change) {
            seen.push(change);
        }
    }
}

#[tokio::test]
async fn each_kind_of_change_is_told_with_its_path() {
    let local = LocalAgent::start();
    let (agent, folder) = (local.greet().await, folder(&local));
    let path = |name: &str| text(folder.join(name));
    std::fs::create_dir(path("sub")).unwrap();
    let mut watch =
        agent.watch_files(&text(folder.clone()), Depth::Itself, WithEntries::No).await.unwrap();
    std::fs::write(path("a"), "x").unwrap();
    std::fs::write(path("sub/unseen"), "x").unwrap();
    std::fs::rename(path("a"), path("b")).unwrap();
    std::fs::rename(path("b"), local.path("outside")).unwrap();
    std::fs::rename(local.path("outside"), path("c")).unwrap();
    std::fs::remove_file(path("c")).unwrap();
    // The file that comes before it in secret is not told.
    agent.write_file(FileWrite::new(path("d")), b"x".to_vec(), SOON).await.unwrap();
    std::fs::write(path("end"), "").unwrap();
    let expected = [
        FileChange::Created(path("a")),
        FileChange::Modified(path("a")),
        FileChange::Renamed { from: path("a"), path: path("b") },
        FileChange::Removed(path("b")),
        FileChange::Created(path("c")),
        FileChange::Removed(path("c")),
        FileChange::Created(path("d")),
    ];
    assert_eq!(until(&mut watch, &path("end")).await, expected);
    std::fs::remove_dir_all(&folder).unwrap();
    let mut last = None;
    while let Some(change) = next(&mut watch).await {
        last = Some(change);
    }
    assert_eq!(last, Some(FileChange::Removed(text(folder))), "then the watch is over");
}

#[tokio::test]
async fn whatever_comes_into_a_watched_tree_is_told_however_fast() {
    let local = LocalAgent::start();
    let (agent, folder) = (local.greet().await, folder(&local));
    let path = |name: &str| text(folder.join(name));
    std::fs::create_dir_all(path("old/deep")).unwrap();
    let mut watch =
        agent.watch_files(&text(folder.clone()), Depth::Recursive, WithEntries::No).await.unwrap();
    std::fs::write(path("old/deep/file"), "").unwrap();
    let mut files = BTreeSet::from([path("old/deep/file")]);
    for number in 0..50 {
        let below = path(&format!("new-{number}/x/y"));
        std::fs::create_dir_all(&below).unwrap();
        std::fs::write(format!("{below}/file"), "").unwrap();
        files.insert(format!("{below}/file"));
    }
    std::fs::rename(path("old"), path("young")).unwrap();
    std::fs::write(path("young/deep/later"), "").unwrap();
    files.insert(path("young/deep/later"));
    std::fs::write(path("end"), "").unwrap();
    let seen = until(&mut watch, &path("end")).await;
    for file in files {
        assert!(seen.contains(&FileChange::Created(file.clone())), "{file} is not told");
    }
    let moved = FileChange::Renamed { from: path("old"), path: path("young") };
    assert!(seen.contains(&moved));
    // One that is dropped ends in the guest too.
    drop(watch);
    let start = std::time::Instant::now();
    while agent.ping(SOON).await.unwrap().requests_running > 0 {
        assert!(start.elapsed() < SOON, "the watch goes on");
    }
}

#[tokio::test]
async fn a_file_is_watched_by_itself_and_what_is_missing_is_refused() {
    let local = LocalAgent::start();
    let (agent, folder) = (local.greet().await, folder(&local));
    let file = text(folder.join("file"));
    let refused =
        agent.watch_files(&file, Depth::Itself, WithEntries::No).await.map(drop).unwrap_err();
    assert_eq!(code_of(refused), "file_not_found");
    std::fs::write(&file, "1").unwrap();
    let mut watch = agent.watch_files(&file, Depth::Itself, WithEntries::No).await.unwrap();
    std::fs::write(&file, "2").unwrap();
    assert_eq!(next(&mut watch).await, Some(FileChange::Modified(file)));
}

#[tokio::test]
async fn an_agent_cannot_name_what_is_elsewhere_or_list_without_end() {
    for name in ["../../etc/passwd", "..", ".", "", "a/b", "a\0"] {
        let (agent, mut raw) = client_of_raw_agent().await;
        let answer = async {
            let (id, Request::ListFiles { .. }) = raw.request().await else { panic!() };
            raw.answer(id, &entry(name)).await;
            raw.answer(id, &Reply::Done {}).await;
        };
        let (entries, ()) = tokio::join!(agent.list_files("/", SOON), answer);
        assert!(matches!(entries, Err(GuestError::Protocol { .. })), "{name:?}: {entries:?}");
    }
    let (agent, mut raw) = client_of_raw_agent().await;
    let flood = async {
        let (id, Request::ListFiles { .. }) = raw.request().await else { panic!() };
        raw.flood(id, &entry(&"x".repeat(60_000))).await;
    };
    let (entries, ()) = tokio::join!(agent.list_files("/", SOON * 5), flood);
    assert_eq!(entries.unwrap_err(), GuestError::OutputTooLarge { limit: OUTPUT_BYTES_MAX });
}

fn entry(name: &str) -> Reply {
    let (name, kind) = (name.to_owned(), "file".to_owned());
    let (owner, group, attributes) = (None, None, BTreeMap::new());
    Reply::Entry {
        name,
        kind,
        bytes: 0,
        mode: 0,
        modified_unix_s: i64::MIN,
        owner,
        group,
        attributes,
        link: None,
    }
}
