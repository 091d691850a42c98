//! What the daemon answers clients that are not forkd's own, heard as they hear it.
//!
//! Guarantees: nobody is trusted but the host's certificates, or those of `SSL_CERT_FILE`; an
//! answer is held in part only, and waited for a bounded time; nothing is retried.
//!
//! Does not do: know what an answer means.

use std::time::Duration;

use reqwest::header::{HeaderName, HeaderValue};

use crate::{Access, ClientError};

/// For one answer, its connection included.
const DEADLINE: Duration = Duration::from_secs(10);
/// Of a body.
const HELD_BYTES_MAX: usize = 64 * 1024;

/// What came back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heard {
    /// HTTP status.
    pub status: u16,
    /// The body, or its beginning.
    pub body: String,
}

/// A client that is not forkd's own.
#[derive(Debug, Clone)]
pub struct ForeignClient(reqwest::Client);

impl ForeignClient {
    /// One that trusts whom the host trusts.
    ///
    /// # Errors
    /// When TLS cannot be set up.
    pub fn new() -> Result<Self, ClientError> {
        let builder = Access::default().apply(reqwest::Client::builder())?;
        let builder = builder.no_proxy().timeout(DEADLINE);
        let client = builder.redirect(reqwest::redirect::Policy::none()).build();
        client.map(Self).map_err(|source| broken("TLS", source))
    }

    /// Asks for a URL.
    ///
    /// # Errors
    /// When nothing answers there, it is not trusted, or it breaks off.
    pub async fn get(&self, url: &str, headers: &[(&str, &str)]) -> Result<Heard, ClientError> {
        let mut request = self.0.get(url);
        for (name, value) in headers {
            let name = HeaderName::try_from(*name);
            let (Ok(name), Ok(value)) = (name, HeaderValue::try_from(*value)) else {
                let problem = "a header has characters that no header can have".to_owned();
                return Err(ClientError::Access { problem });
            };
            request = request.header(name, value);
        }
        let unreachable = |source: reqwest::Error| {
            let target = url.to_owned();
            match source.is_connect() {
                true => ClientError::Unreachable { target, source },
                false => ClientError::Broken { target, source },
            }
        };
        let mut answer = request.send().await.map_err(unreachable)?;
        let (status, mut held) = (answer.status().as_u16(), Vec::new());
        while held.len() < HELD_BYTES_MAX {
            match answer.chunk().await.map_err(|source| broken(url, source))? {
                Some(piece) => held.extend_from_slice(&piece),
                None => break,
            }
        }
        held.truncate(HELD_BYTES_MAX);
        Ok(Heard { status, body: String::from_utf8_lossy(&held).into_owned() })
    }
}

fn broken(target: &str, source: reqwest::Error) -> ClientError {
    ClientError::Broken { target: target.to_owned(), source }
}
