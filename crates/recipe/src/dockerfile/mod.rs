//! Dockerfiles, as far as they say what a build does here.
//!
//! Read are FROM, RUN, COPY, ENV, WORKDIR, USER, ARG, CMD and ENTRYPOINT. CMD and ENTRYPOINT run
//! nothing by themselves: they become a `start` step when that is asked for. LABEL, EXPOSE,
//! MAINTAINER and STOPSIGNAL change no file and are passed over. All else is refused.

mod flags;
mod instruction;
mod lines;
mod options;
mod variables;

pub use options::{Arguments, StartFrom};

use crate::{Problem, Recipe};

/// Reads the text of a Dockerfile.
///
/// # Errors
/// The first thing in it that is not supported.
pub fn parse(text: &str, arguments: &Arguments, start: StartFrom) -> Result<Recipe, Problem> {
    let mut reader = instruction::Reader::new(arguments);
    for line in lines::logical(text)? {
        reader.read(&line)?;
    }
    reader.finish(start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Base, Command, Copy, Step};

    fn read(text: &str) -> Result<Recipe, Problem> {
        parse(text, &Arguments::new(), StartFrom::Nothing)
    }

    fn steps(text: &str) -> Vec<Step> {
        read(text).unwrap().steps.into_iter().map(|step| step.step).collect()
    }

    #[test]
    fn an_ordinary_file_becomes_its_steps() {
        let text = "# syntax=docker/dockerfile:1\nARG V=3.12\nFROM python:${V}-slim\n\
            LABEL a=b\nWORKDIR /app\nCOPY --chown=me:us --chmod=0644 a.txt b/ ./\n\
            RUN pip install \\\n  # a comment\n  numpy && \\\n  true\n\
            RUN [\"echo\", \"a b\"]\nENV A=1 B=\"x y\"\nENV C $A and more\nUSER me\n";
        let recipe = read(text).unwrap();
        let Base::Image { reference, .. } = &recipe.base else { panic!("no image") };
        assert_eq!(reference, "python:3.12-slim");
        let found = steps(text);
        assert_eq!(found[0], Step::Workdir("/app".into()));
        let copy = Copy {
            sources: vec!["a.txt".into(), "b/".into()],
            to: "./".into(),
            owner: Some("me:us".into()),
            mode: Some(0o644),
        };
        assert_eq!(found[1], Step::Copy(copy));
        assert_eq!(found[2].shown(), "run pip install numpy && true");
        let Step::Run(run) = &found[3] else { panic!("no run") };
        assert_eq!(run.command, Command::Args(vec!["echo".into(), "a b".into()]));
        let variables = |all: &[(&str, &str)]| {
            Step::Env(all.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect())
        };
        assert_eq!(found[4], variables(&[("A", "1"), ("B", "x y")]));
        assert_eq!(found[5], variables(&[("C", "1 and more")]));
        assert_eq!(found[6], Step::User("me".into()));
        assert_eq!(recipe.steps[3].line, 11);
    }

    #[test]
    fn arguments_have_defaults_are_given_and_reach_programs() {
        let text = "FROM a\nARG X=1\nARG Y\nRUN echo $X\nCOPY a$X /${Y:-b}\n";
        let given = [("X".to_owned(), "2".to_owned())].into();
        let recipe = parse(text, &given, StartFrom::Nothing).unwrap();
        let Step::Run(run) = &recipe.steps[0].step else { panic!("no run") };
        assert_eq!(run.arguments, given);
        assert_eq!(run.command, Command::Shell("echo $X".into()), "the shell puts it in");
        assert_eq!(recipe.steps[1].step.shown(), "copy a2 /b");
    }

    #[test]
    fn an_argument_that_no_line_declares_is_refused() {
        let given = [("Z".to_owned(), "2".to_owned())].into();
        let problem = parse("FROM a\nARG X\n", &given, StartFrom::Nothing).unwrap_err();
        assert!(problem.what.contains("`Z`"), "{problem}");
    }

    #[test]
    fn what_an_image_runs_is_started_only_if_asked_for() {
        let text = "FROM a\nENTRYPOINT [\"serve\"]\nCMD [\"-p\", \"1\"]\n";
        assert_eq!(steps(text), []);
        let recipe = parse(text, &Arguments::new(), StartFrom::Command).unwrap();
        assert_eq!(recipe.steps[0].step.shown(), "start serve -p 1");
        let none = parse("FROM a\n", &Arguments::new(), StartFrom::Command).unwrap_err();
        assert!(none.what.contains("CMD"), "{none}");
    }

    #[test]
    fn what_is_not_supported_is_refused_with_its_line_and_a_remedy() {
        for (text, line) in [
            ("RUN x", 1),
            ("", 1),
            ("FROM a\nFROM b", 2),
            ("FROM a AS b", 1),
            ("FROM --platform=linux/arm64 a", 1),
            ("FROM a\n\nADD x /y", 3),
            ("FROM a\nCOPY --from=b x /y", 2),
            ("FROM a\nCOPY x", 2),
            ("FROM a\nCOPY [\"x\"", 2),
            ("FROM a\nCOPY <<EOF /x", 2),
            ("FROM a\nRUN <<EOF\nx\nEOF", 2),
            ("FROM a\nRUN --mount=type=cache,target=/x y", 2),
            ("FROM a\nRUN", 2),
            ("FROM a\nRUN []", 2),
            ("FROM a\nENV A", 2),
            ("FROM a\nENV A=\"b", 2),
            ("FROM a\nWORKDIR ${A", 2),
            ("FROM a\nWORKDIR ${A:?x}", 2),
            ("FROM a\nSHELL [\"bash\"]", 2),
            ("FROM a\nVOLUME /x", 2),
            ("FROM a\nHEALTHCHECK NONE", 2),
            ("FROM a\nFOO x", 2),
            ("FROM a\nRUN x \\", 2),
            ("# escape=`\nFROM a", 1),
        ] {
            let problem = read(text).unwrap_err();
            assert_eq!(problem.line, line, "{text}: {problem}");
            assert!(!problem.remedy.is_empty());
        }
    }
}
