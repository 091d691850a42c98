//! The meter in the guest: bringing it there, starting its programs, asking them.

use std::path::Path;

use anyhow::{Context as _, bail};
use forkd_api::ExecRequest;
use forkd_client::Client;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::report::Hinted;

/// Where programs can be run in any image.
const METER: &str = "/tmp/forkd-meter";

/// For a program of the meter to answer. Filling memory under emulation takes most of it.
const ANSWER_SECS: u64 = 600;

/// A sandbox with the meter in it.
pub(super) struct Guest {
    client: Client,
    id: String,
}

/// What the stall meter measured.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Stall {
    /// Why it had no real-time priority on a CPU of its own, if so.
    pub(super) problem: Option<String>,
    /// How long it measured, by the guest's clock.
    pub(super) spun_ns: u64,
    /// The longest gap that began in each millisecond.
    pub(super) longest_ns: Vec<u64>,
}

/// What the writer does, in the words of the meter.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Writer {
    /// Size of its area.
    pub(super) mib: u64,
    /// MiB per second, or `max`.
    pub(super) rate: String,
    pub(super) touch: &'static str,
    pub(super) order: &'static str,
}

/// What the writer has written so far.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(super) struct Written {
    pages: u64,
    at_ns: u64,
}

impl Written {
    /// MiB per second of the guest's time since an earlier look. None when no time went by.
    pub(super) fn mib_per_second_since(self, earlier: Self) -> Option<f64> {
        let seconds = float(self.at_ns.checked_sub(earlier.at_ns)?) / 1e9;
        let mebibytes = float(self.pages.checked_sub(earlier.pages)?) / 256.0;
        (seconds > 0.0).then(|| mebibytes / seconds)
    }
}

/// A count as a number to calculate with.
#[expect(clippy::cast_precision_loss, reason = "below 2^53, or shown with few digits")]
pub(super) fn float(number: u64) -> f64 {
    number as f64
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
        self.meter::<serde_json::Value>(&["stall"]).await.map(drop)
    }

    /// Ends the stall meter.
    pub(super) async fn stall(&self) -> anyhow::Result<Stall> {
        self.meter(&["ask", "stall", "stop"]).await
    }

    /// Starts the writer.
    pub(super) async fn start_writer(&self, writer: &Writer) -> anyhow::Result<()> {
        let Writer { mib, rate, touch, order } = writer;
        let mib = mib.to_string();
        let args = ["write", "--mib", &mib, "--rate", rate, "--touch", touch, "--order", order];
        self.meter::<serde_json::Value>(&args).await.map(drop)
    }

    /// What the writer has written so far.
    pub(super) async fn written(&self) -> anyhow::Result<Written> {
        self.meter(&["ask", "write", "count"]).await
    }

    /// Writes so many MiB of pages and holds them.
    pub(super) async fn hold_dirty(&self, mib: u64) -> anyhow::Result<()> {
        self.meter::<serde_json::Value>(&["dirty", "--mib", &mib.to_string()]).await.map(drop)
    }

    /// Writes the held pages again.
    pub(super) async fn dirty_again(&self) -> anyhow::Result<()> {
        self.meter::<serde_json::Value>(&["ask", "dirty", "again"]).await.map(drop)
    }

    async fn meter<T: DeserializeOwned>(&self, args: &[&str]) -> anyhow::Result<T> {
        let failed = || format!("the meter in the guest: {}", args.join(" "));
        let mut request = ExecRequest::new([&[METER], args].concat());
        request.timeout_secs = ANSWER_SECS;
        let answer = self.client.exec(&self.id, &request).await.with_context(failed)?;
        if answer.timed_out {
            bail!("{}: no answer within {ANSWER_SECS} s", failed());
        }
        if answer.exit_code != 0 {
            bail!("{}: {}", failed(), answer.stderr.trim());
        }
        serde_json::from_str(&answer.stdout).with_context(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throughput_is_by_the_guests_clock_and_unknown_when_that_stood_still() {
        let earlier = Written { pages: 256, at_ns: 1_000_000_000 };
        let later = Written { pages: 256 + 25_600, at_ns: 1_500_000_000 };
        assert_eq!(later.mib_per_second_since(earlier), Some(200.0));
        assert_eq!(earlier.mib_per_second_since(earlier), None);
        assert_eq!(earlier.mib_per_second_since(later), None);
    }

    #[test]
    fn the_answer_of_the_meter_is_understood() {
        let text = r#"{"problem":null,"spun_ns":2500000,"longest_ns":[5,0,7]}"#;
        let stall: Stall = serde_json::from_str(text).unwrap();
        assert_eq!((stall.problem, stall.spun_ns, stall.longest_ns.len()), (None, 2_500_000, 3));
    }
}
