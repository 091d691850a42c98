//! What the gateway process sees of the host: its logs, and the list of the host's resolvers.
//!
//! ```text
//! RUN/netd/resolv.conf        a copy, kept up to date while a daemon is there       read-only
//! RUN/netd/logs/SANDBOX/      made by the daemon, the gateway's                     its logs
//! ```
//!
//! Where VMMs are confined, the gateway is too: it has a root with this directory and its own
//! libraries alone, no capabilities, and where they have users of their own, so has it: then its
//! logs belong to that user, or where the daemon is not root, the directories to the daemon, who
//! lends them to its group. It is in the host's network. Its system calls it filters itself.
//!
//! Guarantees: it is confined as far as VMMs are, or it is not started.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use forkd_launcher::{
    Access, Bind, Descriptor, Ids, Job, Launcher, LauncherConfig, Mounted, Place, Setup, needed_by,
};
use forkd_netd_protocol::{LOG_BYTES_MAX, register};
use forkd_store::private_directory;
use forkd_types::{Isolation, SandboxId};
use forkd_vmm::OwnUser;
use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions, pidfd_open, waitid};
use tokio::process::Command;

use crate::EngineConfig;
use crate::host::Users;

/// Where the directory is in the gateway's root.
const SEEN_AS: &str = "/netd";
/// The resolvers of the host.
const RESOLV_CONF: &str = "/etc/resolv.conf";
const RESOLV_CONF_COPY: &str = "resolv.conf";
const LOGS: &str = "logs";
/// In bytes. By itself glibc raises it with the first large block that is freed, and then what many
/// connections have needed does not go back to the host.
const MMAP_THRESHOLD: (&str, &str) = ("MALLOC_MMAP_THRESHOLD_", "131072");
/// One for each processor, and those of other daemons on this host.
const THREADS_MAX: u32 = 8192;
/// Its group passes and is that of all within; the owner does what it wants.
const LENT_FOLDER: u32 = 0o2711;
/// A gateway that ends takes all connections with it; it is small.
const OOM_SCORE_ADJ: i32 = 0;

/// Where the gateway logs what a sandbox reached.
pub(crate) fn log_folder(run_dir: &Path, sandbox: &SandboxId) -> PathBuf {
    log_folders(run_dir).join(sandbox.as_str())
}

/// The directory of all of these.
pub(crate) fn log_folders(run_dir: &Path) -> PathBuf {
    directory(run_dir).join(LOGS)
}

fn directory(run_dir: &Path) -> PathBuf {
    run_dir.join("netd")
}

/// What one daemon starts gateways with.
#[derive(Debug)]
pub(super) struct GatewayHome {
    program: PathBuf,
    launcher: PathBuf,
    run_dir: PathBuf,
    isolation: Isolation,
    users: Users,
}

impl GatewayHome {
    /// For a daemon whose VMMs are isolated so.
    pub(super) fn new(config: &EngineConfig, isolation: Isolation, users: Users) -> Self {
        Self {
            program: config.gateway.clone(),
            launcher: config.launcher.clone(),
            run_dir: config.run_dir.clone(),
            isolation,
            users,
        }
    }

    /// Starts a gateway that listens on `socket` and says its last words to `words`.
    pub(super) fn start(&self, socket: OwnedFd, words: File) -> io::Result<()> {
        let logs = log_folders(&self.run_dir);
        fs::create_dir_all(&logs)?;
        for folder in [directory(&self.run_dir), logs] {
            // The gateway passes; others of this host stop at the run directory.
            fs::set_permissions(folder, fs::Permissions::from_mode(0o711))?;
        }
        self.refresh_resolvers()?;
        match self.isolation {
            Isolation::None => self.start_plain(socket, words),
            Isolation::Namespaces | Isolation::Full => self.start_confined(socket, words),
        }
    }

    /// Copies the list of the host's resolvers if it has changed.
    pub(super) fn refresh_resolvers(&self) -> io::Result<()> {
        // Without one there is no resolver, as for the C library.
        let wanted = fs::read(RESOLV_CONF).unwrap_or_default();
        let copy = directory(&self.run_dir).join(RESOLV_CONF_COPY);
        if fs::read(&copy).is_ok_and(|has| has == wanted) {
            return Ok(());
        }
        let unfinished = copy.with_extension("new");
        fs::write(&unfinished, wanted)?;
        fs::set_permissions(&unfinished, fs::Permissions::from_mode(0o644))?;
        fs::rename(unfinished, copy)
    }

    /// Makes the folder for the log of a sandbox, if it is not there.
    pub(super) fn make_log_folder(&self, sandbox: &SandboxId) -> io::Result<()> {
        let folder = log_folder(&self.run_dir, sandbox);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        match self.users.of_gateway() {
            Some(OwnUser { user, lent_to: None }) => chown(&folder, Some(user), Some(user)),
            // One that was made in a directory that is lent to a gateway is lent to it, too.
            _ if fs::metadata(&folder)?.gid() != rustix::process::getegid().as_raw() => {
                fs::set_permissions(&folder, fs::Permissions::from_mode(0o770))
            }
            _ => Ok(()),
        }
    }

    fn start_plain(&self, socket: OwnedFd, words: File) -> io::Result<()> {
        // The runtime collects it when it ends.
        Command::new(&self.program)
            .args(arguments(&directory(&self.run_dir)))
            .env(MMAP_THRESHOLD.0, MMAP_THRESHOLD.1)
            .stdin(Stdio::from(socket))
            .stdout(Stdio::null())
            .stderr(words)
            // What is typed at the daemon's terminal is not for it, nor does it end with the
            // daemon.
            .process_group(0)
            .spawn()
            .map(drop)
    }

    fn start_confined(&self, socket: OwnedFd, words: File) -> io::Result<()> {
        let root = self.run_dir.join("root");
        private_directory(&root).map_err(io::Error::other)?;
        let binds = needed_by(&self.program, None).map_err(io::Error::other)?;
        let places = vec![Place::Directory(SEEN_AS.into())];
        let setup = Setup { root, binds, places };
        let program = self.launcher.clone();
        let launcher =
            Launcher::start(LauncherConfig { program, setup }).map_err(io::Error::other)?;
        if Users::of(launcher.own_ids()) != self.users {
            return Err(io::Error::other("the gateway cannot have the user that it should have"));
        }
        if let Some(OwnUser { lent_to: Some(group), .. }) = self.users.of_gateway() {
            let logs = File::open(log_folders(&self.run_dir))?;
            // What is made in it later has its group.
            launcher.lend(logs.as_fd(), group, LENT_FOLDER).map_err(io::Error::other)?;
        }
        let null = File::options().read(true).write(true).open("/dev/null")?;
        let fds = [socket.as_fd(), null.as_fd(), words.as_fd()];
        let pid = launcher.launch(self.job(), &fds).map_err(io::Error::other)?;
        collect(pid)
    }

    fn job(&self) -> Job {
        let mut arguments = arguments(Path::new(SEEN_AS));
        arguments.push("--filtered".to_owned());
        Job {
            program: self.program.clone(),
            arguments,
            environment: vec![(MMAP_THRESHOLD.0.to_owned(), MMAP_THRESHOLD.1.to_owned())],
            descriptors: (0..)
                .zip(0..3)
                .map(|(index, number)| Descriptor { index, number })
                .collect(),
            cgroups: Vec::new(),
            binds: vec![Bind {
                from: directory(&self.run_dir),
                to: SEEN_AS.into(),
                access: Access::ReadWrite,
                mounted: Mounted::Data,
            }],
            host_network: true,
            ids: self.users.of_gateway().map(|own| Ids {
                user: own.user,
                group: own.lent_to.unwrap_or(own.user),
                groups: Some(Vec::new()),
            }),
            descriptors_max: None,
            threads_max: THREADS_MAX,
            file_bytes_max: Some(2 * LOG_BYTES_MAX),
            oom_score_adj: OOM_SCORE_ADJ,
        }
    }
}

fn arguments(directory: &Path) -> Vec<String> {
    let within = |name: &str| directory.join(name).to_string_lossy().into_owned();
    ["netd", "--log-dir", &within(LOGS), "--resolv-conf", &within(RESOLV_CONF_COPY)]
        .map(str::to_owned)
        .into()
}

/// Waits for a child of this process when it ends, so that nothing of it stays.
fn collect(pid: Pid) -> io::Result<()> {
    let ended = register(pidfd_open(pid, PidfdFlags::empty())?)?;
    tokio::spawn(async move {
        if ended.readable().await.is_ok() {
            waitid(WaitId::Pid(pid), WaitIdOptions::EXITED).ok();
        }
    });
    Ok(())
}
