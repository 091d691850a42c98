//! A sandbox as it is given to the client who made it, and to nobody else.

use serde::Serialize;
use utoipa::ToSchema;

/// A sandbox with what opens it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Sandbox)]
pub(crate) struct HandedOut {
    /// What it was started from.
    #[serde(rename = "templateID")]
    pub(crate) template_id: String,
    /// Its name: small letters and digits.
    #[serde(rename = "sandboxID")]
    #[schema(pattern = "^[a-z0-9]+$")]
    pub(crate) sandbox_id: String,
    /// Always the same.
    #[serde(rename = "clientID")]
    pub(crate) client_id: &'static str,
    /// Clients decide by it what they may ask.
    #[schema(pattern = r"^\d+\.\d+\.\d+$")]
    pub(crate) envd_version: &'static str,
    /// Opens its programs and files, as `X-Access-Token`.
    pub(crate) envd_access_token: String,
    /// Each of its ports has a name below it.
    pub(crate) domain: String,
    /// Opens its servers, as `E2B-Traffic-Access-Token`, where not everybody may reach them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) traffic_access_token: Option<String>,
    /// The name that the client gave for the template, where it stands for another.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) alias: Option<String>,
}
