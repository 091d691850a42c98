//! The token file: who may come in over the network.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};
use subtle::{Choice, ConstantTimeEq as _, ConstantTimeLess as _};

/// Shortest token: 16 characters of base64 are 96 random bits.
const TOKEN_CHARS_MIN: usize = 16;

/// Why a token file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenFileError {
    /// It cannot be read.
    #[error("read the token file `{}`", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's word.
        #[source]
        source: io::Error,
    },
    /// Others may read it.
    #[error(
        "others may read the token file `{}` (mode {mode:o}): `chmod 600` it and make new tokens",
        path.display()
    )]
    Public {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// A line is no token.
    #[error("line {line} of the token file `{}`: {problem}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// There is no token in it.
    #[error(
        "the token file `{}` has no token: write one in, such as from `openssl rand -base64 32`",
        path.display()
    )]
    Empty {
        /// The file.
        path: PathBuf,
    },
}

/// The tokens that are accepted, as digests. Each line of the file is a token, or a name and a
/// token; the name is what the audit log says. Lines that begin with `#` are comments.
#[derive(Debug)]
pub(crate) struct Tokens(Vec<Token>);

struct Token {
    name: String,
    digest: [u8; 32],
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Token").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Tokens {
    /// Reads the file at `path`.
    pub(crate) fn read(path: &Path) -> Result<Self, TokenFileError> {
        let failed = |source| TokenFileError::Read { path: path.to_owned(), source };
        let mode = fs::metadata(path).map_err(failed)?.mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Err(TokenFileError::Public { path: path.to_owned(), mode });
        }
        let text = fs::read_to_string(path).map_err(failed)?;
        let tokens = parse(&text).map_err(|(line, problem)| TokenFileError::Line {
            path: path.to_owned(),
            line,
            problem,
        })?;
        if tokens.is_empty() {
            return Err(TokenFileError::Empty { path: path.to_owned() });
        }
        Ok(Self(tokens))
    }

    /// The name of the token that `given` is. Takes the same time whichever it is, or none: all are
    /// compared, by digests of equal length.
    pub(crate) fn name_of(&self, given: &[u8]) -> Option<&str> {
        let digest: [u8; 32] = Sha256::digest(given).into();
        let none = u32::MAX;
        let mut found = none;
        for (number, token) in self.0.iter().enumerate() {
            let number = u32::try_from(number).unwrap_or(none);
            let same: Choice = digest.ct_eq(&token.digest) & number.ct_lt(&none);
            found = subtle::ConditionallySelectable::conditional_select(&found, &number, same);
        }
        self.0.get(usize::try_from(found).ok()?).map(|token| token.name.as_str())
    }
}

fn parse(text: &str) -> Result<Vec<Token>, (usize, String)> {
    let mut tokens: Vec<Token> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line_number = index + 1;
        let wrong = |problem: String| Err((line_number, problem));
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let (name, token) = match words.as_slice() {
            [token] => (format!("token-{}", tokens.len() + 1), *token),
            [name, token] => ((*name).to_owned(), *token),
            _ => return wrong("it has more than a name and a token".to_owned()),
        };
        if token.chars().count() < TOKEN_CHARS_MIN {
            return wrong(format!("the token has fewer than {TOKEN_CHARS_MIN} characters"));
        }
        if tokens.iter().any(|known| known.name == name) {
            return wrong(format!("the name `{name}` is there twice"));
        }
        tokens.push(Token { name, digest: Sha256::digest(token.as_bytes()).into() });
    }
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    fn file(text: &str, mode: u32) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        fs::set_permissions(file.path(), fs::Permissions::from_mode(mode)).unwrap();
        file
    }

    const TWO: &str = "# who\nci 0123456789abcdef\n\n  fedcba9876543210  \n";

    #[test]
    fn each_token_is_known_by_its_name_and_nothing_else_is() {
        let tokens = Tokens::read(file(TWO, 0o600).path()).unwrap();
        assert_eq!(tokens.name_of(b"0123456789abcdef"), Some("ci"));
        assert_eq!(tokens.name_of(b"fedcba9876543210"), Some("token-2"));
        for other in [b"".as_slice(), b"0123456789abcde", b"0123456789abcdef0", b"ci", b"# who"] {
            assert_eq!(tokens.name_of(other), None);
        }
    }

    #[test]
    fn a_file_that_others_can_read_is_refused() {
        let error = Tokens::read(file(TWO, 0o640).path()).unwrap_err();
        assert!(error.to_string().contains("chmod 600"), "{error}");
    }

    #[test]
    fn a_bad_line_is_named_by_its_number() {
        let cases = [
            ("short", "line 1"),
            ("#\na b 0123456789abcdef", "line 2"),
            ("a 0123456789abcdef\na fedcba9876543210", "twice"),
        ];
        for (text, words) in cases {
            let error = Tokens::read(file(text, 0o600).path()).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        let error = Tokens::read(file("# nobody\n", 0o600).path()).unwrap_err();
        assert!(matches!(error, TokenFileError::Empty { .. }), "{error}");
    }

    #[test]
    fn a_token_is_not_shown_when_it_is_printed_for_debugging() {
        let tokens = Tokens::read(file(TWO, 0o600).path()).unwrap();
        assert!(!format!("{tokens:?}").contains("0123456789abcdef"));
    }
}
