//! What a request is about: for whoever writes requests down. It travels in the extensions of the
//! answer, and no content with it.

use axum::http::HeaderMap;
use forkd_types::{Owner, SandboxId};

use crate::id;
use crate::interpreter::INTERPRETER_PORT;
use crate::shared::Shared;
use crate::target::{ENVD_PORT, Target};

/// The part of E2B's interfaces that a request is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Sandboxes and snapshots as a whole.
    Control,
    /// Programs and files of a sandbox.
    Agent,
    /// The code interpreter of a sandbox.
    Interpreter,
    /// Another server in a sandbox.
    Port,
    /// None: it could not be told.
    Unclear,
}

impl Part {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Control => "e2b control",
            Self::Agent => "e2b agent",
            Self::Interpreter => "e2b interpreter",
            Self::Port => "e2b port",
            Self::Unclear => "e2b",
        }
    }
}

/// What a request is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// The part that it is for.
    pub part: Part,
    /// To whom its key belongs, if it has one that is known.
    pub owner: Option<Owner>,
    /// The sandbox that it names, whether there is one or not.
    pub sandbox: Option<SandboxId>,
}

impl Subject {
    pub(crate) fn of(
        shared: &Shared,
        target: &Target,
        signer: Option<&SandboxId>,
        path: &str,
        headers: &HeaderMap,
    ) -> Self {
        let key = headers.get("x-api-key");
        let caller = key.and_then(|key| shared.caller(key.as_bytes()));
        let owner = caller.map(|caller| caller.owner().clone());
        let (part, sandbox) = match target {
            Target::Control => (Part::Control, in_path(path)),
            Target::Signed => (Part::Agent, signer.cloned()),
            Target::Port { id, port, .. } if *port == ENVD_PORT => (Part::Agent, id.clone()),
            Target::Port { id, port, .. } if *port == INTERPRETER_PORT => {
                (Part::Interpreter, id.clone())
            }
            Target::Port { id, .. } => (Part::Port, id.clone()),
            Target::Unclear(_) => (Part::Unclear, None),
        };
        Self { part, owner, sandbox }
    }
}

/// The sandbox that a path of the control interface names.
fn in_path(path: &str) -> Option<SandboxId> {
    let mut words = path.split('/').skip_while(|word| *word != "sandboxes");
    words.nth(1).and_then(id::said)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_its_sandbox_in_both_versions_of_the_routes() {
        let id = Some("sb-0123456789ab".parse().unwrap());
        for path in ["/sandboxes/sb0123456789ab", "/v2/sandboxes/sb0123456789ab/connect"] {
            assert_eq!(in_path(path), id, "{path}");
        }
        for path in ["/sandboxes", "/v2/sandboxes/", "/sandboxes/x", "/snapshots/sb0123456789ab"] {
            assert_eq!(in_path(path), None, "{path}");
        }
    }
}
