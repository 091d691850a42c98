//! What the daemon says of itself and of its images.

use forkd_types::{Accelerator, Isolation};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Word;

/// A sign of life.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// Always true: a daemon that is not well does not answer.
    pub ok: bool,
}

/// Who answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Version {
    /// Version of forkd.
    pub version: String,
    /// Version of the interface.
    pub api: String,
    /// What executes the guests' instructions.
    #[serde(default)]
    #[schema(value_type = Accelerator)]
    pub accelerator: Word<Accelerator>,
    /// Whether that is a security boundary by its authors' word: `kvm` is, emulation is not.
    #[serde(default)]
    pub security_boundary: bool,
    /// Where previews of sandboxes' ports are: before the host come the port, `-`, the sandbox's id
    /// and a dot. Null if the daemon has no previews.
    #[serde(default)]
    #[schema(example = "http://localhost:8890")]
    pub preview_url: Option<String>,
    /// How far the VMMs of new sandboxes are kept from the host.
    #[serde(default)]
    #[schema(value_type = Isolation)]
    pub isolation: Word<Isolation>,
}

/// An image that templates can be built from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Image {
    /// Its name.
    pub name: String,
    /// One line for people.
    pub description: String,
}
