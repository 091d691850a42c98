//! A file on its way into a guest. A few pieces of it are in memory, whatever its length.

use std::io::Write as _;

use axum::body::Bytes;
use flate2::write::GzDecoder;
use forkd_engine::guest::{FileContent, FileWrite, InputPiece};
use forkd_types::limit;
use futures_util::{Stream, StreamExt as _};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::at::At;
use crate::failure::{Failure, Kind};

/// A client that sends nothing for so long has gone.
const IDLE_DEADLINE: std::time::Duration = std::time::Duration::from_secs(60);
/// Packed bytes that are unpacked at a time: they become a thousand times as many at the most.
const PACKED_BYTES: usize = 1024;

/// How a body is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Packing {
    None,
    Gzip,
}

impl Packing {
    pub(super) fn of(encoding: &str) -> Result<Self, Failure> {
        match encoding {
            "" | "identity" => Ok(Self::None),
            "gzip" => Ok(Self::Gzip),
            _ => Err(Failure::field("Content-Encoding", "must be gzip or absent")),
        }
    }
}

/// Writes `body` to a file. One that breaks off leaves the file as it was.
pub(super) async fn write<S, E>(
    at: &At,
    file: FileWrite,
    body: S,
    packing: Packing,
) -> Result<(), Failure>
where
    S: Stream<Item = Result<Bytes, E>> + Send,
    E: std::fmt::Display,
{
    let (pieces, source) = mpsc::channel(1);
    let (engine, id) = (at.shared.engine.clone(), at.id.clone());
    // Of its own: what has come whole is written although the client goes away.
    let written =
        tokio::spawn(
            async move { engine.write_file(&id, file, FileContent::Pieces(source)).await },
        );
    let unfinished = Unfinished(Some(written.abort_handle()));
    pass_on(body, packing, pieces).await?;
    unfinished.finish();
    let written = written.await.map_err(|_| Failure::new(Kind::Internal, "a task died"))?;
    Ok(written?)
}

/// A file that has not come whole. Dropping this leaves the guest's file as it was.
struct Unfinished(Option<AbortHandle>);

impl Unfinished {
    fn finish(mut self) {
        self.0 = None;
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

async fn pass_on<S, E>(
    body: S,
    packing: Packing,
    pieces: mpsc::Sender<InputPiece>,
) -> Result<(), Failure>
where
    S: Stream<Item = Result<Bytes, E>> + Send,
    E: std::fmt::Display,
{
    let mut body = std::pin::pin!(body);
    let mut decoder = (packing == Packing::Gzip).then(|| GzDecoder::new(Vec::new()));
    let mut sent = Sent { pieces, bytes: 0, is_wanted: true };
    loop {
        let next = timeout(IDLE_DEADLINE, body.next()).await;
        let next = next.map_err(|_| Failure::field("body", "the client sends nothing more"))?;
        let Some(data) = next else { break };
        let data = data.map_err(|error| Failure::field("body", &error.to_string()))?;
        match &mut decoder {
            None => sent.send(data.to_vec()).await?,
            Some(decoder) => {
                for packed in data.chunks(PACKED_BYTES) {
                    decoder.write_all(packed).map_err(|error| not_gzip(&error))?;
                    decoder.flush().map_err(|error| not_gzip(&error))?;
                    sent.send(std::mem::take(decoder.get_mut())).await?;
                }
            }
        }
    }
    if let Some(decoder) = decoder {
        sent.send(decoder.finish().map_err(|error| not_gzip(&error))?).await?;
    }
    sent.pieces.send(InputPiece { data: Vec::new(), eof: true }).await.ok();
    Ok(())
}

fn not_gzip(error: &std::io::Error) -> Failure {
    Failure::field("body", &format!("is no gzip: {error}"))
}

struct Sent {
    pieces: mpsc::Sender<InputPiece>,
    bytes: u64,
    /// The guest may have refused it. Then the answer says why once the client has sent all.
    is_wanted: bool,
}

impl Sent {
    async fn send(&mut self, data: Vec<u8>) -> Result<(), Failure> {
        self.bytes += data.len() as u64;
        if self.bytes > limit::UPLOAD_BYTES_MAX {
            let text = format!("the file has more than {} bytes", limit::UPLOAD_BYTES_MAX);
            return Err(Failure::new(Kind::TooLarge, text));
        }
        if self.is_wanted && !data.is_empty() {
            let piece = InputPiece { data, eof: false };
            self.is_wanted = self.pieces.send(piece).await.is_ok();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use futures_util::stream;

    use super::*;

    async fn received(packing: Packing, chunks: Vec<Vec<u8>>) -> Result<(Vec<u8>, usize), Failure> {
        let (pieces, mut source) = mpsc::channel(1);
        let body = stream::iter(chunks.into_iter().map(|c| Ok::<_, String>(Bytes::from(c))));
        let passed_on = tokio::spawn(async move { pass_on(body, packing, pieces).await });
        let (mut all, mut longest, mut ended) = (Vec::new(), 0, false);
        while let Some(piece) = source.recv().await {
            longest = longest.max(piece.data.len());
            all.extend(piece.data);
            ended |= piece.eof;
        }
        passed_on.await.unwrap()?;
        assert!(ended, "the guest hears that it was all");
        Ok((all, longest))
    }

    #[tokio::test]
    async fn a_packed_body_is_unpacked_in_pieces_of_bounded_length() {
        let content = vec![7; 20 << 20];
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(&content).unwrap();
        let packed = encoder.finish().unwrap();
        let (found, longest) = received(Packing::Gzip, vec![packed]).await.unwrap();
        assert!(found == content);
        assert!(longest <= 2 << 20, "{longest}");
    }

    #[tokio::test]
    async fn a_body_that_is_not_packed_as_it_says_never_ends_for_the_guest() {
        assert!(received(Packing::Gzip, vec![b"plain".to_vec()]).await.is_err());
        let (found, _) =
            received(Packing::None, vec![b"pl".to_vec(), b"ain".to_vec()]).await.unwrap();
        assert_eq!(found, b"plain");
    }
}
