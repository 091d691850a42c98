//! What a reply takes: credit for its payload, memory for the rest.

use crate::part::{EvalContext, HookReport};
use crate::reply::Reply;

/// What one more extended attribute costs besides its texts, in bytes: short ones cost memory too.
const ATTRIBUTE_OVERHEAD: usize = 64;

impl Reply {
    /// Bytes of payload, for the replies that consume credit.
    #[must_use]
    pub fn payload_bytes(&self) -> Option<usize> {
        match self {
            Self::Stdout { data } | Self::Stderr { data } | Self::FileData { data } => {
                Some(data.len())
            }
            Self::EvalPart { mime, data, .. } => Some(mime.len() + data.len()),
            Self::Entry { name, kind, owner, group, attributes, link, .. } => {
                let of = |text: &Option<String>| text.as_ref().map_or(0, String::len);
                let attributes: usize = attributes
                    .iter()
                    .map(|(name, value)| name.len() + value.len() + ATTRIBUTE_OVERHEAD)
                    .sum();
                let link = link.as_ref().map_or(0, |link| link.path.len() + link.kind.len());
                Some(name.len() + kind.len() + of(owner) + of(group) + attributes + link)
            }
            Self::Change { kind, path, from, entry, detail: _ } => {
                let more = from.as_ref().map_or(0, String::len);
                let of_entry = entry.as_ref().map_or(0, |entry| entry.kind.len());
                Some(kind.len() + path.len() + more + of_entry)
            }
            Self::KeptWatch { record } => Some(record.len()),
            Self::Port { address, program, .. } => {
                Some(address.len() + program.as_ref().map_or(0, String::len))
            }
            Self::Kept { name, record, .. } => Some(name.len() + record.len()),
            Self::Welcome { .. }
            | Self::Pong { .. }
            | Self::Started { .. }
            | Self::Followed { .. }
            | Self::Credit { .. }
            | Self::Exited { .. }
            | Self::CellStarted { .. }
            | Self::Contexts { .. }
            | Self::EvalDone { .. }
            | Self::PortOpened { .. }
            | Self::FileEnd { .. }
            | Self::Written { .. }
            | Self::Done {}
            | Self::Watching {}
            | Self::Usage { .. }
            | Self::Renewed { .. }
            | Self::IdentityInEffect {}
            | Self::PoweringOff {}
            | Self::Error { .. } => None,
        }
    }
}

impl Reply {
    /// Memory that the fields of a reply take which consumes no credit, in bytes.
    #[must_use]
    pub fn bytes_without_credit(&self) -> usize {
        match self {
            Self::Welcome { agent_version, kernel_release, boot_id, .. } => {
                agent_version.len() + kernel_release.len() + boot_id.len()
            }
            Self::EvalDone { result, error, exception, .. } => {
                let length = |text: &Option<String>| text.as_ref().map_or(0, String::len);
                let exception = exception.as_ref().map_or(0, |it| it.name.len() + it.value.len());
                length(result) + length(error) + exception
            }
            Self::Contexts { contexts } => {
                let names: usize = contexts.iter().map(|it| it.id.len() + it.cwd.len()).sum();
                names + contexts.len() * size_of::<EvalContext>()
            }
            Self::Renewed { instance_id, hooks, .. } => {
                let names: usize = hooks.iter().map(|hook| hook.name.len()).sum();
                instance_id.len() + names + hooks.len() * size_of::<HookReport>()
            }
            Self::Error { code, message } => code.len() + message.len(),
            Self::Pong { .. }
            | Self::Started { .. }
            | Self::Kept { .. }
            | Self::Followed { .. }
            | Self::Stdout { .. }
            | Self::Stderr { .. }
            | Self::Credit { .. }
            | Self::Exited { .. }
            | Self::CellStarted { .. }
            | Self::EvalPart { .. }
            | Self::FileData { .. }
            | Self::FileEnd { .. }
            | Self::Written { .. }
            | Self::Entry { .. }
            | Self::Done {}
            | Self::Watching {}
            | Self::Change { .. }
            | Self::KeptWatch { .. }
            | Self::Usage { .. }
            | Self::Port { .. }
            | Self::PortOpened { .. }
            | Self::IdentityInEffect {}
            | Self::PoweringOff {} => 0,
        }
    }
}
