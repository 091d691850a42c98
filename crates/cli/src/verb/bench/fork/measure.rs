//! The measurement: children of one request, timed, and looked at.
//!
//! ```text
//!  start n children with one request                  started_ms, start_ms, phases
//!  ask all of them at once                            answered_ms, first, last
//!  look: processor time since birth, memory           .._cpu_ms, .._answered_bytes
//!  leave them alone                                   (--idle-secs)
//!  look: processor time meanwhile, memory             idle_cpu_percent, .._idle_bytes
//!  remove them; start as many again
//!  look: memory of children that nobody has used      .._start_bytes
//! ```

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use forkd_api::{
    BranchRequest, Child, CreateSandboxes, CreateSnapshot, EvalRequest, ExecRequest, Sandbox,
};
use forkd_client::Client;

use super::columns::{ALL, CHILD, SHEET};
use super::options::{Options, Origin};
use super::process::{self, CpuTimes, Memory};
use crate::verb::bench::row::Row;
use crate::verb::bench::statistics::float;

const TEMPLATE: &str = "bench";

/// What children are started from, ready for them.
pub(super) struct Measurement<'a> {
    client: &'a Client,
    daemon: u32,
    options: &'a Options,
    /// A sandbox to branch, and the tag of its latest snapshot.
    source: Option<Sandbox>,
    tag: String,
}

/// Children of one request.
struct Children {
    requested: Instant,
    started: Duration,
    sandboxes: Vec<Sandbox>,
}

impl<'a> Measurement<'a> {
    pub(super) async fn prepare(
        client: &'a Client,
        daemon: u32,
        options: &'a Options,
    ) -> anyhow::Result<Self> {
        let template = CreateSnapshot {
            mem_size_mib: options.mem_size_mib,
            vcpus: options.vcpus,
            ..CreateSnapshot::new(TEMPLATE, &options.image)
        };
        client.create_snapshot(&template).await.context("build the template")?;
        let mut this = Self { client, daemon, options, source: None, tag: TEMPLATE.to_owned() };
        if options.depth == 0 && options.from == Origin::Snapshot {
            return Ok(this);
        }
        let sources = client.create_sandboxes(&CreateSandboxes::new(TEMPLATE, 1)).await?;
        let source = sources.into_iter().next().context("the daemon started no sandbox")?;
        for _ in 0..options.depth {
            let branched = client.branch(&source.id, &BranchRequest::default()).await?;
            this.tag = branched.snapshot.tag;
        }
        if options.from == Origin::Sandbox {
            this.source = Some(source);
        }
        Ok(this)
    }

    /// Children, from their request until they are removed.
    pub(super) async fn fork(&self, iteration: u32) -> anyhow::Result<Vec<Row>> {
        let mut all = Row::new(&SHEET, iteration, &[ALL]);
        let available = process::host_memory_available();
        let daemon = CpuTimes::of(self.daemon);
        let children = self.start().await?;
        let answered = self.ask(&children).await?;
        let mut rows: Vec<Row> =
            children.sandboxes.iter().map(|_| Row::new(&SHEET, iteration, &[CHILD])).collect();
        self.set_times(&mut all, &children, &answered);
        set_host(&mut all, available, children.sandboxes.len());
        let daemon = daemon.and_then(|before| Ok(CpuTimes::of(self.daemon)?.since(&before)));
        all.set("daemon_cpu_ms", daemon.map(|used| milliseconds(used.vmm_ns)));
        let mut after_answer = Vec::new();
        for ((row, sandbox), took) in rows.iter_mut().zip(&children.sandboxes).zip(&answered) {
            let info = serde_json::to_value(sandbox)?;
            row.take(&info, |name| name.starts_with("start_"));
            row.set("answered_ms", Ok(took.as_secs_f64() * 1e3));
            let times = pid(sandbox).and_then(CpuTimes::of);
            set_cpu(row, &times);
            set_memory(row, "answered", sandbox);
            after_answer.push(times);
        }
        self.set_idle(&mut rows, &children, after_answer).await;
        self.remove(children).await?;
        let children = self.start().await?;
        for (row, sandbox) in rows.iter_mut().zip(&children.sandboxes) {
            set_memory(row, "start", sandbox);
        }
        self.remove(children).await?;
        rows.insert(0, all);
        Ok(rows)
    }

    async fn start(&self) -> anyhow::Result<Children> {
        let requested = Instant::now();
        let n = self.options.count;
        let sandboxes = match &self.source {
            None => self.client.create_sandboxes(&CreateSandboxes::new(&self.tag, n)).await?,
            Some(source) => {
                let request = BranchRequest { n, ..BranchRequest::default() };
                let children = self.client.branch(&source.id, &request).await?.children;
                children.into_iter().map(of_child).collect::<Result<_, _>>()?
            }
        };
        Ok(Children { requested, started: requested.elapsed(), sandboxes })
    }

    /// Asks all of them at once. Gives when each had answered, from the request for them.
    async fn ask(&self, children: &Children) -> anyhow::Result<Vec<Duration>> {
        let requested = children.requested;
        let questions = children.sandboxes.iter().map(|sandbox| {
            let (client, id) = (self.client.clone(), sandbox.id.clone());
            let (eval, args) = (self.options.eval.clone(), self.options.args.clone());
            tokio::spawn(async move {
                first_answer(&client, &id, eval, args).await?;
                anyhow::Ok(requested.elapsed())
            })
        });
        let mut answered = Vec::new();
        for question in questions.collect::<Vec<_>>() {
            answered.push(question.await.context("ask a child")??);
        }
        Ok(answered)
    }

    fn set_times(&self, all: &mut Row, children: &Children, answered: &[Duration]) {
        all.set("started_ms", Ok(children.started.as_secs_f64() * 1e3));
        let none = || "no child was started".to_owned();
        let shown = |took: Option<&Duration>| took.map(|took| took.as_secs_f64() * 1e3);
        all.set("first_answered_ms", shown(answered.iter().min()).ok_or_else(none));
        let last = shown(answered.iter().max());
        all.set("last_answered_ms", last.ok_or_else(none));
        let cpus = std::thread::available_parallelism().map_err(|error| error.to_string());
        let rate = cpus.and_then(|cpus| {
            let seconds = last.ok_or_else(none)? / 1e3;
            Ok(f64::from(self.options.count) / seconds / float(cpus.get() as u64))
        });
        all.set("children_per_s_per_cpu", rate);
    }

    /// Leaves the children alone, and looks what they did meanwhile.
    async fn set_idle(
        &self,
        rows: &mut [Row],
        children: &Children,
        before: Vec<Result<CpuTimes, String>>,
    ) {
        if self.options.idle_secs == 0 {
            let names = ["private_idle_bytes", "proportional_idle_bytes", "idle_cpu_percent"];
            let left_out = |row: &mut Row| {
                names
                    .iter()
                    .for_each(|name| row.set(name, Err("left out by --idle-secs 0".into())));
            };
            return rows.iter_mut().for_each(left_out);
        }
        let begun = Instant::now();
        tokio::time::sleep(Duration::from_secs(self.options.idle_secs)).await;
        for ((row, sandbox), before) in rows.iter_mut().zip(&children.sandboxes).zip(before) {
            let used = before.and_then(|before| Ok(CpuTimes::of(pid(sandbox)?)?.since(&before)));
            let waited_ms = begun.elapsed().as_secs_f64() * 1e3;
            let share = used.map(|used| milliseconds(used.guest_ns + used.vmm_ns) / waited_ms);
            row.set("idle_cpu_percent", share.map(|share| share * 100.0));
            set_memory(row, "idle", sandbox);
        }
    }

    async fn remove(&self, children: Children) -> anyhow::Result<()> {
        for sandbox in children.sandboxes {
            self.client.delete_sandbox(&sandbox.id).await?;
        }
        Ok(())
    }
}

async fn first_answer(
    client: &Client,
    id: &str,
    eval: Option<String>,
    args: Vec<String>,
) -> anyhow::Result<()> {
    let (exit_code, errors) = match eval {
        Some(code) => {
            let answer = client.eval(id, &EvalRequest::new(code)).await?;
            (answer.exit_code, answer.error.unwrap_or_default())
        }
        None => {
            let answer = client.exec(id, &ExecRequest::new(args)).await?;
            (answer.exit_code, answer.stderr)
        }
    };
    if exit_code != 0 {
        bail!("the first answer of a child: exit code {exit_code}: {}", errors.trim());
    }
    Ok(())
}

fn of_child(child: Child) -> anyhow::Result<Sandbox> {
    match child {
        Child::Sandbox(sandbox) => Ok(*sandbox),
        Child::Error(error) => bail!("a child did not start: {}", error.error),
    }
}

fn pid(sandbox: &Sandbox) -> Result<u32, String> {
    sandbox.pid.ok_or_else(|| "it has no VMM any more".to_owned())
}

/// Of each child, what the host has less than before.
fn set_host(all: &mut Row, before: Option<u64>, children: usize) {
    let both = before.zip(process::host_memory_available());
    let taken = both.map(|(before, now)| float(before) - float(now));
    let each = taken.map(|taken| taken / float(children as u64));
    all.set("host_memory_bytes", each.ok_or_else(|| "/proc/meminfo does not tell".to_owned()));
}

fn set_cpu(row: &mut Row, times: &Result<CpuTimes, String>) {
    let used = times.as_ref().map(|times| times.since(&CpuTimes::default()));
    let used = used.map_err(Clone::clone);
    row.set("vmm_cpu_ms", used.clone().map(|used| milliseconds(used.vmm_ns)));
    row.set("guest_cpu_ms", used.map(|used| milliseconds(used.guest_ns)));
}

fn set_memory(row: &mut Row, when: &str, sandbox: &Sandbox) {
    let memory = pid(sandbox).and_then(process::memory);
    let bytes = |which: fn(&Memory) -> u64| memory.as_ref().map(which).map_err(Clone::clone);
    let (private, proportional) =
        (bytes(|memory| memory.private.get()), bytes(|memory| memory.proportional.get()));
    row.set(&format!("private_{when}_bytes"), private.map(float));
    row.set(&format!("proportional_{when}_bytes"), proportional.map(float));
}

fn milliseconds(nanoseconds: u64) -> f64 {
    float(nanoseconds) / 1e6
}
