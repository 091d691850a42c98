//! Ids of sandboxes as E2B's clients see them: `[a-z0-9]+`, because a host label is split at its
//! dash. `sb-0123456789ab` is `sb0123456789ab` to them, and back.

use forkd_types::SandboxId;

/// Before the digits, as they see it.
const SHORT: &str = "sb";
/// Before the digits, as forkd writes it.
const LONG: &str = "sb-";

/// The id for clients of E2B.
pub(crate) fn shown(id: &SandboxId) -> String {
    let digits = id.as_str().strip_prefix(LONG).unwrap_or(id.as_str());
    format!("{SHORT}{digits}")
}

/// The sandbox that a client means. `None` for what is no id of ours.
pub(crate) fn said(text: &str) -> Option<SandboxId> {
    // Old clients say `<id>-<client>`.
    let text = text.split('-').next().unwrap_or(text);
    format!("{LONG}{}", text.strip_prefix(SHORT)?).parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_comes_back_and_has_no_dash() {
        let id = SandboxId::random();
        let text = shown(&id);
        assert!(text.bytes().all(|b| b.is_ascii_digit() || b.is_ascii_lowercase()), "{text}");
        assert_eq!(said(&text), Some(id.clone()));
        assert_eq!(said(&format!("{text}-6532622b")), Some(id));
    }

    #[test]
    fn what_is_no_id_is_nobody() {
        for bad in ["", "sb", "sb-", "sb-0123456789ab", "i0123456789ab", "sb0123456789a/", "../x"] {
            assert_eq!(said(bad), None, "{bad:?}");
        }
    }
}
