//! Secrets, whose values are never told.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A secret that header rules can name. Its value is told to nobody.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Secret {
    /// Its name.
    pub name: String,
    /// When it was set, in seconds since 1970.
    pub set_at_unix: u64,
}
