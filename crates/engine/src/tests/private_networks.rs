//! Private networks: who is a member, with which alias, and what the gateway is told.

use std::collections::{BTreeMap, BTreeSet};

use forkd_types::SandboxId;
use forkd_types::network::{Alias, NetworkName};

use super::fixture::{Fixture, request, tag};
use crate::{AtShutDown, BranchRequest, Caller, EngineError, Role, Sandbox, SandboxOptions};

fn name(text: &str) -> NetworkName {
    text.parse().unwrap()
}

fn joining(networks: &[&str]) -> SandboxOptions {
    let join = networks.iter().map(|text| name(text)).collect();
    SandboxOptions { join, ..SandboxOptions::default() }
}

impl Fixture {
    /// What a sandbox is a member of, which the gateway must have been told.
    fn memberships(&self, id: &SandboxId) -> BTreeMap<NetworkName, Alias> {
        let said = self.engine.sandbox(id).unwrap().options.memberships;
        assert_eq!(self.ports.networks(id), said);
        said
    }

    fn alias(&self, id: &SandboxId, network: &str) -> Alias {
        self.memberships(id)[&name(network)]
    }

    fn members(&self, network: &str) -> Vec<SandboxId> {
        let members = self.engine.network(&name(network)).unwrap().members;
        members.into_iter().map(|sandbox| sandbox.id).collect()
    }

    async fn joined(&self, count: u32, networks: &[&str]) -> Vec<Sandbox> {
        self.engine.fork_with(&tag("t"), count, joining(networks)).await.unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_have_aliases_of_their_own_and_children_join_where_their_source_is() {
    let mut lab = Fixture::new().await;
    for network in ["team", "lab"] {
        lab.engine.create_network(name(network)).await.unwrap();
    }
    let started = lab.joined(3, &["team"]).await;
    let aliases: BTreeSet<Alias> = started.iter().map(|it| lab.alias(&it.id, "team")).collect();
    assert_eq!(aliases.len(), 3);
    let source = &started[0].id;
    lab.engine.join_network(source, &name("lab")).await.unwrap();
    let (before, networks) = (lab.alias(source, "team"), lab.memberships(source).len());
    assert_eq!(networks, 2);
    let order = BranchRequest { children: 2, ..request("b") };
    let children = lab.engine.branch(source, order).await.unwrap().children;
    for child in children {
        let id = child.unwrap().id;
        assert_eq!(lab.memberships(&id).len(), 2, "those of its source");
        assert!(!aliases.contains(&lab.alias(&id, "team")), "an alias of its own");
    }
    let order = BranchRequest { children: 1, join: Some(BTreeSet::new()), ..request("alone") };
    let alone = lab.engine.branch(source, order).await.unwrap().children.remove(0).unwrap();
    assert!(lab.memberships(&alone.id).is_empty());
    let later = lab.engine.fork(&tag("b"), 1).await.unwrap().remove(0);
    assert!(lab.memberships(&later.id).is_empty(), "a snapshot is no member");
    assert_eq!(lab.members("team").len(), 5);

    let (kept, left) = (lab.memberships(source), started[1].id.clone());
    lab.engine.leave_network(&left, &name("team")).await.unwrap();
    let again = lab.engine.leave_network(&left, &name("team")).await.unwrap_err();
    assert!(matches!(again, EngineError::NotMember { .. }), "{again}");
    lab.engine.remove_sandbox(&started[2].id).await.unwrap();
    assert_eq!(lab.members("team").len(), 3);
    lab.engine.create_network(name("gone")).await.unwrap();
    lab.engine.join_network(source, &name("gone")).await.unwrap();
    lab.engine.remove_network(name("gone")).await.unwrap();
    assert_eq!(lab.memberships(source), kept, "and the gateway knows it");
    // The next daemon knows the same.
    lab.engine.shut_down(AtShutDown::Leave).await;
    lab.next_engine().await;
    assert_eq!(lab.engine.sandbox(source).unwrap().options.memberships, kept);
    assert_eq!(lab.members("team").len(), 3);
    assert_eq!(kept[&name("team")], before);
    lab.engine.remove_network(name("team")).await.unwrap();
    let left = lab.engine.sandbox(source).unwrap().options.memberships;
    assert_eq!(left.into_keys().collect::<Vec<_>>(), [name("lab")]);
    lab.engine.create_network(name("team")).await.unwrap();
    assert!(lab.members("team").is_empty(), "another network of the same name");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_refused_changes_nothing() {
    let lab = Fixture::new().await;
    lab.engine.create_network(name("team")).await.unwrap();
    let unknown = |error: EngineError| {
        assert!(matches!(error, EngineError::UnknownNetwork { .. }), "{error}");
    };
    let member = lab.joined(1, &["team"]).await.remove(0);
    let before = lab.memberships(&member.id);
    unknown(lab.engine.fork_with(&tag("t"), 1, joining(&["team", "none"])).await.unwrap_err());
    unknown(lab.engine.join_network(&member.id, &name("none")).await.unwrap_err());
    unknown(lab.engine.set_networks(&member.id, [name("none")].into()).await.unwrap_err());
    let order =
        BranchRequest { children: 1, join: Some([name("none")].into()), ..request("refused") };
    unknown(lab.engine.branch(&member.id, order).await.unwrap_err());
    assert!(lab.engine.snapshot(&tag("refused")).is_err(), "before anything is done");
    assert_eq!((lab.memberships(&member.id), lab.engine.sandboxes().len()), (before, 1));

    let other = Caller::new("other".parse().unwrap(), Role::User);
    let other = lab.engine.seen_by(other);
    unknown(other.network(&name("team")).unwrap_err());
    unknown(other.remove_network(name("team")).await.unwrap_err());
    assert!(other.networks().is_empty());
    other.create_network(name("team")).await.unwrap();
    assert!(other.network(&name("team")).unwrap().members.is_empty());
    assert_eq!(lab.members("team"), [member.id]);
}
