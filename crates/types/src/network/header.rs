//! Headers that the gateway sets, and the secrets in their values.
//!
//! A value is text in which `${secrets.NAME}` stands for a secret. Policies hold names of secrets;
//! the value of one is nowhere in this crate.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::id::shown;
use crate::text::as_text;

/// Bytes of a header's value, before and after its secrets are put in.
pub const HEADER_BYTES_MAX: usize = 8192;
/// Bytes of a header's name, or of a secret's.
const NAME_BYTES_MAX: usize = 64;

/// Headers that belong to one connection or say where a request ends or goes. Whoever set them
/// could make two requests of one, or send a secret to another host.
const FRAMING: [&str; 11] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "http2-settings",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Why a rule cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{entry}` cannot be part of a header rule: {remedy}")]
pub struct HeaderError {
    /// What was given, shortened to a printable length.
    pub entry: String,
    /// What to write instead.
    pub remedy: String,
}

pub(super) fn wrong(entry: &str, remedy: impl Into<String>) -> HeaderError {
    HeaderError { entry: shown(entry), remedy: remedy.into() }
}

/// The name of a header, in lower case.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HeaderName(String);

impl HeaderName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for HeaderName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for HeaderName {
    type Err = HeaderError;

    fn from_str(value: &str) -> Result<Self, HeaderError> {
        let name = value.to_ascii_lowercase();
        let is_token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
        if name.starts_with(':') {
            return Err(wrong(value, "HTTP/2 writes the request line with such names"));
        }
        if !(1..=NAME_BYTES_MAX).contains(&name.len()) || !name.bytes().all(is_token) {
            return Err(wrong(value, "write the name of a header, such as `Authorization`"));
        }
        if FRAMING.contains(&name.as_str()) {
            return Err(wrong(value, "this header says where a request goes or ends"));
        }
        Ok(Self(name))
    }
}

as_text!(HeaderName, HeaderError);

/// The name of a secret: letters, digits and `_`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SecretName(String);

impl SecretName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SecretName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Something that names no secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no name of a secret: use a letter, then at most {max} letters, digits or `_`",
    max = NAME_BYTES_MAX - 1
)]
pub struct UnknownSecret(String);

impl FromStr for SecretName {
    type Err = UnknownSecret;

    fn from_str(value: &str) -> Result<Self, UnknownSecret> {
        let is_part = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
        let begins = value.starts_with(|c: char| c.is_ascii_alphabetic());
        match begins && value.len() <= NAME_BYTES_MAX && value.bytes().all(is_part) {
            true => Ok(Self(value.to_owned())),
            false => Err(UnknownSecret(shown(value))),
        }
    }
}

as_text!(SecretName, UnknownSecret);

/// The value of a header, in which `${secrets.NAME}` stands for a secret.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HeaderTemplate {
    /// Each secret, and the text before it.
    parts: Vec<(String, SecretName)>,
    rest: String,
}

impl HeaderTemplate {
    /// Its secrets, each as often as it stands there.
    pub fn secrets(&self) -> impl Iterator<Item = &SecretName> {
        self.parts.iter().map(|(_, name)| name)
    }

    /// Each secret and the text before it.
    #[must_use]
    pub fn parts(&self) -> &[(String, SecretName)] {
        &self.parts
    }

    /// The text behind the last secret.
    #[must_use]
    pub fn rest(&self) -> &str {
        &self.rest
    }
}

/// Whether it may stand in the value of a header.
#[must_use]
pub fn is_header_text(value: &[u8]) -> bool {
    value.iter().all(|&b| (b' '..0x7f).contains(&b) || b == b'\t')
}

const OPEN: &str = "${";
const SECRET: &str = "secrets.";

impl fmt::Display for HeaderTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (text, name) in &self.parts {
            write!(f, "{text}{OPEN}{SECRET}{name}}}")?;
        }
        f.write_str(&self.rest)
    }
}

impl FromStr for HeaderTemplate {
    type Err = HeaderError;

    fn from_str(value: &str) -> Result<Self, HeaderError> {
        if value.is_empty() || value.len() > HEADER_BYTES_MAX {
            return Err(wrong(value, format!("a value has 1 to {HEADER_BYTES_MAX} bytes")));
        }
        if !is_header_text(value.as_bytes()) || value.trim() != value {
            return Err(wrong(value, "a value is one line of ASCII, without spaces at its ends"));
        }
        let (mut parts, mut rest) = (Vec::new(), value);
        while let Some((text, behind)) = rest.split_once(OPEN) {
            let inner = behind.split_once('}');
            let named = inner.and_then(|(inner, rest)| Some((inner.strip_prefix(SECRET)?, rest)));
            let Some((name, behind)) = named else {
                return Err(wrong(value, "write a secret as `${secrets.NAME}`"));
            };
            let name =
                name.parse().map_err(|error: UnknownSecret| wrong(value, error.to_string()))?;
            parts.push((text.to_owned(), name));
            rest = behind;
        }
        Ok(Self { parts, rest: rest.to_owned() })
    }
}

as_text!(HeaderTemplate, HeaderError);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_as_they_are_read() {
        for (value, secrets) in [
            ("plain", &[][..]),
            ("Bearer ${secrets.OPENAI}", &["OPENAI"]),
            ("${secrets.a_1}:${secrets.b}x", &["a_1", "b"]),
            ("$5 } {", &[]),
        ] {
            let template: HeaderTemplate = value.parse().unwrap();
            assert_eq!(template.to_string(), value);
            let names: Vec<&str> = template.secrets().map(SecretName::as_str).collect();
            assert_eq!(names, secrets);
        }
        let long = "x".repeat(HEADER_BYTES_MAX);
        assert!(long.parse::<HeaderTemplate>().is_ok());
        assert!(format!("{long}x").parse::<HeaderTemplate>().is_err());
    }

    #[test]
    fn what_is_no_value_is_refused_with_a_remedy() {
        for (value, remedy) in [
            ("", "1 to 8192"),
            ("a\r\nHost: evil", "one line"),
            ("a\0b", "one line"),
            (" a", "spaces at its ends"),
            ("clé", "ASCII"),
            ("${secrets.A", "write a secret as"),
            ("${env.A}", "write a secret as"),
            ("${secrets.}", "no name of a secret"),
            ("${secrets.1A}", "no name of a secret"),
            ("${secrets.A-B}", "no name of a secret"),
        ] {
            let error = value.parse::<HeaderTemplate>().unwrap_err();
            assert!(error.to_string().contains(remedy), "{value}: {error}");
            assert_eq!(error.entry, shown(value));
        }
    }

    #[test]
    fn headers_that_frame_a_request_are_refused() {
        assert_eq!("X-Api-Key".parse::<HeaderName>().unwrap().as_str(), "x-api-key");
        for (name, remedy) in [
            ("Host", "where a request goes"),
            ("CONTENT-LENGTH", "where a request goes"),
            ("transfer-encoding", "where a request goes"),
            ("Connection", "where a request goes"),
            ("Upgrade", "where a request goes"),
            ("TE", "where a request goes"),
            ("Trailer", "where a request goes"),
            ("Keep-Alive", "where a request goes"),
            ("HTTP2-Settings", "where a request goes"),
            (":authority", "HTTP/2"),
            ("", "name of a header"),
            ("a b", "name of a header"),
            ("a:", "name of a header"),
            ("a\r\n", "name of a header"),
            ("é", "name of a header"),
        ] {
            let error = name.parse::<HeaderName>().unwrap_err();
            assert!(error.to_string().contains(remedy), "{name}: {error}");
        }
        assert!("x".repeat(65).parse::<HeaderName>().is_err());
    }
}
