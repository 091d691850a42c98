//! Bytes of a program on a wire of text: as a string when they are UTF-8, else both as a string
//! with replacement characters, for people, and as base64, for programs.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// Bytes as they go over the wire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputText {
    /// The bytes as text; exact unless `base64` is present.
    pub text: String,
    /// The exact bytes, when they are not UTF-8.
    pub base64: Option<String>,
}

impl OutputText {
    /// `bytes` for the wire.
    #[must_use]
    pub fn of(bytes: Vec<u8>) -> Self {
        match String::from_utf8(bytes) {
            Ok(text) => Self { text, base64: None },
            Err(error) => {
                let bytes = error.as_bytes();
                let text = String::from_utf8_lossy(bytes).into_owned();
                Self { text, base64: Some(STANDARD.encode(bytes)) }
            }
        }
    }
}

/// The exact bytes behind a pair of text and optional base64. Base64 that is none counts as absent.
#[must_use]
pub fn text_to_bytes(text: &str, base64: Option<&str>) -> Vec<u8> {
    base64
        .and_then(|encoded| STANDARD.decode(encoded).ok())
        .unwrap_or_else(|| text.as_bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_come_back_and_base64_appears_only_where_text_would_lose() {
        for bytes in [&b"plain \xc3\xa9\n"[..], b"", b"\xff\xfe\0binary", &[0xC3]] {
            let wire = OutputText::of(bytes.to_vec());
            assert_eq!(wire.base64.is_none(), std::str::from_utf8(bytes).is_ok());
            assert_eq!(text_to_bytes(&wire.text, wire.base64.as_deref()), bytes);
        }
    }
}
