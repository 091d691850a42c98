//! What a build reads from a directory that may be somebody else's: read or refused with its line
//! and a remedy, and what was read is read as the same again.

use forkd_recipe::{
    Arguments, Ignore, Problem, Recipe, Settings, StartFrom, Step, parse_dockerfile,
    parse_forkd_toml,
};

/// The text of a Dockerfile, a `forkd.toml` or a `.dockerignore`.
pub fn check(text: &[u8]) {
    let Ok(text) = std::str::from_utf8(text) else { return };
    for start in [StartFrom::Nothing, StartFrom::Command] {
        holds(text, |text| parse_dockerfile(text, &Arguments::new(), start));
    }
    holds(text, parse_forkd_toml);
    match Ignore::parse(text) {
        Ok(ignore) => leaves_out_what_is_below(&ignore),
        Err(problem) => points_into(text, &problem),
    }
}

fn holds(text: &str, read: impl Fn(&str) -> Result<Recipe, Problem>) {
    let recipe = match read(text) {
        Ok(recipe) => recipe,
        Err(problem) => return points_into(text, &problem),
    };
    assert_eq!(read(text).as_ref(), Ok(&recipe), "read again, it differs");
    let mut settings = Settings::default();
    let mut line = 1;
    for found in &recipe.steps {
        assert!((1..=lines(text)).contains(&found.line), "{found:?}");
        // What a Dockerfile's image runs is started at the end, wherever it is written.
        if !matches!(found.step, Step::Start(_)) {
            assert!(found.line >= line, "{found:?}");
            line = found.line;
        }
        assert!(!found.step.shown().is_empty(), "{found:?}");
        if let Step::Copy(copy) = &found.step {
            assert!(!copy.sources.is_empty(), "{found:?}");
            assert!(settings.absolute(&copy.to).starts_with('/'), "{found:?}");
        }
        settings.apply(&found.step);
        assert!(settings.workdir.as_ref().is_none_or(|path| path.starts_with('/')), "{found:?}");
    }
}

fn points_into(text: &str, problem: &Problem) {
    assert!((1..=lines(text)).contains(&problem.line), "{problem}");
    assert!(!problem.what.is_empty() && !problem.remedy.is_empty(), "{problem:?}");
}

/// Lines of a text, of which an empty one has one too.
fn lines(text: &str) -> usize {
    text.split('\n').count()
}

fn leaves_out_what_is_below(ignore: &Ignore) {
    for directory in ["a", "a/b", "target"] {
        if ignore.leaves_out_all_below(directory) {
            for name in ["x", "x/y.log", ".git"] {
                assert!(ignore.leaves_out(&format!("{directory}/{name}")), "{directory}/{name}");
            }
        }
    }
}

/// Some of each kind of file.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let dockerfile = "# syntax=docker/dockerfile:1\nARG V=3\nFROM python:${V}-slim\nARG X\n\
        ENV A=1 B=\"x ${A:-y}\"\nWORKDIR app\nCOPY --chown=u:g --chmod=0644 a b/ ./\n\
        RUN pip install \\\n  # why\n  numpy\nRUN [\"echo\", \"a b\"]\nUSER u\n\
        ENTRYPOINT [\"serve\"]\nCMD [\"-p\", \"1\"]\n";
    let toml = "from = \"tiny\"\n\n[[step]]\nrun = \"echo a\"\n\n[[step]]\ncopy = [\"a\", \"b/\"]\n\
        to = \"/app/\"\nmode = \"0644\"\n\n[[step]]\nenv = { A = \"1\" }\n\n[[step]]\n\
        workdir = \"/w\"\n\n[[step]]\nstart = \"serve\"\nready = { port = 8000 }\n";
    let ignore = "# no\n/target\n**/*.pyc\n!keep.log\na/*/c\n";
    [dockerfile, toml, ignore].map(|text| text.as_bytes().to_vec()).to_vec()
}
