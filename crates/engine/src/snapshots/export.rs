//! A snapshot made ready for another daemon, and sent as one file: see the crate `artifact`.
//!
//! Nothing is written on this host. Whoever reads the file decides how fast it is made; one that
//! stops reading is given up.

use std::io::{self, Write};
use std::sync::Arc;

use forkd_artifact::{
    ArtifactError, ArtifactManifest, Contents, Export, ImageReference, Limits, Machine, Parts,
    Stream,
};
use forkd_store::SnapshotRow;
use forkd_types::{OperationId, Owner, limit};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tracing::Instrument as _;

use super::Snapshots;
use super::already_here::known;
use super::parts::damaged;
use super::registry;
use crate::background::{Background, blocking};
use crate::network::InheritedNetwork;
use crate::operation::{OperationKind, Running, Subject};
use crate::{EngineError, describe};

/// Bytes that are given on at once.
const PIECE_BYTES: usize = 256 << 10;

/// A file that is being made.
#[derive(Debug)]
pub struct Exported {
    /// Its length.
    pub bytes: u64,
    /// Its content. A piece that is an error is the last one; without one, all of `bytes` come.
    pub pieces: mpsc::Receiver<Result<Vec<u8>, EngineError>>,
}

/// What an export says besides what it carries.
#[derive(Debug)]
pub(crate) struct Label {
    /// What the snapshots below are called, the nearest first.
    pub(crate) ancestors: Vec<String>,
    /// What this host is.
    pub(crate) machine: Machine,
    /// For whom it is.
    pub(crate) owner: Owner,
}

impl Snapshots {
    /// Begins to export the snapshot of `row`: when this returns, all its parts have been read once
    /// and named.
    pub(crate) async fn export(
        self: &Arc<Self>,
        row: SnapshotRow,
        label: Label,
    ) -> Result<Exported, EngineError> {
        let subject = Subject::of_seen_snapshot(&row.tag, label.owner.clone());
        let id = OperationId::random();
        let operation = Arc::new(self.operations.start(id, OperationKind::Export, subject));
        let span = tracing::info_span!("export", snapshot = %row.tag, operation = %operation.id());
        let prepared = self.prepare_export(row, label, &operation).instrument(span.clone()).await;
        let (export, turn) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => {
                operation.finish(&Err::<(), _>(error.clone()));
                return Err(error);
            }
        };
        let bytes = export.file_bytes();
        let (sender, pieces) = mpsc::channel(2);
        let background = self.background.clone();
        let work = move || {
            let _entered = span.enter();
            operation.step("send");
            let to = Pieces { sender: sender.clone(), buffer: Vec::new(), background };
            let sent = send(export, to, &operation);
            match &sent {
                Ok(()) => tracing::info!(bytes, "exported"),
                Err(error) => {
                    tracing::info!(error = describe(error), "not exported");
                    // Nobody may be there to hear it.
                    sender.try_send(Err(error.clone())).ok();
                }
            }
            operation.finish(&sent);
            drop(turn);
        };
        self.background.spawn_blocking("an export", work);
        Ok(Exported { bytes, pieces })
    }

    pub(super) async fn prepare_export(
        self: &Arc<Self>,
        row: SnapshotRow,
        label: Label,
        operation: &Arc<Running>,
    ) -> Result<(Export, OwnedSemaphorePermit), EngineError> {
        let turn = Arc::clone(&self.exporting).acquire_owned();
        let turn = operation.unless_cancelled(turn).await?;
        let turn = turn.map_err(|_| EngineError::Internal("shutting down".to_owned()))?;
        let (snapshots, operation) = (Arc::clone(self), Arc::clone(operation));
        let export = blocking(move || {
            let _held = snapshots.files.hold(&row.manifest);
            let prepared = snapshots.name_parts(&row, label, &operation);
            if let Ok(export) = &prepared {
                snapshots.note_contents(&row, export.contents());
            }
            prepared.inspect_err(|error| snapshots.note_damage(&row.tag, error))
        });
        Ok((export.await??, turn))
    }

    /// Remembers what the parts hold: an artifact that comes back has them.
    fn note_contents(&self, row: &SnapshotRow, contents: &Contents) {
        let known = known(contents, &row.manifest);
        if known == row.manifest.contents {
            return;
        }
        // Merged meanwhile, its layers are others: what is not known is sent once more.
        let noted = self.catalog.update(&row.tag, |now| now.manifest.contents = known);
        if let Err(error) = noted {
            tracing::debug!(snapshot = %row.tag, %error, "what it holds is not kept");
        }
    }

    fn name_parts(
        &self,
        row: &SnapshotRow,
        label: Label,
        operation: &Running,
    ) -> Result<Export, EngineError> {
        let disk = self.image_of(row)?.root_disk;
        if let Some((base, _)) = &disk {
            self.require_overlays(row, base)?;
        }
        let open = |id: &forkd_types::OverlayId| {
            let path = self.files.overlay(id);
            let file = std::fs::File::open(&path).map_err(|source| file_error(path, source))?;
            Ok((id.clone(), file))
        };
        let path = self.require_device_state(row)?;
        let device_state = std::fs::read(&path).map_err(|source| file_error(path, source))?;
        let overlays = row.manifest.overlays.iter().map(open);
        let overlays = overlays.collect::<Result<_, EngineError>>()?;
        let parts = Parts { device_state, layers: self.open_layers(row)?, overlays };
        let manifest = describe_snapshot(row, label, disk.map(|(_, bytes)| bytes))?;
        let key = self.keys.own()?;
        operation.step("name parts");
        let mut told = Told::new(operation);
        let prepared = Export::prepare(manifest, parts, &key, &mut |done, all| told.at(done, all));
        prepared.map_err(|error| failed(row, operation, error))
    }
}

fn describe_snapshot(
    row: &SnapshotRow,
    label: Label,
    disk_bytes: Option<forkd_types::ByteCount>,
) -> Result<ArtifactManifest, EngineError> {
    let of_row = &row.manifest;
    let network = row.network.as_deref().map(|text| {
        let carried = InheritedNetwork::carried(text);
        carried.map_err(|error| EngineError::Internal(error.to_string()))?.text()
    });
    let created = row.created_at.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Ok(ArtifactManifest {
        format: ArtifactManifest::FORMAT,
        forkd_version: env!("CARGO_PKG_VERSION").to_owned(),
        tag: row.tag.shown_to(row.tag.owner()),
        created_at_unix: created.as_secs(),
        ancestors: label.ancestors,
        machine: Machine {
            vmm: of_row.machine.clone(),
            network_device: of_row.network_device,
            gateway_certificate: of_row.gateway_certificate.clone(),
            ..label.machine
        },
        memory_bytes: of_row.memory,
        vcpus: of_row.vcpus,
        image: ImageReference {
            name: of_row.image.clone(),
            content_hash: of_row.image_hash.clone(),
            disk_bytes,
        },
        limits: Limits { memory_bytes: row.limits.memory, own_network: row.limits.own_network },
        network: network.transpose()?,
        device_state: Stream { bytes: 0, chunks: Vec::new() },
        layers: Vec::new(),
        overlays: Vec::new(),
    })
}

fn file_error(path: std::path::PathBuf, source: io::Error) -> EngineError {
    forkd_store::StoreError::File { what: "read", path, source }.into()
}

pub(super) fn failed(row: &SnapshotRow, operation: &Running, error: ArtifactError) -> EngineError {
    let error = match registry::cause(error) {
        Ok(cause) => return cause,
        Err(error) => error,
    };
    match error {
        ArtifactError::Stopped => EngineError::Cancelled { id: operation.id().clone() },
        ArtifactError::Store(error) => damaged(row, error),
        ArtifactError::TooLarge(_) => {
            EngineError::BadRequest { field: "tag", problem: error.to_string() }
        }
        other => EngineError::Internal(describe(&other)),
    }
}

fn send(export: Export, mut to: Pieces, operation: &Running) -> Result<(), EngineError> {
    let mut told = Told::new(operation);
    let sent = export.write(&mut to, &mut |done, all| told.at(done, all));
    sent.map_err(|error| match error {
        ArtifactError::Stopped => EngineError::Cancelled { id: operation.id().clone() },
        other => EngineError::Internal(describe(&other)),
    })
}

/// Tells an operation how far it is, seldom enough for those who read events, and hears that it is
/// cancelled.
pub(super) struct Told<'a> {
    operation: &'a Running,
    last: Option<u64>,
}

impl<'a> Told<'a> {
    pub(super) const fn new(operation: &'a Running) -> Self {
        Self { operation, last: None }
    }

    pub(super) fn at(&mut self, done: u64, all: u64) -> Result<(), ArtifactError> {
        self.operation.check().map_err(|_| ArtifactError::Stopped)?;
        let percent = done.saturating_mul(100).checked_div(all);
        if percent != self.last {
            self.last = percent;
            self.operation.progress(done, all);
        }
        Ok(())
    }
}

/// Where the file goes.
struct Pieces {
    sender: mpsc::Sender<Result<Vec<u8>, EngineError>>,
    buffer: Vec<u8>,
    background: Background,
}

impl Pieces {
    fn send(&mut self) -> io::Result<()> {
        let piece = std::mem::take(&mut self.buffer);
        let sent = async {
            tokio::select! {
                biased;
                () = self.background.ending() => false,
                sent = self.sender.send_timeout(Ok(piece), limit::EXPORT_STALL_MAX) => {
                    sent.is_ok()
                }
            }
        };
        match self.background.runtime().block_on(sent) {
            true => Ok(()),
            false => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= PIECE_BYTES {
            self.send()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() { Ok(()) } else { self.send() }
    }
}
