//! Watches that the guest keeps: whoever is connected finds them by their name, with what they have
//! seen meanwhile. A branch's child has those of its source.

use std::time::Duration;

use forkd_protocol::{Keep, Reply, Request};

use super::call::Deadline;
use super::files::{Depth, Mounts, ToldChange, WATCH_DEADLINE, WatchExtent};
use super::{GuestAgent, GuestError, OUTPUT_BYTES_MAX};

/// What one has seen since it was asked last. All of it comes from the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptChanges {
    /// What it was kept with.
    pub record: String,
    /// In their order. A [`FileChange::Lost`](super::FileChange::Lost) stands for those that were
    /// too many to be kept.
    pub changes: Vec<ToldChange>,
}

impl GuestAgent {
    /// Watches a file or a directory from now on, under a name that no other watch has.
    ///
    /// # Errors
    /// See [`GuestError`]; there are at most 64.
    pub async fn keep_watch(
        &self,
        name: &str,
        record: &str,
        path: &str,
        extent: impl Into<WatchExtent>,
    ) -> Result<(), GuestError> {
        let keep = Keep { name: name.to_owned(), record: record.to_owned() };
        let WatchExtent { depth, mounts } = extent.into();
        let (path, recursive) = (path.to_owned(), depth == Depth::Recursive);
        let local_only = mounts == Mounts::Local;
        let request = Request::KeepWatch { keep, path, recursive, local_only };
        self.ask_done("keep a watch", request, WATCH_DEADLINE).await
    }

    /// What a kept watch has seen, with all that was done before. What is told here is not told
    /// again.
    ///
    /// # Errors
    /// See [`GuestError`]; the watched path may be gone.
    pub async fn take_changes(
        &self,
        name: &str,
        within: Duration,
    ) -> Result<KeptChanges, GuestError> {
        let mut call = self.call("take changes", Deadline::after(within))?;
        let output_credit = call.window();
        call.begin(&Request::TakeChanges { name: name.to_owned(), output_credit })?;
        let record = match call.next().await? {
            Reply::KeptWatch { record } => record,
            other => return Err(call.unexpected(&other)),
        };
        let (mut changes, mut bytes) = (Vec::new(), 0);
        loop {
            match call.next().await? {
                Reply::Change { kind, path, from, entry, detail } => {
                    let change = ToldChange::of((&kind, detail), path, from, entry);
                    bytes += change.bytes();
                    if bytes > OUTPUT_BYTES_MAX {
                        return Err(GuestError::OutputTooLarge { limit: OUTPUT_BYTES_MAX });
                    }
                    changes.push(change);
                }
                Reply::Done {} => {
                    call.finish();
                    return Ok(KeptChanges { record, changes });
                }
                other => return Err(call.unexpected(&other)),
            }
        }
    }

    /// Ends a kept watch.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn end_watch(&self, name: &str, within: Duration) -> Result<(), GuestError> {
        self.ask_done("end a watch", Request::EndWatch { name: name.to_owned() }, within).await
    }
}
