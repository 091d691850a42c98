//! Goal: every thread of the gateway has a user of its own, no capability, and a filter of system
//! calls; it sees its own files alone, is in no namespace of the daemon's but the network, and has
//! no core dumps; so has the one that takes its place.
//! Method: `/proc`, while a sandbox uses it, and after it was killed; one that is not confined
//! shows every violation.
//! Broken by: a thread that began before the filter, a file that is mounted for it, a gateway that
//! is started without the launcher.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use forkd_engine::IsolationPolicy;
use forkd_testkit::audit::{each_thread, field, of_ids, of_thread};
use forkd_testkit::{Lab, block_on, gateway_in};

use crate::prisoner::lab;

/// What it shares with the daemon, and no more.
const NAMESPACES: [&str; 5] = ["ipc", "mnt", "pid", "user", "uts"];

/// The gateway's process, and what is not as it must be.
fn look(lab: &Lab) -> (i32, BTreeSet<String>) {
    let pid = gateway_in(&lab.config().run_dir).expect("a gateway").as_raw_nonzero().get();
    let mut found = each_thread(u32::try_from(pid).unwrap(), |thread, found| {
        of_thread(thread, found);
        of_ids(thread, found);
    });
    let own = |name: &str| fs::read_link(format!("/proc/self/ns/{name}")).unwrap();
    let its = |name: &str| fs::read_link(format!("/proc/{pid}/ns/{name}")).unwrap();
    assert_eq!(own("net"), its("net"));
    let shared = NAMESPACES.into_iter().filter(|name| own(name) == its(name));
    found.extend(shared.map(|name| format!("its {name} namespace is the daemon's")));
    let root = format!("/proc/{pid}/root");
    // Folders that lead to its program are there.
    let program = &lab.config().gateway;
    for path in ["etc/passwd", "proc/self", "dev/kvm", "tmp", "root", "run"] {
        let leads = program.starts_with(Path::new("/").join(path));
        if !leads && Path::new(&root).join(path).exists() {
            found.push(format!("it sees {path}"));
        }
    }
    let seen = fs::read_dir(format!("{root}/netd")).into_iter().flatten().flatten();
    let seen: BTreeSet<_> = seen.map(|entry| entry.file_name().into_string().unwrap()).collect();
    if seen != ["logs", "resolv.conf"].map(str::to_owned).into() {
        found.push(format!("it sees {seen:?}"));
    }
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    assert_eq!(core.split_whitespace().nth(5), Some("0"), "{core}");
    assert_eq!(field(Path::new(&format!("/proc/{pid}")), "PPid"), std::process::id().to_string());
    (pid, found.into_iter().collect())
}

#[test]
fn the_gateway_is_confined_and_so_is_its_successor() {
    block_on(async {
        let lab = lab(IsolationPolicy::Required, None).await;
        let tag = lab.template("tiny", 128).await;
        let guest = lab.one(&tag).await;
        let (first, found) = look(&lab);
        assert!(found.is_empty(), "{found:#?}");
        let log = lab.config().run_dir.join("netd/logs").join(guest.id.as_str());
        let user = field(Path::new(&format!("/proc/{first}")), "Uid");
        let owner = std::os::unix::fs::MetadataExt::uid(&fs::metadata(log).unwrap());
        assert_eq!(user.split_whitespace().next(), Some(owner.to_string().as_str()));
        lab.kill(u32::try_from(first).unwrap());
        let other = || {
            let listens = gateway_in(&lab.config().run_dir);
            listens.is_some_and(|pid| pid.as_raw_nonzero().get() != first)
        };
        lab.wait_until("another gateway", other).await;
        // It listens before it is confined, and serves nobody until then.
        lab.one(&tag).await;
        let (_, found) = look(&lab);
        assert!(found.is_empty(), "{found:#?}");
    });
}

#[test]
fn a_gateway_that_is_not_confined_shows_it() {
    block_on(async {
        let lab = lab(IsolationPolicy::None, None).await;
        let tag = lab.template("tiny", 128).await;
        let _guest = lab.one(&tag).await;
        let (_, found) = look(&lab);
        for what in ["CapEff", "NoNewPrivs", "Seccomp", "Uid", "mnt namespace", "etc/passwd"] {
            assert!(found.iter().any(|one| one.contains(what)), "{what}: {found:#?}");
        }
    });
}
