//! Programs of a guest that were started in an earlier conversation with it: by the source of a
//! branch, or by a daemon that has died. The guest agent keeps them, with what they wrote since.
//!
//! All that it says of them comes from the guest, and is bounded here.

use std::time::{Duration, SystemTime};

use forkd_protocol::{KEPT_RECORD_BYTES_MAX, Keep, REQUESTS_MAX, Reply, Request};
use forkd_types::ProcessId;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::{ProcessRequest, START_DEADLINE, Started};
use crate::guest::call::Deadline;
use crate::guest::{GuestAgent, GuestError};

const WHAT: &str = "list kept programs";

/// How long a guest has to forget a program.
const FORGET_DEADLINE: Duration = Duration::from_secs(10);

/// More output than any program writes; offsets beyond it no client could count in.
const WRITTEN_MAX: u64 = 1 << 53;

/// What we want to know of a program later, and only we can tell.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Record {
    pub(super) args: Vec<String>,
    /// Milliseconds since 1970.
    created_at: u64,
    pub(super) terminal: bool,
    pub(super) note: Option<String>,
}

impl Record {
    pub(super) fn of(request: &ProcessRequest, created_at: SystemTime) -> Self {
        let since = created_at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self {
            args: request.args.clone(),
            created_at: super::millis(since),
            terminal: request.terminal.is_some(),
            note: request.note.clone(),
        }
    }

    /// Never in the future, whatever the guest says.
    pub(super) fn created_at(&self) -> SystemTime {
        let since = Duration::from_millis(self.created_at);
        let now = SystemTime::now();
        SystemTime::UNIX_EPOCH.checked_add(since).map_or(now, |said| said.min(now))
    }

    /// As the agent keeps it. Of what is too long the note is left out, and then all arguments but
    /// the program.
    fn encode(&self) -> String {
        let without_note = Self { note: None, ..self.clone() };
        let program = self.args.first().map(|name| name.chars().take(1024).collect());
        let program = Self { args: program.into_iter().collect(), ..without_note.clone() };
        [self, &without_note, &program]
            .into_iter()
            .filter_map(|record| serde_json::to_string(record).ok())
            .find(|text| text.len() <= KEPT_RECORD_BYTES_MAX)
            .unwrap_or_default()
    }

    pub(super) fn keep(&self, id: &ProcessId) -> Keep {
        Keep { name: id.to_string(), record: self.encode() }
    }
}

/// A program that the agent keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct KeptProgram {
    pub(super) id: ProcessId,
    pub(super) pid: u32,
    /// It was started before the sandbox was forked.
    pub(super) inherited: bool,
    pub(super) record: Record,
}

impl GuestAgent {
    /// Whether there are programs of an earlier conversation.
    pub(crate) fn keeps_programs(&self) -> bool {
        self.kept().is_some_and(|count| count > 0)
    }

    /// The programs that the agent keeps, the oldest first. What is none of ours is left out.
    pub(super) async fn list_kept(&self) -> Result<Vec<KeptProgram>, GuestError> {
        let mut call = self.call(WHAT, Deadline::after(START_DEADLINE))?;
        call.begin(&Request::ListKept { output_credit: call.window() })?;
        let (mut all, mut told): (Vec<KeptProgram>, _) = (Vec::new(), 0);
        loop {
            match call.next().await? {
                Reply::Kept { name, record, pid, inherited } => {
                    told += 1;
                    if told > REQUESTS_MAX || record.len() > KEPT_RECORD_BYTES_MAX {
                        let reason = "more programs, or more of one, than are kept".to_owned();
                        return Err(GuestError::Protocol { what: WHAT, reason });
                    }
                    let Ok(id) = name.parse::<ProcessId>() else { continue };
                    if all.iter().all(|known| known.id != id) {
                        let record = serde_json::from_str(&record).unwrap_or_default();
                        all.push(KeptProgram { id, pid, inherited, record });
                    }
                }
                Reply::Done {} => {
                    call.finish();
                    return Ok(all);
                }
                other => return Err(call.unexpected(&other)),
            }
        }
    }

    /// Goes on with a program that the agent keeps.
    pub(super) async fn follow_kept(&self, program: &KeptProgram) -> Result<Started, GuestError> {
        const FOLLOW: &str = "follow a kept program";
        let mut call = self.call(FOLLOW, Deadline::after(START_DEADLINE))?;
        let (name, output_credit) = (program.id.to_string(), call.window());
        call.begin(&Request::Follow { name, output_credit })?;
        match call.next().await? {
            Reply::Followed { from, takes_input } if from <= WRITTEN_MAX => {
                call.set_deadline(Deadline::never());
                let input = takes_input.then(|| {
                    let (sender, pieces) = mpsc::channel(1);
                    call.open_input(pieces);
                    sender
                });
                Ok(Started { pid: program.pid, call, input, from })
            }
            Reply::Followed { .. } => {
                let reason = "more output than any program writes".to_owned();
                Err(GuestError::Protocol { what: FOLLOW, reason })
            }
            other => Err(call.unexpected(&other)),
        }
    }

    /// The agent keeps a program no longer, and ends it if it runs.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub(crate) async fn forget_kept(&self, id: &ProcessId) -> Result<(), GuestError> {
        if self.kept().is_none() {
            return Ok(());
        }
        let name = id.to_string();
        self.ask("forget a program", Request::Forget { name }, FORGET_DEADLINE).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(args: &[&str], note: Option<String>) -> Record {
        let request = ProcessRequest { note, ..ProcessRequest::new(args.iter().copied()) };
        Record::of(&request, SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_123))
    }

    fn read(text: &str) -> Record {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn a_record_comes_back_and_what_is_too_long_is_left_out() {
        let whole = record(&["sh", "-c", "é\"\\"], Some("{\"a\":1}".to_owned()));
        assert_eq!(read(&whole.encode()), whole);
        let long = "x".repeat(KEPT_RECORD_BYTES_MAX);
        let noted = record(&["sh", "-c", "exit"], Some(long.clone()));
        assert_eq!(read(&noted.encode()), record(&["sh", "-c", "exit"], None));
        let argued = record(&["sh", &long], Some("note".to_owned()));
        assert_eq!(read(&argued.encode()), record(&["sh"], None));
        let named = record(&[&long], None);
        assert_eq!(read(&named.encode()).args[0].len(), 1024);
    }

    #[test]
    fn a_record_that_a_guest_made_up_does_no_harm() {
        let wild = format!("{{\"created_at\":{},\"x\":[]}}", u64::MAX);
        let record = read(&wild);
        assert!(record.created_at() <= SystemTime::now());
        assert!(record.args.is_empty());
    }
}
