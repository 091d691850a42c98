//! Puts blobs and manifests into a registry.
//!
//! ```text
//! POST uploads/ -> where      PUT where?digest= with all of it
//!   broken off?  GET where -> how much came      PATCH where with the rest, PUT where?digest=
//! ```
//!
//! Guarantees: what was received is not sent again, if the registry can say how much it was; if
//! not, the blob is begun anew. A registry cannot lead an upload to another host without TLS, nor
//! to this host, and credentials go to the registry alone.

use std::time::Duration;

use reqwest::header::{CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, LOCATION, RANGE};
use reqwest::{Response, StatusCode, Url};

use crate::limit::DOCUMENT_BYTES_MAX;
use crate::registry::{ATTEMPTS, Registry, allowed_url, pause};
use crate::{Digest, OciError};

/// For one request that carries content.
const REQUEST_DEADLINE: Duration = Duration::from_secs(240);
const BYTES: &str = "application/octet-stream";

/// Why an attempt has not succeeded, and what may.
enum Setback {
    /// To go on where it broke off, after a while.
    GoOn(OciError, Duration),
    /// To begin anew: the registry does not know the upload any more, or not as we do.
    Anew(OciError),
    /// Nothing.
    Final(OciError),
}

impl Setback {
    fn of_transfer(error: OciError) -> Self {
        match error {
            error @ OciError::Unreachable { .. } => Self::GoOn(error, Duration::from_millis(100)),
            error => Self::Final(error),
        }
    }
}

impl Registry {
    /// Whether the repository has a blob.
    pub(crate) async fn has(&self, digest: &Digest) -> Result<bool, OciError> {
        let what = format!("the blob {digest}");
        let request = self.client.head(self.url(&format!("blobs/{digest}"))?);
        match self.ask(&what, request).await {
            Ok(_) => Ok(true),
            Err(OciError::NotFound(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Puts a blob into the repository.
    pub(crate) async fn upload(&self, digest: &Digest, content: &[u8]) -> Result<(), OciError> {
        let what = format!("the upload of {digest}");
        let (mut place, mut attempt) = (None, 1);
        loop {
            let setback = match self.attempt(&what, digest, content, &mut place).await {
                Ok(()) => return Ok(()),
                Err(setback) => setback,
            };
            let error = match setback {
                Setback::Final(error) => return Err(error),
                Setback::GoOn(error, pause) => {
                    tokio::time::sleep(pause).await;
                    error
                }
                Setback::Anew(error) => {
                    place = None;
                    error
                }
            };
            if attempt >= ATTEMPTS {
                return Err(error);
            }
            tracing::debug!(%error, "the upload goes on");
            attempt += 1;
            // It may have come, and only the answer not.
            if self.has(digest).await.unwrap_or(false) {
                return Ok(());
            }
        }
    }

    /// Goes on with the upload at `place`, or begins one there.
    async fn attempt(
        &self,
        what: &str,
        digest: &Digest,
        content: &[u8],
        place: &mut Option<Url>,
    ) -> Result<(), Setback> {
        let (mut at, received) = match place.take() {
            Some(known) => self.received(what, known).await?,
            None => {
                let begun = self.client.post(self.url("blobs/uploads/").map_err(Setback::Final)?);
                let begun = begun.header(CONTENT_LENGTH, 0);
                let answer = self.ask(what, begun).await.map_err(Setback::of_transfer)?;
                (self.location(what, &answer)?, 0)
            }
        };
        *place = Some(at.clone());
        let Some(rest) = content.get(received..) else {
            return Err(Setback::Anew(OciError::damaged(what, "more has come than was sent")));
        };
        let mut body = rest;
        if received > 0 {
            if !rest.is_empty() {
                let range = format!("{received}-{}", content.len() - 1);
                let patch = self.client.patch(at).header(CONTENT_RANGE, range);
                let answer = self.carry(what, patch, rest).await?;
                at = self.location(what, &answer)?;
                *place = Some(at.clone());
            }
            body = &[];
        }
        at.query_pairs_mut().append_pair("digest", &digest.to_string());
        self.carry(what, self.client.put(at), body).await.map(drop)
    }

    /// Where an upload goes on, and how many bytes have come.
    async fn received(&self, what: &str, place: Url) -> Result<(Url, usize), Setback> {
        let request = self.client.get(place.clone());
        let answer = match self.ask(what, request).await {
            Ok(answer) => answer,
            Err(error @ OciError::Unreachable { .. }) => return Err(Setback::of_transfer(error)),
            Err(error) => return Err(Setback::Anew(error)),
        };
        let place = match answer.headers().contains_key(LOCATION) {
            true => self.location(what, &answer)?,
            false => place,
        };
        let range = answer.headers().get(RANGE).and_then(|value| value.to_str().ok());
        let range = range.map(|text| text.trim_start_matches("bytes="));
        let last = range.and_then(|text| text.strip_prefix("0-")?.parse::<usize>().ok());
        // Registries say `0-0` of nothing too. Of one byte it is wrong, which the digest shows.
        let received = match last {
            None | Some(0) => 0,
            Some(last) => last.saturating_add(1),
        };
        Ok((place, received))
    }

    /// Sends content, once.
    async fn carry(
        &self,
        what: &str,
        request: reqwest::RequestBuilder,
        body: &[u8],
    ) -> Result<Response, Setback> {
        let request = request.header(CONTENT_TYPE, BYTES).header(CONTENT_LENGTH, body.len());
        let request = request.timeout(REQUEST_DEADLINE).body(body.to_vec());
        let answer = self.send(what, &request).await.map_err(Setback::of_transfer)?;
        let status = answer.status();
        if status.is_success() {
            return Ok(answer);
        }
        let after = pause(&answer, 1);
        let error = self.refusal(what, answer).await;
        Err(match status {
            StatusCode::TOO_MANY_REQUESTS => Setback::GoOn(error, after),
            status if status.is_server_error() => Setback::GoOn(error, after),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::PAYLOAD_TOO_LARGE => {
                Setback::Final(error)
            }
            _ => Setback::Anew(error),
        })
    }

    fn location(&self, what: &str, answer: &Response) -> Result<Url, Setback> {
        let said = answer.headers().get(LOCATION).and_then(|value| value.to_str().ok());
        let place = said.and_then(|said| answer.url().join(said).ok());
        let place = place.and_then(|place| allowed_url(&self.base, place.as_str()));
        let problem = "it does not say where to, or where nothing may be sent";
        place.ok_or_else(|| Setback::Final(OciError::damaged(what, problem)))
    }

    /// Puts a manifest under the tag of the reference.
    pub(crate) async fn put_manifest(&self, kind: &str, content: Vec<u8>) -> Result<(), OciError> {
        let what = format!("the manifest of {}", self.reference);
        if content.len() as u64 > DOCUMENT_BYTES_MAX {
            return Err(OciError::TooLarge { what, max: format!("{DOCUMENT_BYTES_MAX} bytes") });
        }
        let missing = || OciError::damaged(&what, "it needs a tag to be pushed");
        let tag = self.reference.tag.as_deref().ok_or_else(missing)?;
        let request = self.client.put(self.url(&format!("manifests/{tag}"))?);
        let request = request.header(CONTENT_TYPE, kind).timeout(REQUEST_DEADLINE).body(content);
        self.ask(&what, request).await.map(drop)
    }
}
