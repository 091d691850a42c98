//! The command line as a whole: what is written on it, and whose exit code it ends with.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{ArgMatches, Command, CommandFactory as _, FromArgMatches as _, Parser};

use crate::console::{manner, report};
use crate::exit::{Codes, Exit, Failure, OF_PROGRAMS_HELP};
use crate::options::Global;
use crate::verb::Verb;

/// Run sandboxes, and branch them while they run.
///
/// forkd starts a daemon when none is running. `forkd stop` stops it; sandboxes keep running.
#[derive(Debug, Parser)]
#[command(
    name = "forkd",
    version,
    max_term_width = 100,
    disable_help_subcommand = true,
    after_help = "Examples:\n  \
        forkd run python -- python3 -V         run a program in a new sandbox\n  \
        forkd template build python --tag py   make a snapshot to start from\n  \
        forkd fork py -n 2                     start two sandboxes from it\n  \
        forkd shell sb-...                     open a shell in one\n  \
        forkd branch sb-... -n 3               branch it while it runs\n  \
        forkd tree                             see what came from what\n\n\
        Exit codes:\n  \
        0 done, 1 failed, 2 usage error, 3 no daemon answers. Verbs that end with the exit code\n  \
        of a program have others: see `forkd run --help`."
)]
pub(crate) struct CommandLine {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    verb: Verb,
}

/// What was asked for, and whose exit codes answer it.
pub(crate) struct Asked {
    command_line: CommandLine,
    codes: Codes,
}

/// All that may be written on a command line.
pub(crate) fn grammar() -> Command {
    with_exit_codes(CommandLine::command(), &[])
}

/// Adds the exit codes of programs to the help of the verbs that have them.
fn with_exit_codes(command: Command, path: &[&str]) -> Command {
    let command = match Codes::of(path) {
        Codes::Verb => command,
        Codes::Program => {
            let examples = command.get_after_help().map(|help| format!("{help}\n\n"));
            command.after_help(examples.unwrap_or_default() + OF_PROGRAMS_HELP)
        }
    };
    command.mut_subcommands(|verb| {
        let name = verb.get_name().to_owned();
        with_exit_codes(verb, &[path, &[&name]].concat())
    })
}

/// The verb and what is below it.
fn path(mut matches: &ArgMatches) -> Vec<&str> {
    let mut path = Vec::new();
    while let Some((name, below)) = matches.subcommand() {
        path.push(name);
        matches = below;
    }
    path
}

/// What these words ask for. If they cannot be understood, or ask for help, the answer is printed
/// here.
pub(crate) fn parse(words: &[OsString]) -> Result<Asked, ExitCode> {
    let parsed = grammar().try_get_matches_from(words).and_then(|matches| {
        let command_line = CommandLine::from_arg_matches(&matches)?;
        Ok(Asked { command_line, codes: Codes::of(&path(&matches)) })
    });
    parsed.map_err(|error| {
        let error = error.format(&mut grammar());
        // Nobody is left to tell when the stream is closed.
        error.print().ok();
        if error.use_stderr() { codes_of(words).of_failure(Failure::Usage) } else { Exit::Ok }
            .into()
    })
}

/// The exit codes of the verb that was meant, as far as that can be made out.
fn codes_of(words: &[OsString]) -> Codes {
    let matches = grammar().ignore_errors(true).try_get_matches_from(words);
    matches.map_or(Codes::Verb, |matches| Codes::of(&path(&matches)))
}

impl Asked {
    /// Does it and gives the exit code.
    pub(crate) fn run(self) -> ExitCode {
        let Self { command_line: CommandLine { global, verb }, codes } = self;
        manner::set(global.manner());
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        let done = runtime
            .map_err(anyhow::Error::new)
            .and_then(|runtime| runtime.block_on(verb.run(&global, grammar)));
        done.unwrap_or_else(|error| codes.of_failure(report::failure(&error)).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::OF_PROGRAMS;

    fn words(text: &str) -> Vec<OsString> {
        text.split(' ').map(Into::into).collect()
    }

    #[test]
    fn the_grammar_is_consistent() {
        grammar().debug_assert();
    }

    #[test]
    fn every_verb_that_ends_as_a_program_does_exists_and_says_so() {
        for path in OF_PROGRAMS {
            let grammar = grammar();
            let verb = path.iter().try_fold(&grammar, |verb, name| verb.find_subcommand(name));
            let help = verb.and_then(Command::get_after_help).map(ToString::to_string);
            assert!(help.is_some_and(|help| help.ends_with(OF_PROGRAMS_HELP)), "{path:?}");
        }
    }

    #[test]
    fn a_command_line_that_is_not_understood_still_has_the_codes_of_its_verb() {
        for (text, expected) in [
            ("forkd exec sb --bogus -- ls", Codes::Program),
            ("forkd --socket /s exec sb", Codes::Program),
            ("forkd run", Codes::Program),
            ("forkd process wait", Codes::Program),
            ("forkd process attach a b --rows", Codes::Program),
            ("forkd shell sb --timeout-secs soon", Codes::Program),
            ("forkd process kill", Codes::Verb),
            ("forkd ls exec", Codes::Verb),
            ("forkd bogus", Codes::Verb),
            ("forkd", Codes::Verb),
        ] {
            assert!(grammar().try_get_matches_from(words(text)).is_err(), "{text}");
            assert_eq!(codes_of(&words(text)), expected, "{text}");
        }
    }
}
