//! TCP ports that are listened on in a sandbox, and tokens that open them.

use std::time::Duration;

use forkd_types::limit;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::FieldError;

/// What a client asks for with the header `Upgrade` to be connected to a port.
pub const UPGRADE_PROTOCOL: &str = "tcp";

/// A TCP port that is listened on in a sandbox. All of it comes from the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Port {
    /// The port.
    pub port: u16,
    /// The address that it is listened on. All of them can be reached, loopback addresses too.
    #[schema(example = "127.0.0.1")]
    pub address: String,
    /// The process that listens, if the guest knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The name of its program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
}

/// What a token for a port is asked for with.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CreatePortToken {
    /// How long it is valid, in seconds, at most 30 days. By default an hour.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 2_592_000)]
    pub ttl_secs: Option<u64>,
}

impl CreatePortToken {
    /// How long the token is valid.
    ///
    /// # Errors
    /// When it is out of bounds.
    pub fn check(&self) -> Result<Duration, FieldError> {
        let ttl = Duration::from_secs(self.ttl_secs.unwrap_or(DEFAULT_TTL_SECS));
        if ttl.is_zero() || ttl > limit::PORT_TOKEN_TTL_MAX {
            let most = limit::PORT_TOKEN_TTL_MAX.as_secs();
            let problem = format!("{} is not between 1 and {most}", ttl.as_secs());
            return Err(FieldError::new("ttl_secs", problem));
        }
        Ok(ttl)
    }
}

const DEFAULT_TTL_SECS: u64 = 3600;

/// A token that opens one port of a sandbox in a browser, or to any client of HTTP.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PortToken {
    /// The address of the port, with the token. A browser that opens it gets a cookie instead.
    #[schema(example = "http://8080-sb-0123456789ab.localhost:8890/?forkd_token=...")]
    pub url: String,
    /// The host of the address, with its port. Requests to it have the token in the header
    /// `X-Forkd-Traffic-Token`.
    pub host: String,
    /// The token.
    pub token: String,
    /// When it ends, in seconds since 1970.
    pub expires_at_unix: u64,
}
