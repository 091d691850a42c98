//! `.dockerignore`: what is in the directory and not in the context.
//!
//! Patterns are Docker's: from the root of the context, `**` for any directories, `!` takes back,
//! and the last pattern that matches counts. A pattern that matches a directory matches all in it.

use globset::{GlobBuilder, GlobMatcher};

use crate::Problem;

/// Which files are left out.
#[derive(Debug, Clone, Default)]
pub struct Ignore {
    patterns: Vec<Pattern>,
}

#[derive(Debug, Clone)]
struct Pattern {
    matcher: GlobMatcher,
    takes_back: bool,
}

impl Ignore {
    /// Reads the file's text.
    ///
    /// # Errors
    /// A pattern that is none.
    pub fn parse(text: &str) -> Result<Self, Problem> {
        let mut patterns = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (takes_back, pattern) = match line.strip_prefix('!') {
                Some(pattern) => (true, pattern.trim()),
                None => (false, line),
            };
            let matcher = matcher(pattern).map_err(|problem| {
                Problem::new(index + 1, problem, "write the pattern as Docker does")
            })?;
            patterns.push(Pattern { matcher, takes_back });
        }
        Ok(Self { patterns })
    }

    /// Whether a path of the directory is left out.
    #[must_use]
    pub fn leaves_out(&self, path: &str) -> bool {
        let mut left_out = false;
        for pattern in &self.patterns {
            if pattern.takes_back == left_out && matches_path_or_above(&pattern.matcher, path) {
                left_out = !pattern.takes_back;
            }
        }
        left_out
    }

    /// Whether all that is below a directory that is left out is left out too.
    #[must_use]
    pub fn leaves_out_all_below(&self, directory: &str) -> bool {
        self.leaves_out(directory) && self.patterns.iter().all(|pattern| !pattern.takes_back)
    }
}

/// Of a pattern of files, from the root of the context.
pub(crate) fn matcher(pattern: &str) -> Result<GlobMatcher, String> {
    let pattern = pattern.trim_start_matches("./").trim_matches('/');
    let glob = GlobBuilder::new(pattern).literal_separator(true).backslash_escape(true).build();
    glob.map(|glob| glob.compile_matcher()).map_err(|error| error.to_string())
}

fn matches_path_or_above(matcher: &GlobMatcher, path: &str) -> bool {
    let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
    ends.into_iter().any(|end| matcher.is_match(&path[..end]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_read_as_docker_reads_them() {
        let ignore = Ignore::parse("# no\n/target\n*.log\n**/*.pyc\n!keep.log\na/*/c\n").unwrap();
        for path in ["target", "target/debug/x", "x.log", "a.pyc", "a/b/d.pyc", "a/b/c"] {
            assert!(ignore.leaves_out(path), "{path}");
        }
        for path in ["src/target", "a/x.log", "keep.log", "a/b", "a/b/d/c", "targets"] {
            assert!(!ignore.leaves_out(path), "{path}");
        }
        assert!(!ignore.leaves_out_all_below("target"), "something may be taken back below it");
    }

    #[test]
    fn a_pattern_that_is_none_is_refused_with_its_line() {
        assert_eq!(Ignore::parse("a\n[\n").unwrap_err().line, 2);
    }
}
