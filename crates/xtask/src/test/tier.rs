//! One tier of tests: whether this machine can run it, running it.

use std::collections::VecDeque;
use std::fs::{self, OpenOptions};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;

use anyhow::anyhow;

use super::harness::{Harness, SYSTEM_TESTS};
use super::libtest::Counts;
use super::programs::{Selection, TestProgram};
use super::{debian13, kvm, sdk, templates};
use crate::fuzz::{self, Effort};
use crate::node;
use crate::workspace::Workspace;

/// How the names of test programs that need kernel features start.
const KERNEL_PREFIX: &str = "kernel_";

/// The guest agent's tests in a real machine, by package and test program. They are ignored
/// elsewhere because they are told by the environment what to boot.
const BOOT_TESTS: (&str, &str) = ("forkd-agent", "boot");

/// Two machines fit a small host; these tests spend much of their time waiting.
const AT_ONCE: &str = "--test-threads=2";

/// For the patient ones. With two at once, they left more than half of two processors idle.
const PATIENT_AT_ONCE: &str = "--test-threads=3";

/// The test programs that keep both processors of a small host busy: they run while the other
/// lane has little use for one.
const BUSY: [&str; 2] = ["vm_branch", "vm_cli"];

/// Those that wait half of their time, or run one test at a time: they come last, beside the KVM
/// tier, which has use for one processor.
const PATIENT: [&str; 2] = ["vm_faults", "vm_prove"];

/// Programs of the VM tier that run at the same time: with two, guests beside another lane did not
/// answer in time.
const VM_PROGRAMS_AT_ONCE: usize = 1;

/// How the tier searches in each fuzz target: always from the same seed, so that the same code does
/// not pass today and fail tomorrow. `make fuzz` looks elsewhere each time.
const FUZZ: Effort = Effort { seconds: 8, seed: Some(1) };

/// Write protection of shared memory came with this Linux.
const LINUX_MINIMUM: (u32, u32) = (5, 19);

/// `CAP_SYS_PTRACE`, which the kernel takes as permission for userfaultfd.
const CAPABILITY_PTRACE_BIT: u32 = 19;

/// A tier, named after what it needs.
#[derive(Debug, Clone, Copy, PartialEq, clap::ValueEnum)]
pub(super) enum Tier {
    Pure,
    Fuzz,
    Python,
    #[value(name = "typescript")]
    TypeScript,
    Kernel,
    Vm,
    Conformance,
    Kvm,
    Debian13,
}

/// How a tier went.
pub(super) enum Outcome {
    /// The machine cannot run it; why.
    NotRun(String),
    /// There are no tests in it.
    Absent,
    Ran {
        counts: Counts,
        /// None if all is well.
        error: Option<String>,
        log: PathBuf,
    },
}

impl Tier {
    pub(super) const ALL: [Self; 9] = [
        Self::Pure,
        Self::Fuzz,
        Self::Python,
        Self::TypeScript,
        Self::Kernel,
        Self::Vm,
        Self::Conformance,
        Self::Kvm,
        Self::Debian13,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Pure => "pure",
            Self::Fuzz => "fuzz",
            Self::Python => "Python",
            Self::TypeScript => "TypeScript",
            Self::Kernel => "kernel",
            Self::Vm => "VM",
            Self::Conformance => "conformance",
            Self::Kvm => "KVM",
            Self::Debian13 => "Debian 13",
        }
    }

    /// In the names of its logs.
    fn word(self) -> String {
        self.name().to_lowercase().replace(' ', "")
    }

    /// Whether it runs when no tier is named. Debian 13 would double the time of the whole.
    pub(super) fn is_default(self) -> bool {
        self != Self::Debian13
    }

    /// Why this machine cannot run it.
    fn obstacle(self) -> Option<String> {
        match self {
            Self::Pure | Self::Fuzz | Self::Python => None,
            Self::TypeScript => node::obstacle(),
            Self::Kernel => userfaultfd_obstacle(),
            Self::Vm | Self::Kvm => qemu_obstacle(),
            Self::Conformance => qemu_obstacle().or_else(node::obstacle),
            Self::Debian13 => crate::debian13::obstacle(),
        }
    }

    /// Whether its tests are run by something else than cargo.
    fn has_own_programs(self) -> bool {
        !matches!(self, Self::Pure | Self::Kernel | Self::Vm)
    }
}

impl Outcome {
    /// Whether it makes the whole run fail.
    pub(super) fn is_failure(&self, require_all: bool) -> bool {
        match self {
            Self::NotRun(_) => require_all,
            Self::Absent => false,
            Self::Ran { error, .. } => error.is_some(),
        }
    }
}

/// What a tier runs, in that order; nothing for tiers with programs of another kind.
fn of_tier(tier: Tier, programs: &[TestProgram]) -> Vec<Invocation<'_>> {
    // The same programs, elsewhere.
    let played = if tier == Tier::Debian13 { Tier::Vm } else { tier };
    let chosen = programs.iter().filter_map(|program| {
        let is_boot = (&*program.package, &*program.name) == BOOT_TESTS;
        let home = if program.package == SYSTEM_TESTS {
            Tier::Vm
        } else if program.name.starts_with(KERNEL_PREFIX) {
            Tier::Kernel
        } else {
            Tier::Pure
        };
        let arguments: &[&str] = match played {
            Tier::Vm if PATIENT.contains(&&*program.name) => &[PATIENT_AT_ONCE],
            Tier::Vm if is_boot => &["--ignored", AT_ONCE],
            Tier::Vm => &[AT_ONCE],
            _ => &[],
        };
        (home == played || is_boot && played == Tier::Vm).then_some((program, arguments))
    });
    let mut chosen: Vec<_> = chosen.collect();
    let place = |program: &TestProgram| {
        let within = |names: &[&str]| names.iter().position(|name| *name == program.name);
        let patient = within(&PATIENT).map(|at| (2, at));
        patient.or(within(&BUSY).map(|at| (0, at))).unwrap_or((1, 0))
    };
    chosen.sort_by_key(|(program, _)| place(program));
    chosen
}

/// What can be chosen by name in these tiers.
pub(super) fn names<'a>(tiers: &[Tier], programs: &'a [TestProgram]) -> Vec<&'a str> {
    let of_tiers = tiers.iter().flat_map(|tier| of_tier(*tier, programs));
    let demo = tiers.contains(&Tier::Debian13).then_some(debian13::DEMO);
    of_tiers.map(|(program, _)| &*program.name).chain(demo).collect()
}

/// Runs a tier, or what is selected of it.
pub(super) fn run(
    workspace: &Workspace,
    tier: Tier,
    all: &[TestProgram],
    selection: &Selection,
) -> anyhow::Result<Outcome> {
    let mut programs = of_tier(tier, all);
    programs.retain(|(program, _)| selection.has(&program.name));
    if programs.is_empty() && !tier.has_own_programs() {
        return Ok(Outcome::Absent);
    }
    if let Some(reason) = tier.obstacle() {
        return Ok(Outcome::NotRun(reason));
    }
    let log = workspace.log(&format!("test-{}", tier.word()));
    let mut harness = Harness::new(tier.name(), &log)?;
    harness.say("begins");
    let mut trouble = None;
    let own = match tier {
        Tier::Kvm => kvm::run(workspace, all, &mut harness),
        Tier::Python => sdk::python(workspace, &mut harness),
        Tier::TypeScript => sdk::typescript(workspace, &mut harness),
        Tier::Conformance => sdk::conformance(workspace, &mut harness),
        Tier::Fuzz => fuzz(workspace, &mut harness),
        Tier::Pure if selection.is_all() => documentation(workspace, &mut harness),
        Tier::Pure => Ok(true),
        Tier::Debian13 => in_debian13(workspace, &programs, selection, &mut harness),
        Tier::Vm => templates::make(workspace).map(|()| true),
        Tier::Kernel => Ok(true),
    };
    match own {
        Ok(true) => {}
        Ok(false) => trouble = Some("a test program died".to_owned()),
        Err(error) => trouble = Some(format!("{error:#}")),
    }
    let mut counts = harness.counts;
    for ran in run_programs(workspace, tier, programs, &selection.arguments)? {
        trouble = ran.trouble.or(trouble);
        counts.add(ran.counts);
    }
    let error = if counts.failed > 0 || !counts.failures.is_empty() {
        Some("tests failed".to_owned())
    } else {
        trouble.or_else(|| (counts.ran() == 0).then(|| "no test ran".to_owned()))
    };
    // Test programs have logs of their own beside it.
    let log = workspace.log(&format!("test-{}*", tier.word()));
    Ok(Outcome::Ran { counts, error, log })
}

/// A test program and its arguments.
type Invocation<'a> = (&'a TestProgram, &'static [&'static str]);

/// What became of a test program.
struct Ran {
    counts: Counts,
    trouble: Option<String>,
}

/// Runs test programs. Those of the VM tier run two at a time, each with a log of its own: a test
/// waits for its guest more than half of its time.
fn run_programs(
    workspace: &Workspace,
    tier: Tier,
    programs: Vec<Invocation<'_>>,
    more: &[String],
) -> anyhow::Result<Vec<Ran>> {
    let workers = if tier == Tier::Vm { VM_PROGRAMS_AT_ONCE } else { 1 };
    let elsewhere = (tier == Tier::Debian13).then(|| crate::debian13::system(workspace));
    let left = Mutex::new(VecDeque::from(programs));
    let work = || {
        let mut done = Vec::new();
        loop {
            let next = left.lock().map_err(|_| anyhow!("a thread died"))?.pop_front();
            let Some((program, arguments)) = next else { return anyhow::Ok(done) };
            let log = workspace.log(&format!("test-{}-{}", tier.word(), program.name));
            let mut harness = Harness::new(tier.name(), &log)?;
            let mut command = program.command(workspace);
            command.args(arguments).args(more);
            if let Some(system) = &elsewhere {
                command = system.command(&command);
            }
            let well = harness.run(&program.name, &mut command)?;
            let trouble = (!well).then(|| format!("{} failed or died", program.name));
            done.push(Ran { counts: harness.counts, trouble });
        }
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        let mut done = Vec::new();
        for worker in workers {
            done.extend(worker.join().map_err(|_| anyhow!("a thread died"))??);
        }
        Ok(done)
    })
}

/// What the tier of Debian 13 does before its test programs run.
fn in_debian13(
    workspace: &Workspace,
    programs: &[Invocation<'_>],
    selection: &Selection,
    harness: &mut Harness,
) -> anyhow::Result<bool> {
    if !programs.is_empty() {
        debian13::make_templates(workspace)?;
    }
    // Its arguments would not mean to it what they mean to a program of tests.
    if selection.has(debian13::DEMO) && selection.arguments.is_empty() {
        return debian13::demonstrate(workspace, harness);
    }
    Ok(true)
}

/// Runs the examples in the documentation of the crates.
fn documentation(workspace: &Workspace, harness: &mut Harness) -> anyhow::Result<bool> {
    let mut cargo = workspace.cargo();
    // As the programs were built, so that no crate is built once more.
    cargo.args(["test", "--locked", "--no-fail-fast", "--workspace", "--doc"]);
    harness.run("documentation", &mut cargo)
}

/// Searches in every fuzz target for a short time, each told as a test.
fn fuzz(workspace: &Workspace, harness: &mut Harness) -> anyhow::Result<bool> {
    harness.begin("fuzz")?;
    let log = workspace.log("fuzz-build");
    let reports = fuzz::search(workspace, &[], FUZZ, Some(&log))?;
    let failed = reports.iter().filter(|report| report.outcome.is_err()).count();
    for report in &reports {
        let (word, said) = match &report.outcome {
            Ok(executed) => ("ok", format!("{executed} inputs")),
            Err(what) => ("FAILED", what.clone()),
        };
        if report.outcome.is_err() {
            harness.say(&format!("{}: {said}", report.target));
        }
        harness.line(format!("{}: {said}\n", report.target).as_bytes())?;
        harness.line(format!("test fuzz::{} ... {word}\n", report.target).as_bytes())?;
    }
    let passed = reports.len() - failed;
    harness.line(format!("test result: {passed} passed; {failed} failed\n").as_bytes())?;
    Ok(true)
}

/// Why guests cannot be run here.
fn qemu_obstacle() -> Option<String> {
    let probe = Command::new("qemu-system-x86_64").arg("--version").stdout(Stdio::null()).status();
    let works = probe.is_ok_and(|status| status.success());
    (!works).then(|| "qemu-system-x86_64 does not run".to_owned())
}

/// Why userfaultfd cannot be used for branches here.
fn userfaultfd_obstacle() -> Option<String> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let release = read("/proc/sys/kernel/osrelease");
    if linux_version(&release).is_none_or(|version| version < LINUX_MINIMUM) {
        let (major, minor) = LINUX_MINIMUM;
        return Some(format!("needs Linux {major}.{minor}, this is {}", release.trim()));
    }
    let device = OpenOptions::new().read(true).write(true).open("/dev/userfaultfd");
    let permitted = has_ptrace_capability(&read("/proc/self/status"))
        || read("/proc/sys/vm/unprivileged_userfaultfd").trim() == "1"
        || device.is_ok();
    (!permitted).then(|| {
        "no userfaultfd; run as root, or: sudo sysctl vm.unprivileged_userfaultfd=1".to_owned()
    })
}

fn linux_version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|character: char| !character.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn has_ptrace_capability(status: &str) -> bool {
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok())
        .is_some_and(|set| set >> CAPABILITY_PTRACE_BIT & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(tier: Tier, programs: &[TestProgram]) -> Vec<&str> {
        of_tier(tier, programs).iter().map(|(program, _)| &*program.name).collect()
    }

    #[test]
    fn test_programs_are_in_the_tier_that_their_name_says() {
        let programs = [
            TestProgram::named("forkd-sys", "forkd_sys"),
            TestProgram::named("forkd-sys", "kernel_faults"),
        ];
        assert_eq!(names(Tier::Pure, &programs), ["forkd_sys"]);
        assert_eq!(names(Tier::Kernel, &programs), ["kernel_faults"]);
        assert!(names(Tier::Vm, &programs).is_empty() && names(Tier::Fuzz, &programs).is_empty());
    }

    #[test]
    fn the_system_tests_are_the_vm_tier_and_no_other() {
        let programs = [
            TestProgram::named(SYSTEM_TESTS, "vm_branch"),
            TestProgram::named(SYSTEM_TESTS, "kernel_x"),
        ];
        assert_eq!(names(Tier::Vm, &programs), ["vm_branch", "kernel_x"]);
        assert!(names(Tier::Kernel, &programs).is_empty());
        assert!(names(Tier::Pure, &programs).is_empty());
    }

    #[test]
    fn busy_programs_come_first_and_patient_ones_last() {
        let programs = ["boot2", "vm_prove", "vm_cli", "vm_faults", "vm_branch"]
            .map(|name| TestProgram::named(SYSTEM_TESTS, name));
        let order = ["vm_branch", "vm_cli", "boot2", "vm_faults", "vm_prove"];
        assert_eq!(names(Tier::Vm, &programs), order);
    }

    #[test]
    fn the_guest_agents_boot_tests_run_in_the_vm_tier_although_they_are_ignored_elsewhere() {
        let programs = [
            TestProgram::named("forkd-agent", "boot"),
            TestProgram::named("forkd-agent", "socket"),
        ];
        let vm = of_tier(Tier::Vm, &programs);
        assert_eq!(vm.len(), 1);
        assert!(vm[0].1.contains(&"--ignored"));
        assert!(names(Tier::Pure, &programs).contains(&"boot"), "it is counted as ignored");
    }

    #[test]
    fn debian_13_runs_what_the_vm_tier_runs_and_only_when_it_is_named() {
        let programs = [
            TestProgram::named(SYSTEM_TESTS, "vm_branch"),
            TestProgram::named("forkd-agent", "boot"),
            TestProgram::named("forkd-sys", "kernel_faults"),
        ];
        assert_eq!(of_tier(Tier::Debian13, &programs), of_tier(Tier::Vm, &programs));
        assert_eq!(super::names(&[Tier::Debian13], &programs), ["vm_branch", "boot", "demo"]);
        let others = Tier::ALL.into_iter().filter(|tier| !tier.is_default());
        assert!(others.eq([Tier::Debian13]));
        assert_eq!(Tier::Debian13.word(), "debian13");
    }

    #[test]
    fn the_document_lists_the_tiers_in_their_order() {
        let page = include_str!("../../../../docs/testing.md");
        let table = page.split_once("| tier | what | needs |\n|---|---|---|\n").unwrap().1;
        let rows = table.lines().map_while(|line| line.strip_prefix("| ")?.split(" |").next());
        assert!(rows.eq(Tier::ALL.map(Tier::name)));
    }

    #[test]
    fn linux_versions_compare_as_numbers() {
        assert_eq!(linux_version("6.1.0-37-cloud-amd64\n"), Some((6, 1)));
        assert!(linux_version("5.4.0").unwrap() < LINUX_MINIMUM);
        assert!(linux_version("6.1").unwrap() > LINUX_MINIMUM);
        assert_eq!(linux_version(""), None);
    }

    #[test]
    fn the_ptrace_capability_is_one_bit_of_the_effective_set() {
        assert!(has_ptrace_capability("CapPrm:\t0\nCapEff:\t0000000000080000\n"));
        assert!(!has_ptrace_capability("CapPrm:\t80000\nCapEff:\t0000000000040000\n"));
        assert!(!has_ptrace_capability(""));
    }
}
