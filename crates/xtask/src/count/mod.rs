//! `count`: how many instructions starts and branches take on KVM, phase by phase.
//!
//! The emulated machine of the KVM tier runs with a clock that counts its instructions: those of
//! its kernel, of the product and of the guests. So the figures do not depend on how fast or busy
//! this machine is. What they cannot tell: how long an instruction takes, what waits for disks and
//! networks, and what several processors do at the same time. A wait counts too: a millisecond of
//! it as a million.
//!
//! The programs are released ones: those that the tests run take several times as long to scan a
//! guest's memory.
//!
//! Guarantees: one thing at a time is counted; nothing is written but with `--write`.

mod output;
mod table;

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use self::table::Row;
use crate::emulated::{self, Clock, END, PRODUCT_ENVIRONMENT, Payload};
use crate::images::{self, KvmHost};
use crate::progress::{Step, say};
use crate::workspace::Workspace;
use crate::{build, debian13, setup};

/// Options of `count`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Fail if more is counted than the table says.
    #[arg(long, conflicts_with = "write")]
    check: bool,
    /// Write what is counted to the table.
    #[arg(long)]
    write: bool,
    /// RAM of the guests, in MiB; several sizes separated by commas.
    #[arg(long, value_delimiter = ',', default_value = "256")]
    mem_size_mib: Vec<u32>,
    /// Count on Debian 13's kernel and QEMU.
    #[arg(long)]
    debian13: bool,
    /// Everything is built, and this runs in Debian 13.
    #[arg(long, hide = true, conflicts_with = "debian13")]
    in_debian13: bool,
}

/// What the counting needs of the images.
const IMAGES: [&str; 3] = ["kernel", "initramfs", "python"];
/// What runs in the machine.
const JOB: &str = include_str!("job.sh");
/// The tables, which are committed: of this machine's Debian, and of Debian 13.
const TABLES: [&str; 2] = ["bench/data/count/debian12.csv", "bench/data/count/debian13.csv"];
/// Several times what it takes on a processor of its own.
const DEADLINE: Duration = Duration::from_secs(1800);
/// Between two looks at the machine.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Counts, and shows, compares or writes the table.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    if !options.in_debian13 {
        setup::run(workspace)?;
        build::run(workspace)?;
    }
    if options.debian13 {
        return in_debian13(workspace, options);
    }
    if !options.in_debian13 {
        images::run(workspace, &images::Options::default())?;
    }
    let host = images::kvm_host(workspace)?;
    let rows = output::rows(&play(workspace, &host, &options.sizes(" "))?)?;
    say(&table::for_people(&rows));
    let table = TABLES[usize::from(options.in_debian13)];
    let path = workspace.root.join(table);
    if options.write {
        write(&path, &rows)?;
        say(&format!("written to {table}"));
    }
    if options.check {
        return check(&path, &rows);
    }
    Ok(ExitCode::SUCCESS)
}

/// Does the same in Debian 13, with images of its packages.
fn in_debian13(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    if let Some(obstacle) = debian13::obstacle() {
        bail!("Debian 13 {obstacle}");
    }
    debian13::prepare(workspace)?;
    let mut xtask = debian13::this_program(workspace);
    xtask.args(["count", "--in-debian13", "--mem-size-mib", &options.sizes(",")]);
    xtask.args(options.write.then_some("--write")).args(options.check.then_some("--check"));
    let status = debian13::system(workspace).command(&xtask).status().context("start setpriv")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Options {
    fn sizes(&self, between: &str) -> String {
        let sizes: Vec<String> = self.mem_size_mib.iter().map(u32::to_string).collect();
        sizes.join(between)
    }
}

/// Runs the machine once; what its programs printed.
fn play(workspace: &Workspace, host: &KvmHost, sizes: &str) -> anyhow::Result<String> {
    let step = Step::start("count in the emulated machine");
    let folder = tempfile::Builder::new().prefix("count-").tempdir_in(workspace.kvm_host())?;
    let mut payload = Payload::begin(folder.path())?;
    payload.add_images(workspace, &IMAGES)?;
    payload.add_product(&workspace.released())?;
    payload.add_script("count", JOB)?;
    let disk = payload.finish(PRODUCT_ENVIRONMENT, &format!("count {sizes}\n"))?;
    let logs = ["count-console", "count-qemu", "count"].map(|name| workspace.log(name));
    let [console, words, printed] = &logs;
    fs::create_dir_all(workspace.root.join("build/logs")).context("create build/logs")?;
    let file =
        |path: &Path| File::create(path).with_context(|| format!("create {}", path.display()));
    let mut qemu = emulated::machine(host, &disk, console, Clock::Instructions);
    qemu.stdout(file(printed)?).stderr(file(words)?);
    let mut machine = qemu.spawn().context("start qemu-system-x86_64")?;
    let ended = wait(&mut machine, printed, &step);
    // It may have ended by itself.
    machine.kill().ok();
    machine.wait().context("wait for the machine")?;
    ended?;
    let text = fs::read_to_string(printed).context("read what was printed")?;
    let code = text.lines().find_map(|line| line.strip_prefix(END));
    if code != Some("0") {
        bail!("the counting did not end well; see {} and {}", printed.display(), console.display());
    }
    step.done("counted");
    Ok(text)
}

/// Waits until the machine has ended.
fn wait(machine: &mut Child, printed: &Path, step: &Step) -> anyhow::Result<()> {
    let begun = Instant::now();
    while machine.try_wait()?.is_none() {
        if begun.elapsed() > DEADLINE {
            bail!("the machine was not done within {} s", DEADLINE.as_secs());
        }
        let text = fs::read_to_string(printed).unwrap_or_default();
        step.detail(&format!("{} lines", text.lines().count()));
        thread::sleep(LOOK_INTERVAL);
    }
    Ok(())
}

fn write(path: &Path, rows: &[Row]) -> anyhow::Result<()> {
    let folder = path.parent().context("the table is in a folder")?;
    fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    let before = fs::read_to_string(path).ok().map(|text| table::of_csv(&text));
    let before = before.transpose().with_context(|| format!("read {}", path.display()))?;
    let text = table::to_csv(&table::renewed(before.unwrap_or_default(), rows));
    fs::write(path, text).with_context(|| format!("write {}", path.display()))
}

fn check(path: &Path, rows: &[Row]) -> anyhow::Result<ExitCode> {
    let text = fs::read_to_string(path);
    let text =
        text.with_context(|| format!("read {}: run `make count WRITE=1`", path.display()))?;
    let was = table::of_csv(&text).with_context(|| format!("read {}", path.display()))?;
    let findings = table::growth(&was, rows);
    if findings.is_empty() {
        say("nothing has grown");
        return Ok(ExitCode::SUCCESS);
    }
    findings.iter().for_each(|finding| say(&format!("grown: {finding}")));
    say(
        "Make it cheaper. If it is worth its price, run `make count WRITE=1`, commit the table and \
         say in the commit what the instructions buy.",
    );
    Ok(ExitCode::FAILURE)
}
