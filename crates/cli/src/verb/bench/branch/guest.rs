//! The meter in the guest: bringing it there, starting its programs, asking them.

use std::num::NonZeroU64;
use std::path::Path;

use anyhow::{Context as _, bail};
use forkd_api::ExecRequest;
use forkd_client::Client;
use forkd_meter_protocol::{
    Dirtied, PAGES_PER_MIB, Program, Question, Request, Spinning, Stall, Write, Written, from_line,
    to_line,
};
use serde::de::DeserializeOwned;

use crate::console::report::Hinted;
use crate::verb::bench::statistics::float;

/// Where programs can be run in any image.
const METER: &str = "/tmp/forkd-meter";

/// For a program of the meter to answer. Filling memory under emulation takes most of it.
const ANSWER_SECS: u64 = 600;

/// A sandbox with the meter in it.
pub(super) struct Guest {
    client: Client,
    id: String,
}

/// MiB per second of the guest's time between two looks. None when no time went by.
pub(super) fn mib_per_second(earlier: Written, later: Written) -> Option<f64> {
    let seconds = float(later.at_ns.checked_sub(earlier.at_ns)?) / 1e9;
    let mebibytes = float(later.pages.checked_sub(earlier.pages)?) / float(PAGES_PER_MIB);
    (seconds > 0.0).then(|| mebibytes / seconds)
}

impl Guest {
    /// Brings the meter into the sandbox.
    pub(super) async fn with_meter(
        client: Client,
        id: String,
        meter: &Path,
    ) -> anyhow::Result<Self> {
        let content = std::fs::read(meter).map_err(|error| {
            Hinted::new(
                format!("the meter `{}` cannot be read: {error}", meter.display()),
                "build it with `make build`, or name it with --meter",
            )
        })?;
        client.write_file(&id, METER, Some(0o755), content).await.context("copy the meter")?;
        Ok(Self { client, id })
    }

    /// The sandbox.
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// Starts the stall meter; it measures when this returns.
    pub(super) async fn start_stall(&self) -> anyhow::Result<()> {
        self.meter::<Spinning>(Request::Start(Program::Stall)).await.map(drop)
    }

    /// Ends the stall meter.
    pub(super) async fn stall(&self) -> anyhow::Result<Stall> {
        self.meter(Request::Ask(Question::StopStall)).await
    }

    /// Starts the writer.
    pub(super) async fn start_writer(&self, writer: Write) -> anyhow::Result<()> {
        self.meter::<Written>(Request::Start(Program::Write(writer))).await.map(drop)
    }

    /// What the writer has written so far.
    pub(super) async fn written(&self) -> anyhow::Result<Written> {
        self.meter(Request::Ask(Question::CountWritten)).await
    }

    /// Writes so many MiB of pages and holds them.
    pub(super) async fn hold_dirty(&self, mib: NonZeroU64) -> anyhow::Result<()> {
        self.meter::<Dirtied>(Request::Start(Program::Dirty(mib))).await.map(drop)
    }

    /// Writes the held pages again.
    pub(super) async fn dirty_again(&self) -> anyhow::Result<()> {
        self.meter::<Dirtied>(Request::Ask(Question::DirtyAgain)).await.map(drop)
    }

    async fn meter<T: DeserializeOwned>(&self, request: Request) -> anyhow::Result<T> {
        let argument = to_line(&request)?;
        let failed = || format!("the meter in the guest: {argument}");
        let exec = ExecRequest {
            timeout_secs: ANSWER_SECS,
            ..ExecRequest::new([METER, argument.as_str()])
        };
        let answer = self.client.exec(&self.id, &exec).await.with_context(failed)?;
        if answer.timed_out {
            bail!("{}: no answer within {ANSWER_SECS} s", failed());
        }
        if answer.exit_code != 0 {
            bail!("{}: {}", failed(), answer.stderr.trim());
        }
        from_line(&answer.stdout).with_context(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throughput_is_by_the_guests_clock_and_unknown_when_that_stood_still() {
        let earlier = Written { pages: 256, at_ns: 1_000_000_000 };
        let later = Written { pages: 256 + 25_600, at_ns: 1_500_000_000 };
        assert_eq!(mib_per_second(earlier, later), Some(200.0));
        assert_eq!(mib_per_second(earlier, earlier), None);
        assert_eq!(mib_per_second(later, earlier), None);
    }
}
