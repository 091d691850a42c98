//! Programs in the root file system of another system: with its libraries and tools, on this
//! machine's kernel.
//!
//! ```text
//! what a program sees      what it is
//! /                        the system's files, below a layer that takes what is written
//! /proc                    of a process namespace
//! /dev, /sys               this machine's, but for /dev/shm
//! /tmp, the repository's   folders of the system, on this machine's disk
//!   build/
//! the repository           this machine's, at its own path
//! ```
//!
//! Guarantees: the system's files stay as they are. `/` is a mount point, as on a machine: programs
//! may make namespaces of their own. When the program ends, or when who started it dies in any way,
//! its processes, its mounts and what it kept in memory are gone.
//!
//! It confines nothing: the program is root of this machine, on its network. It needs root.

use std::env;
use std::ffi::{CStr, OsString};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::Context;
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::{Pid, WaitOptions};

use crate::workspace::Workspace;

/// What the system's root file system is called in its folder.
const TREE: &str = "root/tree";
/// Where the layer is mounted, in the namespace of the program only.
const LAYER: &str = "layer";
/// The layer takes what is written to neither `/tmp` nor the repository, which is little.
const LAYER_OPTIONS: &CStr = c"mode=755,size=1g";
/// Files that say how this machine reaches others. They hold for the programs as well.
const NETWORK_FILES: [&str; 4] =
    ["/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt"];
/// Debian's own: nothing of this machine's is there.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Variables that name files of this machine.
const LEFT_OUT: [&str; 3] = ["FORKD_QEMU", "LD_LIBRARY_PATH", "TMPDIR"];

/// This program as programs there see it: it is the first process.
pub(crate) const THIS_PROGRAM: &str = "/proc/1/exe";

/// What the hidden verb is told.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The system's folder.
    folder: PathBuf,
    /// The program with its arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    program: Vec<OsString>,
}

/// A system whose root file system is in a folder.
#[derive(Debug, Clone)]
pub(crate) struct System {
    folder: PathBuf,
}

impl System {
    pub(crate) fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// The repository's `build/` there.
    pub(crate) fn build(&self) -> PathBuf {
        self.folder.join("build")
    }

    /// `/tmp` there: a file system in memory would be too small, or too large for this machine.
    fn temporary(&self) -> PathBuf {
        self.folder.join("tmp")
    }

    /// Makes the folders that programs see, and empties `/tmp`: killed programs left it as it was.
    pub(crate) fn tidy_up(&self) -> anyhow::Result<()> {
        let temporary = self.temporary();
        if temporary.exists() {
            fs::remove_dir_all(&temporary)
                .with_context(|| format!("empty {}", temporary.display()))?;
        }
        for folder in [&temporary, &self.build(), &self.folder.join(LAYER)] {
            fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
        }
        let for_all = fs::Permissions::from_mode(0o1777);
        fs::set_permissions(&temporary, for_all)
            .with_context(|| format!("open {} to all", temporary.display()))
    }

    /// The command that runs `inner` in the system: its arguments, variables and folder hold there.
    pub(crate) fn command(&self, inner: &Command) -> Command {
        let mut outer = Command::new("setpriv");
        // This program may be killed: then the first process there has to die, and all with it.
        outer.args(["--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork"]);
        outer.args(["--kill-child", "--"]);
        // Cargo may have put another one in the place of its file.
        outer.arg(format!("/proc/{}/exe", std::process::id()));
        outer.arg("enter").arg(&self.folder).arg(inner.get_program()).args(inner.get_args());
        if let Some(folder) = inner.get_current_dir() {
            outer.current_dir(folder);
        }
        for (name, value) in inner.get_envs() {
            match value {
                Some(value) => outer.env(name, value),
                None => outer.env_remove(name),
            };
        }
        outer
    }
}

/// Enters the system and runs a program there; its exit code is the program's. Only for the first
/// process of a mount and a process namespace, as [`System::command`] starts it.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    anyhow::ensure!(
        rustix::process::getpid().is_init(),
        "`enter` mounts file systems: it is for a namespace of its own"
    );
    let folder = env::current_dir().context("read the current folder")?;
    let root = assemble(&System::new(options.folder.clone()), workspace)?;
    change_root(&root)?;
    env::set_current_dir(&folder).with_context(|| format!("go to {}", folder.display()))?;
    let mut program = Command::new(&options.program[0]);
    program.args(&options.program[1..]).env("PATH", PATH);
    for name in LEFT_OUT {
        program.env_remove(name);
    }
    let name = options.program[0].to_string_lossy();
    let child = program.spawn().with_context(|| format!("start {name} there"))?;
    wait(child.id()).with_context(|| format!("wait for {name}"))
}

/// Mounts everything below a folder, the new root.
fn assemble(system: &System, workspace: &Workspace) -> anyhow::Result<PathBuf> {
    // The options of an overlay may not hold every character that a path may.
    env::set_current_dir(&system.folder)
        .with_context(|| format!("go to {}", system.folder.display()))?;
    mount("tmpfs", Path::new(LAYER), LAYER_OPTIONS)?;
    let layer = system.folder.join(LAYER);
    for name in ["upper", "work", "root"] {
        fs::create_dir(layer.join(name)).with_context(|| format!("create the layer's {name}"))?;
    }
    let root = layer.join("root");
    let options = format!("lowerdir={TREE},upperdir={LAYER}/upper,workdir={LAYER}/work\0");
    let options = CStr::from_bytes_with_nul(options.as_bytes()).context("an overlay's options")?;
    mount("overlay", &root, options)?;
    mount("proc", &root.join("proc"), c"")?;
    for name in ["/dev", "/sys"] {
        let target = within(&root, Path::new(name));
        rustix::mount::mount_bind_recursive(name, &target)
            .with_context(|| format!("show this machine's {name} there"))?;
    }
    mount("tmpfs", &root.join("dev/shm"), c"mode=1777")?;
    copy_network_files(&root)?;
    for (source, target) in binds(system, workspace) {
        let target = within(&root, &target);
        fs::create_dir_all(&target).with_context(|| format!("create {}", target.display()))?;
        rustix::mount::mount_bind(&source, &target)
            .with_context(|| format!("show {} there", source.display()))?;
    }
    Ok(root)
}

/// Folders that programs see elsewhere, in the order in which they cover each other.
fn binds(system: &System, workspace: &Workspace) -> Vec<(PathBuf, PathBuf)> {
    let mut binds = vec![(system.temporary(), PathBuf::from("/tmp"))];
    binds.push((workspace.root.clone(), workspace.root.clone()));
    if !workspace.target.starts_with(&workspace.root) {
        binds.push((workspace.target.clone(), workspace.target.clone()));
    }
    binds.push((system.build(), workspace.root.join("build")));
    binds
}

/// An absolute path, below another root.
fn within(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

fn mount(kind: &str, target: &Path, options: &CStr) -> anyhow::Result<()> {
    rustix::mount::mount(kind, target, kind, MountFlags::empty(), options)
        .with_context(|| format!("mount {kind} on {}", target.display()))
}

fn copy_network_files(root: &Path) -> anyhow::Result<()> {
    for name in NETWORK_FILES.iter().map(Path::new).filter(|name| name.is_file()) {
        let target = within(root, name);
        // It may be a link to a file that only a running system has.
        fs::remove_file(&target).ok();
        fs::copy(name, &target).with_context(|| format!("copy {} there", name.display()))?;
    }
    Ok(())
}

/// Makes a mount point the root, and forgets the former one.
fn change_root(root: &Path) -> anyhow::Result<()> {
    env::set_current_dir(root).with_context(|| format!("go to {}", root.display()))?;
    // The former root lies upon the new one for a moment: no folder is needed for it.
    rustix::process::pivot_root(".", ".").context("change the root")?;
    rustix::mount::unmount(".", UnmountFlags::DETACH).context("leave the former root")
}

/// Waits for the program as the first process has to: for those whose parents have died as well.
fn wait(program: u32) -> anyhow::Result<ExitCode> {
    loop {
        match rustix::process::wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if is(pid, program) => {
                return Ok(exit_code(status.exit_status(), status.terminating_signal()).into());
            }
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn is(pid: Pid, number: u32) -> bool {
    u32::try_from(pid.as_raw_nonzero().get()).is_ok_and(|pid| pid == number)
}

/// As a shell tells it: a signal is 128 and its number.
fn exit_code(code: Option<i32>, signal: Option<i32>) -> u8 {
    let signal = signal.map(|signal| 128 + signal);
    code.or(signal).and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_keeps_its_arguments_variables_and_folder() {
        let mut inner = Command::new("/t/vm_branch-1");
        inner.args(["--test-threads=2", "a b"]).current_dir("/w/tests");
        inner.env("FORKD_BIN", "/t/forkd").env_remove("FORKD_HOME");
        let outer = System::new("/w/build/x".into()).command(&inner);
        let arguments: Vec<_> = outer.get_args().filter_map(|word| word.to_str()).collect();
        let end = ["enter", "/w/build/x", "/t/vm_branch-1", "--test-threads=2", "a b"];
        assert!(arguments.ends_with(&end), "{arguments:?}");
        assert_eq!(outer.get_current_dir(), Some(Path::new("/w/tests")));
        let variables: Vec<_> = outer.get_envs().collect();
        let variable = |name: &'static str, value: Option<&'static str>| {
            (std::ffi::OsStr::new(name), value.map(std::ffi::OsStr::new))
        };
        let wanted = [variable("FORKD_BIN", Some("/t/forkd")), variable("FORKD_HOME", None)];
        assert_eq!(variables, wanted);
    }

    #[test]
    fn a_command_dies_with_who_started_it() {
        let outer = System::new("/x".into()).command(&Command::new("true"));
        let arguments: Vec<_> = outer.get_args().filter_map(|word| word.to_str()).collect();
        assert!(arguments.starts_with(&["--pdeathsig", "KILL", "unshare"]), "{arguments:?}");
        assert!(arguments.contains(&"--kill-child") && arguments.contains(&"--pid"));
    }

    #[test]
    fn the_systems_own_build_folder_covers_that_of_the_repository() {
        let system = System::new("/w/build/x".into());
        let at = |target: &str| Workspace { root: "/w".into(), target: target.into() };
        let pair = |from: &str, to: &str| (PathBuf::from(from), PathBuf::from(to));
        let tmp = pair("/w/build/x/tmp", "/tmp");
        let (all, own) = (pair("/w", "/w"), pair("/w/build/x/build", "/w/build"));
        let inner = binds(&system, &at("/w/target"));
        assert_eq!(inner, [tmp.clone(), all.clone(), own.clone()]);
        let apart = binds(&system, &at("/cache/t"));
        assert_eq!(apart, [tmp, all, pair("/cache/t", "/cache/t"), own]);
    }

    #[test]
    fn an_interrupted_program_leaves_nothing_in_the_temporary_folder() {
        let folder = tempfile::tempdir().unwrap();
        let system = System::new(folder.path().to_owned());
        system.tidy_up().unwrap();
        fs::write(system.temporary().join("left"), "").unwrap();
        fs::write(system.build().join("kept"), "").unwrap();
        system.tidy_up().unwrap();
        assert_eq!(fs::read_dir(system.temporary()).unwrap().count(), 0);
        assert_eq!(fs::read_dir(system.build()).unwrap().count(), 1);
        let mode = fs::metadata(system.temporary()).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o1777);
    }

    #[test]
    fn the_exit_code_is_the_programs_and_never_hides_a_signal() {
        assert_eq!(exit_code(Some(0), None), 0);
        assert_eq!(exit_code(Some(101), None), 101);
        assert_eq!(exit_code(None, Some(9)), 137);
        assert_eq!(exit_code(None, None), 1);
    }
}
