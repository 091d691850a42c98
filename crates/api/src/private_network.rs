//! Private networks, over which sandboxes of one owner reach each other.

use forkd_types::network::NetworkName;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::FieldError;

/// A private network. Its members reach each other by name, whatever else they may reach.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Network {
    /// Its name.
    pub name: String,
    /// When it was created, in seconds since 1970.
    pub created_at_unix: u64,
    /// Its members, by address.
    pub members: Vec<Membership>,
}

/// That a sandbox is a member of a private network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Membership {
    /// The network.
    pub network: String,
    /// The sandbox.
    pub sandbox: String,
    /// The name by which other members reach it. With `name` in the sandbox's metadata, that name
    /// in place of the sandbox's id leads to it too.
    #[schema(example = "sb-0123456789ab.team.forkd.internal")]
    pub host_name: String,
    /// The IPv4 address that other members have for it.
    #[schema(example = "10.43.0.1")]
    pub ipv4: String,
    /// The IPv6 address that other members have for it.
    #[schema(example = "fd66:6f72:6b64:1::1")]
    pub ipv6: String,
}

/// Request body of `POST /v1/networks`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateNetwork {
    /// Its name: at most 63 lower-case letters, digits and `-`.
    #[schema(example = "team")]
    pub name: String,
}

impl CreateNetwork {
    /// The name, when it is one.
    ///
    /// # Errors
    /// Names the field.
    pub fn check(&self) -> Result<NetworkName, FieldError> {
        self.name.parse().map_err(|error| FieldError::new("name", error))
    }
}
