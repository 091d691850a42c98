//! What is too large to be held on its way from the body of a request: a file for a guest, an
//! artifact to be imported.
//!
//! Guarantees: a few pieces of it are in memory, whatever its length, and they count among the
//! bodies of all requests; the client is read no faster than its bytes are used; a body that breaks
//! off leaves the guest's file as it was, and no snapshot.

use std::io::{self, Read};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody as _};
use forkd_api::ErrorCode;
use forkd_engine::guest::{FileContent, FileWrite, InputPiece};
use forkd_engine::{Engine, EngineError, ImportRequest, Snapshot};
use forkd_types::{SandboxId, limit};
use futures_util::StreamExt as _;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::app::App;
use crate::budget::BodyAccount;
use crate::extract::no_memory_for_bodies;
use crate::failure::Failure;

/// Pieces of a body that are read although nobody wants them.
const UNWANTED_PIECES_MAX: u32 = 1000;
/// A client that takes longer to send what nobody wants is cut off.
const UNWANTED_DEADLINE: Duration = Duration::from_secs(60);

/// What a body may have, and what it holds.
struct Bounds {
    most: u64,
    held: usize,
}

/// Writes `body` to a file of a sandbox.
pub(crate) async fn upload(
    app: App,
    id: SandboxId,
    file: FileWrite,
    body: Body,
    account: Option<BodyAccount>,
) -> Result<(), Failure> {
    let (pieces, source) = mpsc::channel(1);
    let written = app.engine.write_file(&id, file, FileContent::Pieces(source));
    tokio::pin!(written);
    let bounds = Bounds { most: limit::UPLOAD_BYTES_MAX, held: limit::UPLOAD_BYTES_HELD };
    let piece = |data: Option<Bytes>| InputPiece {
        eof: data.is_none(),
        data: data.map(Vec::from).unwrap_or_default(),
    };
    let passed_on = pass_on(body, account.as_ref(), bounds, pieces, piece);
    tokio::pin!(passed_on);
    tokio::select! {
        biased;
        // It ends before the body when the guest refuses it. Many clients hear why only when they
        // have sent all: before that, a connection that closes is all that they see.
        result = &mut written => {
            timeout(UNWANTED_DEADLINE, passed_on).await.ok();
            return Ok(result?);
        }
        passed_on = &mut passed_on => passed_on?,
    }
    Ok(written.await?)
}

/// Imports the artifact that `body` is.
pub(crate) async fn import_artifact(
    engine: Engine,
    request: ImportRequest,
    body: Body,
    account: Option<BodyAccount>,
) -> Result<Snapshot, Failure> {
    let (pieces, source) = mpsc::channel(1);
    let source = Pieces { source, piece: Some(Bytes::new()) };
    // Of its own: what is dropped in the middle would go on without being heard of.
    let imported = tokio::spawn(async move { engine.import_snapshot(request, source).await });
    let bounds = Bounds { most: limit::ARTIFACT_BYTES_MAX, held: limit::ARTIFACT_BYTES_HELD };
    let passed_on = pass_on(body, account.as_ref(), bounds, pieces, |piece| piece).await;
    let imported = imported.await;
    let died = |error| EngineError::Internal(format!("an import died: {error}"));
    let imported = imported.map_err(died)?;
    // A body that broke off is the cause of what the import then says.
    if imported.is_err() {
        passed_on?
    }
    Ok(imported?)
}

/// The pieces of a body, for one who reads and may wait. Without the end of the body they end with
/// an error.
struct Pieces {
    source: mpsc::Receiver<Option<Bytes>>,
    /// None after the last one.
    piece: Option<Bytes>,
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(piece) = &mut self.piece {
            if !piece.is_empty() {
                let count = piece.len().min(buffer.len());
                buffer[..count].copy_from_slice(&piece.split_to(count));
                return Ok(count);
            }
            let broken = || io::Error::other("the body was not received to its end");
            self.piece = self.source.blocking_recv().ok_or_else(broken)?;
        }
        Ok(0)
    }
}

/// Gives the pieces of `body` on, and that they are all.
async fn pass_on<T>(
    body: Body,
    account: Option<&BodyAccount>,
    bounds: Bounds,
    pieces: mpsc::Sender<T>,
    piece: impl Fn(Option<Bytes>) -> T,
) -> Result<(), Failure> {
    let too_large = || {
        let text = format!("the file has more than {} bytes", bounds.most);
        Failure::new(ErrorCode::RequestTooLarge, text)
    };
    if body.size_hint().lower() > bounds.most {
        return Err(too_large());
    }
    let (mut body, mut taken, mut unwanted) = (body.into_data_stream(), 0, 0);
    while let Some(data) = body.next().await {
        let data = data.map_err(|error| {
            let text = format!("the body was not received: {error}");
            Failure::new(ErrorCode::BadRequest, text)
        })?;
        // Who sends nothing holds nothing.
        if taken == 0
            && !data.is_empty()
            && account.is_some_and(|account| account.pay(bounds.held).is_err())
        {
            return Err(no_memory_for_bodies());
        }
        taken += data.len() as u64;
        if taken > bounds.most {
            return Err(too_large());
        }
        // Nobody takes it: then the answer says why. A client that has sent what it had hears it
        // best, but it may have very much.
        if pieces.send(piece(Some(data))).await.is_err() {
            unwanted += 1;
            if unwanted > UNWANTED_PIECES_MAX {
                break;
            }
        }
    }
    pieces.send(piece(None)).await.ok();
    Ok(())
}
