//! The cache of steps: snapshots whose tags are keys. Which of them are there, and which go.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forkd_api::Snapshot;
use forkd_client::{Client, ClientError, Dependents};
use forkd_recipe::Key;
use forkd_types::{ByteCount, SnapshotStatus};

/// How much of the cache stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// What is older goes.
    pub(crate) age: Duration,
    /// What is beyond this goes, the oldest first.
    pub(crate) size: ByteCount,
}

impl Bounds {
    /// After every build.
    pub(crate) const USUAL: Self =
        Self { age: Duration::from_secs(7 * 24 * 3600), size: ByteCount::from_mib(20 << 10) };
}

/// The caller's own steps that can be gone on from.
pub(super) async fn tags(client: &Client) -> Result<BTreeSet<String>, ClientError> {
    let mut all = client.snapshots().await?;
    all.retain(|found| Key::is_tag(&found.tag) && found.status == SnapshotStatus::Ready);
    Ok(all.into_iter().filter(|found| found.bootable).map(|found| found.tag).collect())
}

/// Removes steps that are too old or too many, unless something builds on them. Those in `keep`
/// stay. Returns the tags that are gone.
pub(crate) async fn prune(
    client: &Client,
    bounds: Bounds,
    keep: &BTreeSet<String>,
) -> Result<Vec<String>, ClientError> {
    let mut all = client.snapshots().await?;
    all.retain(|found| Key::is_tag(&found.tag) && found.status != SnapshotStatus::Writing);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut gone = Vec::new();
    for tag in surplus(all, now, bounds, keep) {
        match client.delete_snapshot(&tag, Dependents::Refuse).await {
            Ok(()) => gone.push(tag),
            Err(ClientError::Api(failure))
                if matches!(failure.code.as_str(), "snapshot_in_use" | "snapshot_not_found") => {}
            Err(error) => return Err(error),
        }
    }
    Ok(gone)
}

/// What is beyond the bounds. The newest comes first: it may build on the others.
fn surplus(
    mut steps: Vec<Snapshot>,
    now: Duration,
    bounds: Bounds,
    keep: &BTreeSet<String>,
) -> Vec<String> {
    steps.sort_by_key(|step| std::cmp::Reverse(step.created_at_unix));
    let mut bytes = 0;
    steps.retain(|step| {
        bytes += step.stored_bytes.unwrap_or_default();
        let age = now.saturating_sub(Duration::from_secs(step.created_at_unix));
        let is_surplus = age > bounds.age || bytes > bounds.size.get();
        is_surplus && !keep.contains(&step.tag)
    });
    steps.into_iter().map(|step| step.tag).collect()
}

/// Removes a step, if it is there. What builds on it keeps working.
pub(super) async fn remove(client: &Client, tag: &str) -> Result<(), ClientError> {
    match client.delete_snapshot(tag, Dependents::Keep).await {
        Err(ClientError::Api(failure)) if failure.code == "snapshot_not_found" => Ok(()),
        removed => removed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(tag: &str, created_at_unix: u64, bytes: u64) -> Snapshot {
        let stored_bytes = Some(bytes);
        Snapshot { tag: tag.into(), created_at_unix, stored_bytes, ..Snapshot::default() }
    }

    #[test]
    fn the_old_and_the_surplus_go_newest_first_and_what_is_kept_counts() {
        let steps = || vec![step("old", 10, 1), step("new", 95, 6), step("mid", 90, 5)];
        let left = |age, bytes, keep: &[&str]| {
            let bounds = Bounds { age: Duration::from_secs(age), size: ByteCount::new(bytes) };
            let keep = keep.iter().map(|&tag| tag.to_owned()).collect();
            surplus(steps(), Duration::from_secs(100), bounds, &keep)
        };
        assert_eq!(left(50, 100, &[]), ["old"]);
        assert_eq!(left(100, 100, &[]), [""; 0]);
        assert_eq!(left(100, 10, &[]), ["mid", "old"]);
        assert_eq!(left(100, 10, &["mid"]), ["old"]);
        assert_eq!(left(0, 0, &[]), ["new", "mid", "old"]);
    }
}
