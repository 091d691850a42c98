//! A program that shall run in a sandbox: options that several verbs have.

use clap::Args;
use forkd_api::CreateProcess;

use super::words::key_value;

/// What a program finds around it.
#[derive(Debug, Default, Args)]
pub(crate) struct Environment {
    /// Set a variable; can be repeated
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = key_value)]
    pub(crate) env: Vec<(String, String)>,
    /// Working directory in the sandbox
    #[arg(long, value_name = "DIR")]
    pub(crate) cwd: Option<String>,
    /// Run as this user of the sandbox, by name or number; without it, as the image says
    #[arg(long, short, value_name = "USER[:GROUP]")]
    pub(crate) user: Option<String>,
}

/// How a program is started that nobody need wait for.
#[derive(Debug, Default, Args)]
pub(crate) struct Program {
    #[command(flatten)]
    environment: Environment,
    /// Kill the program after this many seconds; without it, never
    #[arg(long, value_name = "SECS")]
    timeout_secs: Option<u64>,
}

impl Program {
    /// The request to start it with these arguments, without input and without a terminal.
    pub(crate) fn request(self, args: Vec<String>) -> CreateProcess {
        CreateProcess {
            env: self.environment.env.into_iter().collect(),
            cwd: self.environment.cwd,
            user: self.environment.user,
            timeout_secs: self.timeout_secs,
            ..CreateProcess::new(args)
        }
    }
}

/// `args`, or the best shell of the sandbox when there are none.
pub(crate) fn or_shell(args: Vec<String>) -> Vec<String> {
    const SHELL: &str = "command -v bash >/dev/null && exec bash; exec sh";
    if args.is_empty() { ["/bin/sh", "-c", SHELL].map(Into::into).into() } else { args }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_program_a_shell_runs() {
        assert_eq!(or_shell(vec!["ls".into()]), ["ls"]);
        assert_eq!(or_shell(Vec::new())[0], "/bin/sh");
    }
}
