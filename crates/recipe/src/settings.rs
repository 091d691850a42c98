//! What steps are run with: it grows from step to step.

use std::collections::BTreeMap;

use crate::Step;

/// Variables, directory and user of the next step.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    /// Variables.
    pub env: BTreeMap<String, String>,
    /// The directory, absolute; none before the first `workdir`.
    pub workdir: Option<String>,
    /// The user; none before the first `user`.
    pub user: Option<String>,
}

impl Settings {
    /// Takes over what a step sets.
    pub fn apply(&mut self, step: &Step) {
        match step {
            Step::Env(variables) => self.env.extend(variables.clone()),
            Step::Workdir(path) => self.workdir = Some(self.absolute(path)),
            Step::User(user) => self.user = Some(user.clone()),
            Step::Run(_) | Step::Copy(_) | Step::Start(_) => {}
        }
    }

    /// A path of the sandbox, taken from the directory on. A slash at its end stays.
    #[must_use]
    pub fn absolute(&self, path: &str) -> String {
        if path.starts_with('/') {
            return path.to_owned();
        }
        let directory = self.workdir.as_deref().unwrap_or("/").trim_end_matches('/');
        let path = path.strip_prefix("./").unwrap_or(path);
        match path {
            "" | "." => format!("{directory}/"),
            path => format!("{directory}/{path}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_add_up_and_a_relative_directory_is_below_the_one_before() {
        let mut settings = Settings::default();
        assert_eq!(settings.absolute("x"), "/x");
        for path in ["/srv", "app"] {
            settings.apply(&Step::Workdir(path.into()));
        }
        assert_eq!(settings.workdir.as_deref(), Some("/srv/app"));
        assert_eq!(settings.absolute("./a/"), "/srv/app/a/");
        assert_eq!(settings.absolute("."), "/srv/app/");
        assert_eq!(settings.absolute("/a"), "/a");
        for value in ["1", "2"] {
            settings.apply(&Step::Env([("A".to_owned(), value.to_owned())].into()));
        }
        assert_eq!(settings.env["A"], "2");
    }
}
