//! How this run talks: with colours or without, and whether at all.
//!
//! It is set once from the command line and looked at where something is printed.

use std::io::IsTerminal as _;
use std::sync::OnceLock;

use clap::ValueEnum;

/// When output has colours.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Colour {
    /// On a terminal, unless NO_COLOR is set
    #[default]
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// How this run talks.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Manner {
    /// When there are colours.
    pub(crate) colour: Colour,
    /// Names only: no remarks, no progress, no headings.
    pub(crate) quiet: bool,
}

static MANNER: OnceLock<Manner> = OnceLock::new();

/// Sets it, once.
pub(crate) fn set(manner: Manner) {
    MANNER.get_or_init(|| manner);
}

fn get() -> Manner {
    MANNER.get().copied().unwrap_or_default()
}

/// Whether only names are wanted.
pub(crate) fn is_quiet() -> bool {
    get().quiet
}

/// Whether standard output gets colours.
pub(crate) fn stdout_has_colour() -> bool {
    has_colour(get().colour, std::io::stdout().is_terminal(), &Environment::of_process())
}

/// Whether standard error gets colours.
pub(crate) fn stderr_has_colour() -> bool {
    has_colour(get().colour, std::io::stderr().is_terminal(), &Environment::of_process())
}

/// Whether progress is shown: to people, who look at a terminal.
pub(crate) fn shows_progress() -> bool {
    std::io::stderr().is_terminal() && !is_quiet()
}

#[derive(Debug, Default)]
struct Environment {
    no_color: bool,
    dumb: bool,
}

impl Environment {
    fn of_process() -> Self {
        Self {
            no_color: std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty()),
            dumb: std::env::var_os("TERM").is_some_and(|value| value == "dumb"),
        }
    }
}

fn has_colour(colour: Colour, is_terminal: bool, environment: &Environment) -> bool {
    match colour {
        Colour::Always => true,
        Colour::Never => false,
        Colour::Auto => is_terminal && !environment.no_color && !environment.dumb,
    }
}

/// How a word looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    Plain,
    Bold,
    Dim,
    Red,
    Green,
    Yellow,
}

impl Style {
    /// `text` in this style, if `colour`.
    pub(crate) fn paint(self, text: &str, colour: bool) -> String {
        let code = match self {
            Self::Plain => return text.to_owned(),
            Self::Bold => "1",
            Self::Dim => "2",
            Self::Red => "31",
            Self::Green => "32",
            Self::Yellow => "33",
        };
        if colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// The style of a state of a sandbox, a snapshot, an operation or a process.
    pub(crate) fn of_state(state: &str) -> Self {
        match state {
            "running" | "ready" | "durable" => Self::Green,
            "branching" | "paused" | "rolling_back" | "starting" | "stopping" | "writing" => {
                Self::Yellow
            }
            "dead" | "failed" | "lost" => Self::Red,
            "exited" | "succeeded" | "cancelled" => Self::Dim,
            _ => Self::Plain,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_for_terminals_whose_user_does_not_mind() {
        let plain = Environment::default();
        assert!(has_colour(Colour::Auto, true, &plain));
        assert!(!has_colour(Colour::Auto, false, &plain), "a file");
        let no_color = Environment { no_color: true, ..Environment::default() };
        assert!(!has_colour(Colour::Auto, true, &no_color));
        assert!(has_colour(Colour::Always, false, &no_color), "the option counts more");
        assert!(!has_colour(Colour::Never, true, &plain));
        assert!(!has_colour(Colour::Auto, true, &Environment { dumb: true, ..plain }));
    }

    #[test]
    fn without_colours_a_word_stays_as_it_is() {
        assert_eq!(Style::Red.paint("dead", false), "dead");
        assert_eq!(Style::Red.paint("dead", true), "\x1b[31mdead\x1b[0m");
        assert_eq!(Style::Plain.paint("x", true), "x");
    }

    #[test]
    fn every_state_of_a_sandbox_has_a_style() {
        for state in forkd_types::SandboxState::ALL {
            let plain = Style::of_state(state.name()) == Style::Plain;
            assert_eq!(plain, state.name() == "gone", "{state:?}");
        }
    }
}
