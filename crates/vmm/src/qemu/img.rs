//! `qemu-img`, as far from the host as VMMs are: it reads disks that guests have written.
//!
//! Guarantees: it sees the base image and the overlay that it reads, which it cannot write, and the
//! overlay that it writes; it has no more memory, time and space than it is given.
//!
//! Does not do: say what it is run for.

use std::fs::File;
use std::io::{self, Read as _, Seek as _};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use forkd_launcher::{Job, Launcher, LauncherConfig, OwnIds, Place, Setup, needed_by};
use forkd_sys::file::open_regular;
use forkd_sys::shim_wire;
use forkd_types::{Accelerator, ByteCount, limit};
use rustix::fs::MemfdFlags;
use rustix::process::{PidfdFlags, Signal, WaitId, WaitIdOptions};

use super::jail::{self, SHIM, read_only, shim_bind, writable};
use super::launcher::launch;
use super::process::wait_until_readable;
use super::version::in_path;
use crate::cgroup::Cgroup;
use crate::{OwnUser, VmmCgroup, VmmError};

const BASE: &str = "/disk/base";
const FROM: &str = "/disk/from";
const TO: &str = "/disk/to";
/// What it says that goes into an error, bytes.
const WORDS_BYTES_MAX: u64 = 600;

/// The disks of one run, by their paths here.
#[derive(Debug, Clone)]
pub struct ImgDisks<'a> {
    /// The raw base image.
    pub base: &'a Path,
    /// The overlay that is read.
    pub from: &'a Path,
    /// The overlay that is written.
    pub to: &'a Path,
}

impl ImgDisks<'static> {
    /// Where `qemu-img` finds them.
    #[must_use]
    pub fn as_seen() -> Self {
        Self { base: Path::new(BASE), from: Path::new(FROM), to: Path::new(TO) }
    }
}

/// Starts runs of `qemu-img`.
#[derive(Debug)]
pub struct ConfinedImg {
    program: PathBuf,
    launcher: Launcher,
}

impl ConfinedImg {
    /// Starts the launcher `launcher` for them. Their roots are built on the empty directory
    /// `root`.
    ///
    /// # Errors
    /// When there is no `qemu-img`, or this host does not permit what the launcher needs.
    pub fn start(launcher: PathBuf, shim: &Path, root: PathBuf) -> Result<Self, VmmError> {
        let program = in_path("qemu-img").ok_or_else(|| VmmError::Spawn {
            program: "qemu-img".to_owned(),
            source: io::ErrorKind::NotFound.into(),
        })?;
        let mut binds =
            needed_by(&program, Some(shim)).map_err(|error| VmmError::Confine(error.into()))?;
        binds.push(shim_bind(shim));
        let places = [BASE, FROM, TO].map(|path| Place::File(path.into())).into();
        let setup = Setup { root, binds, places };
        let launcher = Launcher::start(LauncherConfig { program: launcher, setup })?;
        Ok(Self { program, launcher })
    }

    /// Runs it with `arguments`, in which the disks are named as [`ImgDisks::as_seen`], and waits
    /// until it is done. It runs as who `user` says by what [`Launcher::own_ids`] says.
    ///
    /// # Errors
    /// What it says when it fails; that it took too long.
    pub fn run(
        &self,
        disks: &ImgDisks<'_>,
        arguments: Vec<String>,
        user: impl FnOnce(OwnIds) -> Option<OwnUser>,
        cgroup: Option<&VmmCgroup>,
        file_max: ByteCount,
    ) -> io::Result<()> {
        // What is read takes no more writes, and everybody may read it.
        jail::freeze(disks.from).map_err(io::Error::other)?;
        let target = open_regular(disks.to)?;
        let user = user(self.launcher.own_ids());
        jail::give_open(&target, disks.to, user, Some(&self.launcher)).map_err(io::Error::other)?;
        let job = Job {
            program: self.program.clone(),
            arguments,
            environment: vec![
                ("LD_PRELOAD".to_owned(), SHIM.to_owned()),
                (shim_wire::FILTER_VARIABLE.to_owned(), "1".to_owned()),
            ],
            descriptors: Vec::new(),
            cgroups: Vec::new(),
            binds: vec![
                read_only(disks.base.to_owned(), BASE.into()),
                read_only(disks.from.to_owned(), FROM.into()),
                writable(disks.to, TO),
            ],
            host_network: false,
            descriptors_max: Some(limit::VMM_DESCRIPTORS_MAX),
            ids: user.map(|own| jail::ids(own, Accelerator::Tcg)),
            threads_max: limit::VMM_THREADS_MAX,
            file_bytes_max: Some(file_max.get()),
            oom_score_adj: jail::OOM_SCORE_ADJ,
        };
        let cgroup = cgroup.map(Cgroup::make).transpose().map_err(io::Error::other)?;
        let run = self.run_job(job, cgroup.as_ref());
        let taken_back = jail::give_back(&target);
        match run? {
            Some(words) => Err(io::Error::other(words)),
            None => taken_back,
        }
    }

    /// Gives what it said if it failed.
    fn run_job(&self, job: Job, cgroup: Option<&Cgroup>) -> io::Result<Option<String>> {
        let null = File::open("/dev/null")?;
        let mut words = File::from(rustix::fs::memfd_create("qemu-img", MemfdFlags::CLOEXEC)?);
        let entrances = cgroup.map(Cgroup::entrances).transpose().map_err(io::Error::other)?;
        let descriptors = [(null.as_fd(), 0), (words.as_fd(), 1), (words.as_fd(), 2)];
        let entrances = entrances.unwrap_or_default();
        let pid = launch(&self.launcher, job, &descriptors, &entrances);
        let pid = pid.map_err(io::Error::other)?;
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
        let in_time = wait_until_readable(&pidfd, limit::FLATTEN_DEADLINE);
        if !in_time {
            rustix::process::pidfd_send_signal(&pidfd, Signal::KILL)?;
        }
        let status = rustix::process::waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED)?;
        if status.and_then(|status| status.exit_status()) == Some(0) {
            return Ok(None);
        }
        if !in_time {
            return Ok(Some(format!("it took more than {:?}", limit::FLATTEN_DEADLINE)));
        }
        let mut said = Vec::new();
        words.rewind()?;
        words.take(WORDS_BYTES_MAX).read_to_end(&mut said)?;
        let said = String::from_utf8_lossy(&said).trim().escape_debug().to_string();
        Ok(Some(if said.is_empty() { format!("it ended: {status:?}") } else { said }))
    }
}
