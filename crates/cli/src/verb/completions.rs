//! `forkd completions`: what a shell needs to complete our verbs and options.

use clap_complete::Shell;

use crate::console::output;

/// Print a completion script for a shell
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    forkd completions bash > /etc/bash_completion.d/forkd\n  \
    forkd completions zsh > \"${fpath[1]}/_forkd\"\n  \
    forkd completions fish > ~/.config/fish/completions/forkd.fish")]
pub(crate) struct Options {
    /// The shell
    shell: Shell,
}

pub(crate) fn run(options: &Options, mut grammar: clap::Command) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut grammar, "forkd", &mut script);
    output::bytes(&script)
}
