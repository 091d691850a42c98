//! One tier of tests: which cargo commands it is, whether this machine can run it, running it.

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::Context;

use super::harness::{Harness, SYSTEM_TESTS};
use super::libtest::Counts;
use super::{kvm, sdk};
use crate::fuzz;
use crate::node;
use crate::progress::say;
use crate::tidy::Metadata;
use crate::workspace::Workspace;

/// The guest agent's tests in a real machine, by package and test program. They are ignored
/// elsewhere because they are told by the environment what to boot.
const BOOT_TESTS: (&str, &str) = ("forkd-agent", "boot");

/// How the names of test programs that need kernel features start.
const KERNEL_PREFIX: &str = "kernel_";

/// How long the tier searches in each fuzz target; `make fuzz SECONDS=` for longer.
const FUZZ_SECONDS: u64 = 8;

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
    pub(super) const ALL: [Self; 8] = [
        Self::Pure,
        Self::Fuzz,
        Self::Python,
        Self::TypeScript,
        Self::Kernel,
        Self::Vm,
        Self::Conformance,
        Self::Kvm,
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
        }
    }

    /// Why this machine cannot run it.
    fn obstacle(self) -> Option<String> {
        match self {
            Self::Pure | Self::Fuzz | Self::Python => None,
            Self::TypeScript => node::obstacle(),
            Self::Kernel => userfaultfd_obstacle(),
            Self::Vm | Self::Kvm => qemu_obstacle(),
            Self::Conformance => qemu_obstacle().or_else(node::obstacle),
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

/// Runs a tier.
pub(super) fn run(
    workspace: &Workspace,
    tier: Tier,
    metadata: &Metadata,
) -> anyhow::Result<Outcome> {
    let commands = commands(tier, metadata);
    if commands.is_empty() && !tier.has_own_programs() {
        return Ok(Outcome::Absent);
    }
    if let Some(reason) = tier.obstacle() {
        return Ok(Outcome::NotRun(reason));
    }
    say(&format!("tests: {}", tier.name()));
    let log = workspace.log(&format!("test-{}", tier.name().to_lowercase()));
    if let Some(folder) = log.parent() {
        fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    }
    let mut harness = Harness::new(&log)?;
    let mut trouble = None;
    let own = match tier {
        Tier::Kvm => kvm::run(workspace, &mut harness),
        Tier::Python => sdk::python(workspace, &mut harness),
        Tier::TypeScript => sdk::typescript(workspace, &mut harness),
        Tier::Conformance => sdk::conformance(workspace, &mut harness),
        Tier::Fuzz => fuzz(workspace, &mut harness),
        Tier::Pure | Tier::Kernel | Tier::Vm => Ok(true),
    };
    match own {
        Ok(true) => {}
        Ok(false) => trouble = Some("a test program died".to_owned()),
        Err(error) => trouble = Some(format!("{error:#}")),
    }
    for arguments in commands {
        if !run_cargo(workspace, &arguments, &mut harness)? {
            trouble = Some("the tests could not be built or a test program died".to_owned());
        }
    }
    let counts = harness.counts;
    let error = if counts.failed > 0 || !counts.failures.is_empty() {
        Some("tests failed".to_owned())
    } else {
        trouble.or_else(|| (counts.ran() == 0).then(|| "no test ran".to_owned()))
    };
    Ok(Outcome::Ran { counts, error, log })
}

/// Searches in every fuzz target for a short time, each told as a test.
fn fuzz(workspace: &Workspace, harness: &mut Harness) -> anyhow::Result<bool> {
    let reports = fuzz::search(workspace, &[], FUZZ_SECONDS)?;
    let failed = reports.iter().filter(|report| report.outcome.is_err()).count();
    for report in &reports {
        let (word, said) = match &report.outcome {
            Ok(executed) => ("ok", format!("{executed} inputs")),
            Err(what) => ("FAILED", what.clone()),
        };
        if report.outcome.is_err() {
            say(&format!("{}: {said}", report.target));
        }
        harness.line(format!("{}: {said}\n", report.target).as_bytes())?;
        harness.line(format!("test fuzz::{} ... {word}\n", report.target).as_bytes())?;
    }
    let passed = reports.len() - failed;
    harness.line(format!("test result: {passed} passed; {failed} failed\n").as_bytes())?;
    Ok(true)
}

/// The cargo commands of a tier; none if it has no tests.
fn commands(tier: Tier, metadata: &Metadata) -> Vec<Vec<String>> {
    let has_system_tests = metadata.packages.iter().any(|package| package.name == SYSTEM_TESTS);
    let mut names: Vec<&str> = metadata
        .packages
        .iter()
        .filter(|package| package.name != SYSTEM_TESTS)
        .flat_map(|package| &package.targets)
        .filter(|target| target.kind.iter().any(|kind| kind == "test"))
        .map(|target| target.name.as_str())
        .filter(|name| name.starts_with(KERNEL_PREFIX) == (tier == Tier::Kernel))
        .collect();
    names.sort_unstable();
    names.dedup();
    let selected = names.iter().flat_map(|name| ["--test", name]).map(str::to_owned);
    let mut crates: Vec<String> =
        ["test", "--locked", "--no-fail-fast", "--workspace"].map(str::to_owned).into();
    if has_system_tests {
        crates.extend(["--exclude", SYSTEM_TESTS].map(str::to_owned));
    }
    let with = |more: &[&str]| {
        let more = more.iter().map(|&argument| argument.to_owned());
        crates.iter().cloned().chain(more).collect::<Vec<_>>()
    };
    match tier {
        Tier::Pure => {
            let mut programs = with(&["--lib", "--bins"]);
            programs.extend(selected);
            vec![programs, with(&["--doc"])]
        }
        Tier::Kernel if names.is_empty() => Vec::new(),
        Tier::Kernel => {
            let mut programs = with(&[]);
            programs.extend(selected);
            vec![programs]
        }
        Tier::Vm => vm_commands(metadata),
        Tier::Fuzz | Tier::Python | Tier::TypeScript | Tier::Conformance | Tier::Kvm => Vec::new(),
    }
}

fn vm_commands(metadata: &Metadata) -> Vec<Vec<String>> {
    let (package, program) = BOOT_TESTS;
    // Two machines of this kind fit a small host; the tests spend their time waiting.
    let boot: &[&str] = &["-p", package, "--test", program, "--", "--ignored", "--test-threads=2"];
    let system: &[&str] = &["-p", SYSTEM_TESTS, "--", "--test-threads=2"];
    let is_there = |name: &str, target: Option<&str>| {
        metadata.packages.iter().filter(|package| package.name == name).any(|package| {
            target.is_none_or(|name| package.targets.iter().any(|target| target.name == name))
        })
    };
    [(is_there(package, Some(program)), boot), (is_there(SYSTEM_TESTS, None), system)]
        .into_iter()
        .filter(|(is_there, _)| *is_there)
        .map(|(_, arguments)| {
            ["test", "--locked", "--no-fail-fast"].iter().chain(arguments).map(|&a| a.to_owned())
        })
        .map(Iterator::collect)
        .collect()
}

/// Runs cargo, its messages on the terminal. Tells whether it succeeded.
fn run_cargo(
    workspace: &Workspace,
    arguments: &[String],
    harness: &mut Harness,
) -> anyhow::Result<bool> {
    let mut child = workspace
        .cargo_for_vms()
        .args(arguments)
        .env("FORKD_TEST_KERNEL", workspace.images().join("kernel/vmlinuz"))
        .env("FORKD_TEST_INITRAMFS", workspace.images().join("tiny/initramfs.cpio"))
        .env("FORKD_TEST_ROOT_DISK", workspace.images().join("python/root.ext4"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("start cargo")?;
    let stdout = child.stdout.take().context("cargo's output is piped")?;
    let mut reader = BufReader::new(stdout);
    let mut bytes = Vec::new();
    while reader.read_until(b'\n', &mut bytes)? > 0 {
        harness.line(&bytes)?;
        bytes.clear();
    }
    Ok(child.wait()?.success())
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

    fn metadata(packages: &[(&str, &[(&str, &str)])]) -> Metadata {
        let packages: Vec<_> = packages
            .iter()
            .map(|(name, targets)| {
                let targets: Vec<_> = targets
                    .iter()
                    .map(|(name, kind)| {
                        serde_json::json!({"name": name, "kind": [kind], "src_path": ""})
                    })
                    .collect();
                serde_json::json!({
                    "name": name, "manifest_path": "", "dependencies": [], "targets": targets,
                })
            })
            .collect();
        serde_json::from_value(serde_json::json!({"packages": packages})).unwrap()
    }

    #[test]
    fn test_programs_are_in_the_tier_that_their_name_says() {
        let targets = [("x", "lib"), ("kernel_faults", "test"), ("round_trip", "test")];
        let metadata = metadata(&[("forkd-sys", &targets)]);
        let pure = commands(Tier::Pure, &metadata).concat().join(" ");
        let kernel = commands(Tier::Kernel, &metadata).concat().join(" ");
        assert!(pure.contains("--test round_trip") && !pure.contains("kernel_faults"), "{pure}");
        assert!(kernel.contains("--test kernel_faults") && !kernel.contains("round"), "{kernel}");
        assert!(!kernel.contains("--lib"), "{kernel}");
    }

    #[test]
    fn the_system_tests_are_the_vm_tier_and_no_other() {
        let metadata = metadata(&[(SYSTEM_TESTS, &[("branch", "test"), ("kernel_x", "test")])]);
        assert!(commands(Tier::Kernel, &metadata).is_empty());
        let pure = commands(Tier::Pure, &metadata).concat().join(" ");
        assert!(pure.contains("--exclude forkd-system-tests") && !pure.contains("branch"));
        assert_eq!(commands(Tier::Vm, &metadata).len(), 1);
    }

    #[test]
    fn the_guest_agents_boot_tests_run_in_the_vm_tier_although_they_are_ignored_elsewhere() {
        let metadata = metadata(&[("forkd-agent", &[("boot", "test")])]);
        let vm = commands(Tier::Vm, &metadata);
        assert_eq!(vm.len(), 1);
        assert!(vm.concat().contains(&"--ignored".to_owned()));
    }

    #[test]
    fn tiers_without_tests_have_no_command() {
        let metadata = metadata(&[("forkd-sys", &[("sys", "lib")])]);
        assert!(commands(Tier::Kernel, &metadata).is_empty());
        assert!(commands(Tier::Vm, &metadata).is_empty());
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
