//! A program that shall run in a sandbox: options that several verbs have.

use std::collections::BTreeMap;

use forkd_api::CreateProcess;

use crate::report::Hinted;

/// How a program is started.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Program {
    /// Add to the environment; may be given again
    #[arg(long = "env", value_name = "NAME=VALUE")]
    env: Vec<String>,
    /// Working directory in the sandbox
    #[arg(long, value_name = "DIR")]
    cwd: Option<String>,
    /// Kill the program after this time; never by default
    #[arg(long, value_name = "SECS")]
    timeout_secs: Option<u64>,
}

impl Program {
    /// The request to start it with these arguments, without input and without a terminal.
    pub(crate) fn request(&self, args: Vec<String>) -> Result<CreateProcess, Hinted> {
        Ok(CreateProcess {
            env: environment(&self.env)?,
            cwd: self.cwd.clone(),
            timeout_secs: self.timeout_secs,
            ..CreateProcess::new(args)
        })
    }
}

/// `args`, or the best shell of the sandbox when there are none.
pub(crate) fn or_shell(args: Vec<String>) -> Vec<String> {
    const SHELL: &str = "command -v bash >/dev/null && exec bash; exec sh";
    if args.is_empty() { ["/bin/sh", "-c", SHELL].map(Into::into).into() } else { args }
}

/// Assignments such as `LANG=C`.
pub(crate) fn environment(assignments: &[String]) -> Result<BTreeMap<String, String>, Hinted> {
    let split = |text: &String| match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(Hinted::usage(
            format!("--env `{text}` is not NAME=VALUE"),
            "write for example --env LANG=C",
        )),
    };
    assignments.iter().map(split).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_assignment_is_split_at_the_first_equals_sign() {
        let parsed = environment(&["A=1".into(), "B=x=y".into(), "C=".into()]).unwrap();
        assert_eq!(parsed["A"], "1");
        assert_eq!(parsed["B"], "x=y");
        assert_eq!(parsed["C"], "");
        assert!(environment(&["A".into()]).is_err());
        assert!(environment(&["=1".into()]).is_err());
    }

    #[test]
    fn without_a_program_a_shell_runs() {
        assert_eq!(or_shell(vec!["ls".into()]), ["ls"]);
        assert_eq!(or_shell(Vec::new())[0], "/bin/sh");
    }
}
