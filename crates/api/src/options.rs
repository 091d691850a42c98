//! What the creator of a sandbox may want of it.

use std::collections::BTreeMap;
use std::time::Duration;

use forkd_types::limit;

use crate::FieldError;
use crate::check::within;

/// Refuses metadata that is more or larger than is kept.
pub(crate) fn check_metadata(metadata: &BTreeMap<String, String>) -> Result<(), FieldError> {
    let refused = |problem: String| Err(FieldError::new("metadata", problem));
    if metadata.len() > limit::METADATA_ENTRIES_MAX {
        let problem = format!("has more than {} entries", limit::METADATA_ENTRIES_MAX);
        return refused(problem);
    }
    for (key, value) in metadata {
        if key.is_empty() || key.chars().any(char::is_control) {
            return refused("a key is empty or has control characters".to_owned());
        }
        if key.len() + value.len() > limit::METADATA_ENTRY_BYTES_MAX {
            let max = limit::METADATA_ENTRY_BYTES_MAX;
            let shown: String = key.chars().take(40).collect();
            return refused(format!("the entry `{shown}` has more than {max} bytes"));
        }
    }
    Ok(())
}

/// A span of a sandbox's life, of at least a second.
pub(crate) fn check_lifetime(
    field: &'static str,
    secs: Option<u64>,
) -> Result<Option<Duration>, FieldError> {
    let Some(secs) = secs else { return Ok(None) };
    within(field, secs, 1, limit::LIFETIME_MAX.as_secs())
        .map(|secs| Some(Duration::from_secs(secs)))
}
