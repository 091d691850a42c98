//! The token file: who may come in over the network, and as whom.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use forkd_engine::{Caller, Role};
use forkd_types::Owner;
use sha2::{Digest as _, Sha256};
use subtle::{Choice, ConstantTimeEq as _, ConstantTimeLess as _};

/// Shortest token: 16 characters of base64 are 96 random bits.
const TOKEN_CHARS_MIN: usize = 16;
/// Marks a token for which everything exists.
const ADMIN: &str = "admin";
/// Before the owner of what a token makes; by default that is the token's name.
const OWNER: &str = "owner=";
/// The owner that all tokens without a name share: a number would be another token's once a line
/// before it goes.
const UNNAMED: &str = "unnamed";

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
/// token and then what it may: `owner=OWNER`, `admin`. The name is what the audit log says. Lines
/// that begin with `#` are comments.
#[derive(Debug)]
pub(crate) struct Tokens(Vec<Token>);

pub(super) struct Token {
    /// What the audit log says.
    pub(super) name: String,
    /// Who comes in with it.
    pub(super) caller: Caller,
    digest: [u8; 32],
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Token")
            .field("name", &self.name)
            .field("caller", &self.caller)
            .finish_non_exhaustive()
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

    /// Who comes in with `given`.
    pub(crate) fn caller(&self, given: &[u8]) -> Option<Caller> {
        self.find(given).map(|token| token.caller.clone())
    }

    /// The token that `given` is. Takes the same time whichever it is, or none: all are
    /// compared, by digests of equal length.
    pub(super) fn find(&self, given: &[u8]) -> Option<&Token> {
        let digest: [u8; 32] = Sha256::digest(given).into();
        let none = u32::MAX;
        let mut found = none;
        for (number, token) in self.0.iter().enumerate() {
            let number = u32::try_from(number).unwrap_or(none);
            let same: Choice = digest.ct_eq(&token.digest) & number.ct_lt(&none);
            found = subtle::ConditionallySelectable::conditional_select(&found, &number, same);
        }
        self.0.get(usize::try_from(found).ok()?)
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
        let (name, token, marks) = match words.as_slice() {
            [token] => (None, *token, &[][..]),
            [name, token, marks @ ..] => (Some(*name), *token, marks),
            [] => continue,
        };
        if token.chars().count() < TOKEN_CHARS_MIN {
            return wrong(format!("the token has fewer than {TOKEN_CHARS_MIN} characters"));
        }
        let caller = caller(name, marks).map_err(|problem| (line_number, problem))?;
        let name = name.map_or_else(|| format!("token-{}", tokens.len() + 1), str::to_owned);
        if tokens.iter().any(|known| known.name == name) {
            return wrong(format!("the name `{name}` is there twice"));
        }
        tokens.push(Token { name, caller, digest: Sha256::digest(token.as_bytes()).into() });
    }
    Ok(tokens)
}

/// Who comes in with a token of this name, marked so.
fn caller(name: Option<&str>, marks: &[&str]) -> Result<Caller, String> {
    let (mut role, mut owner) = (Role::User, None);
    for mark in marks {
        match (*mark, mark.strip_prefix(OWNER)) {
            (ADMIN, _) => role = Role::Admin,
            (_, Some(text)) => owner = Some(text),
            _ => return Err(format!("`{mark}` is neither `{OWNER}OWNER` nor `{ADMIN}`")),
        }
    }
    let text = owner.or(name).unwrap_or(UNNAMED);
    let owner = text.parse::<Owner>().map_err(|error| match owner {
        Some(_) => error.to_string(),
        None => format!("the name is its owner, unless `{OWNER}OWNER` says another: {error}"),
    })?;
    Ok(Caller::new(owner, role))
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
        let name_of = |given: &[u8]| tokens.find(given).map(|token| token.name.as_str());
        assert_eq!(name_of(b"0123456789abcdef"), Some("ci"));
        assert_eq!(name_of(b"fedcba9876543210"), Some("token-2"));
        for other in [b"".as_slice(), b"0123456789abcde", b"0123456789abcdef0", b"ci", b"# who"] {
            assert_eq!(name_of(other), None);
        }
    }

    #[test]
    fn a_token_is_its_names_owner_unless_it_says_more() {
        let text = "ann 0123456789abcdef\nops 1123456789abcdef admin\n\
            ann2 2123456789abcdef owner=ann\nroot 3123456789abcdef admin owner=daemon\n\
            4123456789abcdef\n";
        let tokens = Tokens::read(file(text, 0o600).path()).unwrap();
        let caller = |given: &[u8]| tokens.find(given).unwrap().caller.clone();
        let who = |name: &str, role| Caller::new(name.parse().unwrap(), role);
        assert_eq!(caller(b"0123456789abcdef"), who("ann", Role::User));
        assert_eq!(caller(b"1123456789abcdef"), who("ops", Role::Admin));
        assert_eq!(caller(b"2123456789abcdef"), who("ann", Role::User));
        assert_eq!(caller(b"3123456789abcdef"), who("daemon", Role::Admin));
        assert_eq!(caller(b"4123456789abcdef"), who("unnamed", Role::User));
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
            ("#\na 0123456789abcdef b", "line 2"),
            ("a 0123456789abcdef root", "`admin`"),
            ("a/b 0123456789abcdef", "owner="),
            ("a 0123456789abcdef owner=a/b", "no owner"),
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
