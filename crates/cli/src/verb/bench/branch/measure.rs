//! The measurement: one source, and one row after the other.
//!
//! ```text
//!  write the dirty pages again                         (--dirty-mib)
//!  count the writer's pages for 500 ms                 (--write-load)
//!  start the stall meter, 100 ms
//!  branch                                              not in a floor
//!  until 1 s after the source was resumed; stop the stall meter
//!  count the writer's pages for 1 s                    (--write-load)
//!  wait until the snapshot is durable; delete it       (kept with --chain)
//! ```

use std::num::NonZeroU64;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use forkd_api::{BranchAnswer, BranchRequest, CreateSandboxes, CreateSnapshot};
use forkd_client::{Client, ClientError, Dependents};
use forkd_meter_protocol::{INTERVAL_NS, Stall};
use forkd_types::BranchMode;
use serde_json::Value;

use super::columns::{FLOOR, SHEET};
use super::guest::{self, Guest};
use super::options::{Options, WaitFor};
use crate::verb::bench::row::Row;
use crate::verb::bench::statistics;

/// The template that sources start from.
const TEMPLATE: &str = "bench";

/// From the start of the stall meter to the branch: longer than what is looked at before it.
const STALL_LEAD: Duration = Duration::from_millis(100);
/// The window of the guest gap: so long before the request ...
const GAP_BEFORE_MS: f64 = 50.0;
/// ... and so long after the resume.
const GAP_AFTER: Duration = Duration::from_secs(1);
/// Longer than the host's times and the guest's can be apart.
const GAP_MARGIN: Duration = Duration::from_millis(30);

/// How long the writer's throughput is measured before a branch, and from a second after it.
const WRITER_BEFORE: Duration = Duration::from_millis(500);
const WRITER_AFTER: Duration = Duration::from_secs(1);

/// For a snapshot to become durable. At 0.1 GB/s this writes 60 GiB.
const DURABLE_DEADLINE: Duration = Duration::from_secs(600);
const DURABLE_POLL: Duration = Duration::from_millis(10);

/// A source that is being measured.
pub(super) struct Measurement<'a> {
    client: &'a Client,
    options: &'a Options,
    guest: Guest,
    /// The time of the guest from the last branch's request to its resume.
    prepare_ms: f64,
    /// Branches so far.
    count: u32,
}

/// A branch on its way.
struct Branched {
    answer: BranchAnswer,
    round_trip_ms: f64,
    resumed_at: Instant,
}

impl<'a> Measurement<'a> {
    /// Makes the source and puts it under the load that was asked for.
    pub(super) async fn prepare(
        client: &'a Client,
        options: &'a Options,
        meter: &Path,
    ) -> anyhow::Result<Self> {
        let template = CreateSnapshot {
            mem_size_mib: options.mem_size_mib,
            vcpus: options.vcpus,
            ..CreateSnapshot::new(TEMPLATE, &options.image)
        };
        client.create_snapshot(&template).await.context("build the template")?;
        durable(client, TEMPLATE).await?;
        let sources = client.create_sandboxes(&CreateSandboxes::new(TEMPLATE, 1)).await?;
        let source = sources.into_iter().next().context("the daemon started no sandbox")?;
        let guest = Guest::with_meter(client.clone(), source.id, meter).await?;
        if let Some(mib) = NonZeroU64::new(options.dirty_mib) {
            guest.hold_dirty(mib).await?;
        }
        if let Some(writer) = options.writer() {
            guest.start_writer(writer).await?;
        }
        Ok(Self { client, options, guest, prepare_ms: 0.0, count: 0 })
    }

    /// One branch, measured.
    pub(super) async fn branch(
        &mut self,
        iteration: u32,
        mode: BranchMode,
        wait: WaitFor,
    ) -> anyhow::Result<Row> {
        let mut row = Row::new(&SHEET, iteration, &[mode.name(), wait.name()]);
        let before = self.before().await?;
        let begun = self.start_stall().await?;
        let requested = Instant::now();
        self.count += 1;
        let branched = self.request(mode, wait, requested).await?;
        let tag = branched.answer.snapshot.tag.clone();
        row.set("round_trip_ms", Ok(branched.round_trip_ms));
        if begun.is_some() || before.is_some() {
            until(branched.resumed_at + GAP_AFTER + GAP_MARGIN).await;
        }
        let stall = match begun {
            Some(begun) => Some((self.guest.stall().await?, requested - begun)),
            None => None,
        };
        self.set_writer(&mut row, before).await?;
        let info = durable(self.client, &tag).await?;
        row.take(&info, is_of_snapshot);
        if info["faults"].as_u64() == Some(0) {
            row.note("no write fault came");
        }
        self.prepare_ms = info["phases_ms"]["prepare"].as_f64().unwrap_or(self.prepare_ms);
        let gap = stall.map(|(stall, lead)| self.gap(&stall, lead));
        row.set("guest_gap_ms", gap.unwrap_or_else(|| Err("left out by --no-gap".to_owned())));
        row.set("durable_ms", durable_ms(&info));
        if !self.options.chain {
            self.delete(&mut row, &tag).await?;
        }
        Ok(row)
    }

    /// The same without a branch: the gaps that this host makes anyhow. None without the meter.
    pub(super) async fn floor(&mut self, iteration: u32) -> anyhow::Result<Option<Row>> {
        let mut row = Row::new(&SHEET, iteration, &[FLOOR, ""]);
        if self.options.dirty_mib > 0 {
            self.guest.dirty_again().await?;
        }
        let Some(begun) = self.start_stall().await? else { return Ok(None) };
        let requested = Instant::now();
        let prepare = Duration::from_secs_f64(self.prepare_ms / 1000.0);
        until(requested + prepare + GAP_AFTER + GAP_MARGIN).await;
        let stall = self.guest.stall().await?;
        row.set("guest_gap_ms", self.gap(&stall, requested - begun));
        row.note("no branch: nothing else is measured");
        Ok(Some(row))
    }

    /// The load's share before a branch; gives the writer's throughput.
    async fn before(&self) -> anyhow::Result<Option<f64>> {
        if self.options.dirty_mib > 0 {
            self.guest.dirty_again().await?;
        }
        self.throughput(WRITER_BEFORE).await
    }

    async fn throughput(&self, time: Duration) -> anyhow::Result<Option<f64>> {
        if self.options.writer().is_none() {
            return Ok(None);
        }
        let first = self.guest.written().await?;
        tokio::time::sleep(time).await;
        Ok(guest::mib_per_second(first, self.guest.written().await?))
    }

    async fn set_writer(&self, row: &mut Row, before: Option<f64>) -> anyhow::Result<()> {
        let after = self.throughput(WRITER_AFTER).await?;
        let reason = if self.options.writer().is_none() {
            "no write load"
        } else {
            "the guest's clock stood still"
        };
        row.set("writer_before_mib_per_s", before.ok_or_else(|| reason.to_owned()));
        row.set("writer_after_mib_per_s", after.ok_or_else(|| reason.to_owned()));
        Ok(())
    }

    /// Returns the instant at which the stall meter has just begun, if it is wanted.
    async fn start_stall(&self) -> anyhow::Result<Option<Instant>> {
        if self.options.no_gap {
            return Ok(None);
        }
        self.guest.start_stall().await?;
        let begun = Instant::now();
        until(begun + STALL_LEAD).await;
        Ok(Some(begun))
    }

    async fn request(
        &self,
        mode: BranchMode,
        wait: WaitFor,
        requested: Instant,
    ) -> anyhow::Result<Branched> {
        let request = BranchRequest {
            tag: Some(format!("branch-{}", self.count)),
            mode: Some(mode.into()),
            wait: wait == WaitFor::Ready,
            ..BranchRequest::default()
        };
        let answer = self.client.branch(self.guest.id(), &request).await?;
        let answered = Instant::now();
        let resumed_at = match (wait, resumed_after_ms(&answer)) {
            (WaitFor::Ready, Some(ms)) => requested + Duration::from_secs_f64(ms / 1000.0),
            (WaitFor::Ready, None) | (WaitFor::Resumed, _) => answered,
        };
        let round_trip_ms = (answered - requested).as_secs_f64() * 1000.0;
        Ok(Branched { answer, round_trip_ms, resumed_at })
    }

    /// The longest gap in the window around a branch that was requested so long after the meter
    /// began. The pause is not in the guest's time, so the window goes on after it as if it were
    /// not there.
    fn gap(&self, stall: &Stall, lead: Duration) -> Result<f64, String> {
        if let Some(problem) = &stall.problem {
            return Err(format!("the meter had no real-time priority: {problem}"));
        }
        let lead_ms = lead.as_secs_f64() * 1000.0;
        let (from, to) =
            (lead_ms - GAP_BEFORE_MS, lead_ms + self.prepare_ms + GAP_AFTER.as_secs_f64() * 1e3);
        let gap = statistics::longest_gap_ms(&stall.longest_ns, stall.spun_ns, from, to);
        let spun_ms = stall.spun_ns / INTERVAL_NS;
        gap.ok_or_else(|| format!("the meter measured {spun_ms} ms, not until {to:.0} ms"))
    }

    /// Deletes a snapshot that has been measured. One that others depend on stays until the end.
    async fn delete(&self, row: &mut Row, tag: &str) -> anyhow::Result<()> {
        match self.client.delete_snapshot(tag, Dependents::Refuse).await {
            Err(ClientError::Api(refusal)) if refusal.status == 409 => {
                row.note(&format!("the snapshot was kept: {refusal}"));
                Ok(())
            }
            result => result.with_context(|| format!("delete the snapshot `{tag}`")),
        }
    }
}

/// Whether the daemon reports this figure; the others are measured here.
fn is_of_snapshot(name: &str) -> bool {
    let ours = ["round_trip_ms", "durable_ms", "guest_gap_ms"];
    !ours.contains(&name) && !name.starts_with("writer_")
}

/// From the request to the resume, by the daemon's clock.
fn resumed_after_ms(answer: &BranchAnswer) -> Option<f64> {
    Some(answer.snapshot.phases_ms.get("prepare")? + answer.snapshot.pause_ms?)
}

/// From the request to the durable snapshot: it is published as soon as it is ready, for nothing
/// else is being published.
fn durable_ms(info: &Value) -> Result<f64, String> {
    match (info["ready_ms"].as_f64(), info["phases_ms"]["publish"].as_f64()) {
        (Some(ready), Some(publish)) => Ok(ready + publish),
        _ => Err("the daemon does not report ready_ms and phases_ms.publish".to_owned()),
    }
}

async fn until(instant: Instant) {
    tokio::time::sleep_until(instant.into()).await;
}

/// Waits until a snapshot is durable and gives what the daemon says of it.
async fn durable(client: &Client, tag: &str) -> anyhow::Result<Value> {
    let begun = Instant::now();
    loop {
        let info = client.snapshot_info_json(tag).await?;
        if info["status"] == "failed" {
            let error = info["error"].as_str().unwrap_or("it does not say why");
            bail!("the snapshot `{tag}` failed: {error}");
        }
        if info["durable"] == true {
            return Ok(info);
        }
        if begun.elapsed() > DURABLE_DEADLINE {
            bail!("the snapshot `{tag}` is not durable after {DURABLE_DEADLINE:?}");
        }
        tokio::time::sleep(DURABLE_POLL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn durable_is_ready_and_published_or_unknown() {
        let info = json!({"ready_ms": 20.0, "phases_ms": {"publish": 5.5}});
        assert_eq!(durable_ms(&info), Ok(25.5));
        assert!(durable_ms(&json!({"ready_ms": 20.0, "phases_ms": {}})).is_err());
    }
}
