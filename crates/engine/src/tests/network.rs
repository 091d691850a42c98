//! What sandboxes may reach: who inherits it, and what is refused. Whether it holds is the
//! gateway's business.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use forkd_netd_protocol::SecretValue;
use forkd_types::SandboxId;
use forkd_types::network::{HeaderRules, NetworkPolicy, Rule, SecretName, Transform};

use super::fixture::{Fixture, request, tag, template};
use crate::{AtShutDown, BranchRequest, EngineError, NoProgress, Sandbox, SandboxOptions};

fn policy(allowed: &str) -> NetworkPolicy {
    NetworkPolicy { allow_out: vec![allowed.parse().unwrap()], ..NetworkPolicy::default() }
}

fn wanting(policy: NetworkPolicy) -> SandboxOptions {
    SandboxOptions { network: Some(policy), ..SandboxOptions::default() }
}

impl Fixture {
    async fn started(&self, snapshot: &str, options: SandboxOptions) -> Sandbox {
        self.engine.fork_with(&tag(snapshot), 1, options).await.unwrap().remove(0)
    }

    fn reach(&self, id: &SandboxId) -> NetworkPolicy {
        self.engine.sandbox(id).unwrap().options.network.expect("it is always settled")
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_started_from_a_snapshot_reaches_what_its_source_could() {
    let mut lab = Fixture::new().await;
    assert_eq!(lab.reach(&lab.child().await.id), NetworkPolicy::default());
    let (one, other) = (policy("one.example:443"), policy("other.example"));
    let source = lab.started("t", wanting(one.clone())).await;
    assert_eq!(lab.reach(&source.id), one);
    lab.branch(&source.id, "b").await.unwrap();
    lab.engine.compact_snapshot(&tag("b"), &tag("compact")).await.unwrap();
    // What the source may do later is nothing to what was branched before.
    lab.engine.set_network(&source.id, other.clone(), None).await.unwrap();
    lab.branch(&source.id, "later").await.unwrap();
    for (snapshot, wanted) in [("b", &one), ("compact", &one), ("later", &other)] {
        let child = lab.started(snapshot, SandboxOptions::default()).await;
        assert_eq!(&lab.reach(&child.id), wanted, "{snapshot}");
        lab.branch(&child.id, &format!("of-{snapshot}")).await.unwrap();
        let grandchild = lab.started(&format!("of-{snapshot}"), SandboxOptions::default()).await;
        assert_eq!(&lab.reach(&grandchild.id), wanted, "of {snapshot}");
    }
    let order = BranchRequest {
        children: 1,
        network: Some(NetworkPolicy::closed()),
        ..request("closed-child")
    };
    let child = lab.engine.branch(&source.id, order).await.unwrap().children.remove(0).unwrap();
    assert_eq!(lab.reach(&child.id), NetworkPolicy::closed());
    let of_snapshot = lab.started("closed-child", SandboxOptions::default()).await;
    assert_eq!(lab.reach(&of_snapshot.id), other, "the snapshot has its source's");
    let given = lab.started("b", wanting(other.clone())).await;
    assert_eq!(lab.reach(&given.id), other);

    lab.engine.shut_down(AtShutDown::Leave).await;
    lab.next_engine().await;
    assert_eq!((lab.reach(&source.id), lab.reach(&given.id)), (other.clone(), other));
    let child = lab.started("b", SandboxOptions::default()).await;
    assert_eq!(lab.reach(&child.id), one);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_than_the_operator_permits_is_refused_and_changes_nothing() {
    let lab = Fixture::new().await;
    let private = policy("10.0.0.0/8");
    let refused = lab.engine.fork_with(&tag("t"), 1, wanting(private.clone())).await.unwrap_err();
    assert!(matches!(refused, EngineError::NetworkNotPermitted(_)), "{refused}");
    let source = lab.started("t", wanting(NetworkPolicy::closed())).await;
    let refused = lab.engine.set_network(&source.id, private, None).await.unwrap_err();
    assert!(matches!(refused, EngineError::NetworkNotPermitted(_)), "{refused}");
    assert_eq!(lab.reach(&source.id), NetworkPolicy::closed());
    let network = Some(policy("10.0.0.0/8"));
    let order = BranchRequest { children: 1, network, ..request("refused") };
    let refused = lab.engine.branch(&source.id, order).await.unwrap_err();
    assert!(matches!(refused, EngineError::NetworkNotPermitted(_)), "{refused}");
    assert!(lab.engine.snapshot(&tag("refused")).is_err(), "before anything is done");
    assert_eq!(lab.engine.sandboxes().len(), 1);
}

fn with_rule(secret: &str) -> NetworkPolicy {
    let headers = [("authorization".parse().unwrap(), secret.parse().unwrap())].into();
    let rules = vec![Rule { transform: Transform { headers } }];
    let rules = HeaderRules([("api.example".parse().unwrap(), rules)].into());
    NetworkPolicy { rules, ..policy("api.example:443") }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn header_rules_are_inherited_by_name_and_never_by_value() {
    let mut lab = Fixture::new().await;
    let key: SecretName = "KEY".parse().unwrap();
    let value = SecretValue::try_from("sk-1f9e".to_owned()).unwrap();
    lab.engine.set_secret(key.clone(), value).await.unwrap();
    let ruled = with_rule("Bearer ${secrets.KEY}");
    let source = lab.started("t", wanting(ruled.clone())).await;
    lab.branch(&source.id, "b").await.unwrap();
    let child = lab.started("b", SandboxOptions::default()).await;
    assert_eq!(lab.reach(&child.id), ruled);
    lab.engine.shut_down(AtShutDown::Leave).await;
    lab.next_engine().await;
    assert_eq!(lab.reach(&child.id), ruled);
    let names = |secrets: Vec<(SecretName, u64)>| -> Vec<SecretName> {
        secrets.into_iter().map(|(name, _)| name).collect()
    };
    let listed = names(lab.engine.secrets().await.unwrap());
    assert_eq!(listed, std::slice::from_ref(&key));
    let mut holding = Vec::new();
    for file in files_below(&lab.config.state_dir) {
        if std::fs::read(&file).unwrap().windows(7).any(|part| part == b"sk-1f9e") {
            holding.push(file);
        }
    }
    assert_eq!(holding, [lab.config.state_dir.join("secrets")], "one file has it");
    lab.engine.remove_secret(key.clone()).await.unwrap();
    let gone = lab.engine.remove_secret(key).await.unwrap_err();
    assert!(matches!(gone, EngineError::UnknownSecret { .. }), "{gone}");
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let files = |path: PathBuf| if path.is_dir() { files_below(&path) } else { vec![path] };
    entries.flat_map(files).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn header_rules_need_a_guest_that_trusts_this_gateway() {
    let mut lab = Fixture::new().await;
    let plain = lab.started("t", SandboxOptions::default()).await;
    lab.guests.refuse_files.store(true, Ordering::Relaxed);
    let untrusting = lab.engine.build_template(template("untrusting"), Arc::new(NoProgress));
    untrusting.await.unwrap();
    let untrusting = lab.started("untrusting", SandboxOptions::default()).await;
    let ruled = || with_rule("x");
    let refused = |error: EngineError| {
        assert!(matches!(error, EngineError::GatewayNotTrusted { .. }), "{error}");
        assert!(error.to_string().contains("header rules do not work here"), "{error}");
    };
    refused(lab.engine.fork_with(&tag("untrusting"), 1, wanting(ruled())).await.unwrap_err());
    refused(lab.engine.set_network(&untrusting.id, ruled(), None).await.unwrap_err());
    assert_eq!(lab.reach(&untrusting.id), NetworkPolicy::default());
    lab.engine.set_network(&plain.id, ruled(), None).await.unwrap();
    // Another authority, as on another host.
    lab.engine.shut_down(AtShutDown::Leave).await;
    std::fs::remove_file(lab.config.state_dir.join("gateway-ca.pem")).unwrap();
    lab.next_engine().await;
    refused(lab.engine.fork_with(&tag("t"), 1, wanting(ruled())).await.unwrap_err());
    lab.started("t", wanting(policy("a.example"))).await;
}
