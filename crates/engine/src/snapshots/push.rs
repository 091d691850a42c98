//! A snapshot into a registry, and one out of it.
//!
//! Guarantees: a pull asks the questions of an import, in the same order, before it fetches any
//! memory, and leaves nothing when it fails or is cancelled. A push that fails or is cancelled
//! leaves no manifest; blobs that nothing names stay in the registry until it collects them.

use std::sync::Arc;

use forkd_oci::RegistryReference;
use forkd_store::SnapshotRow;
use forkd_types::{OperationId, SnapshotTag};
use tracing::Instrument as _;

use super::export::{Label, Told, failed};
use super::registry::{Pushed, RegistryReader, RegistryWriter};
use super::{ImportRequest, Snapshots};
use crate::background::{blocking, turn};
use crate::host::ArtifactMachines;
use crate::operation::{OperationKind, Running, Subject};
use crate::{Caller, EngineError};

impl Snapshots {
    /// Puts the snapshot of `row` where `to` says.
    pub(crate) async fn push(
        self: &Arc<Self>,
        row: SnapshotRow,
        label: Label,
        to: RegistryReference,
    ) -> Result<Pushed, EngineError> {
        let subject = Subject::of_seen_snapshot(&row.tag, label.owner.clone());
        let id = OperationId::random();
        let operation = Arc::new(self.operations.start(id, OperationKind::Push, subject));
        let span = tracing::info_span!("push", snapshot = %row.tag, operation = %operation.id());
        let work = async {
            let (export, _turn) = self.prepare_export(row.clone(), label, &operation).await?;
            let running = Arc::clone(&operation);
            blocking(move || {
                running.step("send");
                let mut writer = RegistryWriter::new(&to, &running)?;
                let mut told = Told::new(&running);
                let sent = export.send(&mut writer, &mut |done, all| told.at(done, all));
                sent.map_err(|error| failed(&row, &running, error))?;
                let pushed = writer.pushed();
                tracing::info!(bytes = pushed.bytes, sent = pushed.bytes_sent, "pushed");
                Ok(pushed)
            })
            .await?
        };
        let pushed = work.instrument(span).await;
        operation.finish(&pushed);
        pushed
    }

    /// Makes a snapshot, for `caller`, of what `from` names, on a host that is one of `machines`.
    pub(crate) async fn pull(
        self: &Arc<Self>,
        request: ImportRequest,
        from: RegistryReference,
        caller: Caller,
        machines: ArtifactMachines,
    ) -> Result<SnapshotTag, EngineError> {
        let subject = match &request.tag {
            Some(tag) => {
                caller.check_new("tag", tag)?;
                Subject::of_snapshot(tag)
            }
            // It is known once the manifest is here.
            None => Subject::of_owner(caller.owner().clone()),
        };
        let id = OperationId::random();
        let operation = Arc::new(self.operations.start(id, OperationKind::Pull, subject));
        let span = tracing::info_span!("pull", reference = %from, operation = %operation.id());
        let work = async {
            let _turn = operation.unless_cancelled(turn(&self.importing)).await??;
            let (snapshots, running) = (Arc::clone(self), Arc::clone(&operation));
            let pull =
                move || snapshots.pull_blocking(&request, &from, &caller, &machines, &running);
            blocking(pull).await?
        };
        let pulled = work.instrument(span).await;
        operation.finish(&pulled);
        self.publish_in_background(pulled.as_ref().map_err(Clone::clone)?);
        pulled
    }

    fn pull_blocking(
        &self,
        request: &ImportRequest,
        from: &RegistryReference,
        caller: &Caller,
        machines: &ArtifactMachines,
        operation: &Arc<Running>,
    ) -> Result<SnapshotTag, EngineError> {
        operation.step("read manifest");
        let reader = RegistryReader::new(from, operation)?;
        let admitted = self.admit(request, caller, machines, reader, operation.id())?;
        self.take_in(admitted, operation)
    }
}
