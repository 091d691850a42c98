//! The content of a guest's files: collected, or piece by piece.

use std::ops::Range;
use std::time::Duration;

use forkd_protocol::{Reply, Request};

use super::call::{Call, Deadline};
use super::{GuestAgent, GuestError, OUTPUT_BYTES_MAX};

/// For errors.
const WHAT: &str = "read file";

/// A file's content on its way from the guest. What is not taken stays in the guest, so a file of
/// any size costs a window of it. Dropping this ends the reading.
pub struct FileReader {
    call: Call,
    /// Taken so far, in bytes.
    taken: u64,
    most: u64,
    /// How long the guest may take for a piece.
    within: Duration,
    /// The first piece came with the answer that the file can be read.
    first: Option<Vec<u8>>,
    ended: bool,
}

impl FileReader {
    /// The next piece; `None` at the end. After an error nothing follows.
    ///
    /// # Errors
    /// [`GuestError::FileTooLarge`] beyond the size that was allowed; see [`GuestError`].
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, GuestError> {
        if let Some(first) = self.first.take() {
            return Ok(Some(first));
        }
        if self.ended {
            return Ok(None);
        }
        self.receive().await
    }

    async fn receive(&mut self) -> Result<Option<Vec<u8>>, GuestError> {
        self.call.set_deadline(Deadline::after(self.within));
        match self.call.next().await? {
            Reply::FileData { data } => {
                self.taken += data.len() as u64;
                match self.taken <= self.most {
                    true => Ok(Some(data)),
                    false => Err(GuestError::FileTooLarge { limit: self.most }),
                }
            }
            Reply::FileEnd { bytes } => {
                self.call.finish();
                self.ended = true;
                whole(self.taken, bytes).map(|()| None)
            }
            other => Err(self.call.unexpected(&other)),
        }
    }
}

/// Whether all that the guest says it has sent has arrived.
fn whole(arrived: u64, sent: u64) -> Result<(), GuestError> {
    if arrived == sent {
        return Ok(());
    }
    let reason = format!("{arrived} bytes of {sent} arrived");
    Err(GuestError::Protocol { what: WHAT, reason })
}

impl GuestAgent {
    /// Opens a file of at most `most` bytes to be read piece by piece. The guest may take `within`
    /// for each piece; the first has come when this returns, so whatever cannot be read is an error
    /// here.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn open_file(
        &self,
        path: &str,
        most: u64,
        within: Duration,
    ) -> Result<FileReader, GuestError> {
        // One more tells that it is too large.
        self.open(path, 0..most.saturating_add(1), most, within).await
    }

    /// As [`Self::open_file`], but a part of it. What lies behind its end is not there, and no
    /// error.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn open_file_part(
        &self,
        path: &str,
        part: Range<u64>,
        within: Duration,
    ) -> Result<FileReader, GuestError> {
        let most = part.end.saturating_sub(part.start);
        self.open(path, part, most, within).await
    }

    async fn open(
        &self,
        path: &str,
        asked: Range<u64>,
        most: u64,
        within: Duration,
    ) -> Result<FileReader, GuestError> {
        let call = self.begin_reading(path, asked, within)?;
        let mut reader = FileReader { call, taken: 0, most, within, first: None, ended: false };
        reader.first = reader.receive().await?;
        Ok(reader)
    }

    /// Reads a whole file of at most [`OUTPUT_BYTES_MAX`] bytes.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn read_file(&self, path: &str, within: Duration) -> Result<Vec<u8>, GuestError> {
        let mut call = self.begin_reading(path, 0..OUTPUT_BYTES_MAX + 1, within)?;
        let mut content = call.collected();
        loop {
            match call.next().await? {
                Reply::FileData { data } => match content.stdout(&data) {
                    Err(GuestError::OutputTooLarge { limit }) => {
                        return Err(GuestError::FileTooLarge { limit });
                    }
                    added => added?,
                },
                Reply::FileEnd { bytes } => {
                    call.finish();
                    let content = content.stdout;
                    return whole(content.len() as u64, bytes).map(|()| content);
                }
                other => return Err(call.unexpected(&other)),
            }
        }
    }

    fn begin_reading(
        &self,
        path: &str,
        part: Range<u64>,
        within: Duration,
    ) -> Result<Call, GuestError> {
        let mut call = self.call(WHAT, Deadline::after(within))?;
        call.begin(&Request::ReadFile {
            path: path.to_owned(),
            offset: part.start,
            length: Some(part.end.saturating_sub(part.start)),
            output_credit: call.window(),
        })?;
        Ok(call)
    }
}
