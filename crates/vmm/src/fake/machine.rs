//! What is left of a fake VM when nobody controls it: its process, its RAM, its disk.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forkd_sys::mapping::PrivateMapping;
use forkd_types::{ByteCount, PAGE_BYTES, PageIndex};
use rustix::event::{PollFd, PollFlags};
use rustix::net::Shutdown;
use rustix::process::{Pid, PidfdFlags};

use crate::{Disk, DiskOverlay, MappedRun, RunState, VmSpec, VmmError};

/// One fake VM. Shared by the driver, which can give it to another owner, and its present owner.
#[derive(Debug)]
pub(super) struct Machine {
    pub(super) pid: Pid,
    pub(super) pidfd: OwnedFd,
    /// A descriptor that cannot be waited for.
    pub(super) plain_file: File,
    child: Mutex<Child>,
    /// The agent's port. Shut down when the process dies.
    port: UnixListener,
    /// Both ends of the network link.
    link: (UnixDatagram, UnixDatagram),
    state: Mutex<State>,
}

#[derive(Debug)]
pub(super) struct State {
    /// Guest RAM, from the load on.
    ram: Option<Arc<PrivateMapping>>,
    pub(super) run_state: RunState,
    pub(super) disk: Option<Disk>,
    pub(super) overlays_made: usize,
    /// The largest file that it may write.
    pub(super) file_max: Option<ByteCount>,
}

impl Machine {
    /// Starts the process. It waits for the end of its input, which comes with the end of this
    /// process at the latest.
    pub(super) fn start(spec: &VmSpec) -> Result<Self, VmmError> {
        let socket = spec.agent_socket();
        let port = UnixListener::bind(&socket)
            .map_err(|source| VmmError::file("listen on", &socket, source))?;
        let failed = |source| VmmError::Spawn { program: "cat".to_owned(), source };
        let child = Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .map_err(failed)?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| failed(io::ErrorKind::Other.into()))?;
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty());
        let state = State {
            ram: None,
            run_state: RunState::Paused,
            disk: spec.disk.clone(),
            overlays_made: spec.disk.as_ref().map_or(0, |disk| disk.overlays.len()),
            file_max: spec.confinement.file_max,
        };
        Ok(Self {
            pid,
            plain_file: File::open("/proc/self/exe").map_err(failed)?,
            pidfd: pidfd.map_err(|errno| failed(errno.into()))?,
            child: Mutex::new(child),
            port,
            link: UnixDatagram::pair().map_err(failed)?,
            state: Mutex::new(state),
        })
    }

    pub(super) fn port(&self) -> io::Result<UnixListener> {
        self.port.try_clone()
    }

    /// The end of the network link that is not the guest's.
    pub(super) fn far_end(&self) -> io::Result<OwnedFd> {
        self.link.1.try_clone().map(OwnedFd::from)
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn ram(&self) -> Option<Arc<PrivateMapping>> {
        self.state().ram.clone()
    }

    /// Fills the placeholder with what `runs` have, and maps it.
    pub(super) fn map(&self, spec: &VmSpec, runs: &[MappedRun<'_>]) -> io::Result<()> {
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(spec.ram.path())?;
        file.set_len(spec.memory.get())?;
        let mut page = vec![0_u8; usize::try_from(PAGE_BYTES).unwrap_or(4096)];
        let zeros = page.clone();
        for mapped in runs {
            let Some(from) = mapped.file else { continue };
            let from = File::from(from.try_clone_to_owned()?);
            for number in 0..mapped.run.count.get() {
                let at = (mapped.run.start.get() + number) * PAGE_BYTES;
                from.read_exact_at(&mut page, at)?;
                // Holes stay holes.
                if page != zeros {
                    file.write_all_at(&page, at)?;
                }
            }
        }
        self.state().ram = Some(Arc::new(PrivateMapping::of(&file, spec.memory)?));
        Ok(())
    }

    /// The first word of a page of guest RAM.
    pub(super) fn read(&self, page: PageIndex) -> Option<u64> {
        self.ram().map(|ram| ram.load(page, 0))
    }

    pub(super) fn write(&self, page: PageIndex, value: u64) {
        if let Some(ram) = self.ram() {
            ram.store(page, 0, value);
        }
    }

    /// Writes so much to the overlay that takes the guest's writes, as far as the limit for files
    /// lets it.
    pub(super) fn write_disk(&self, bytes: ByteCount) -> io::Result<()> {
        let state = self.state();
        let top = state.disk.as_ref().and_then(Disk::top);
        let Some(top) = top else { return Err(io::ErrorKind::NotFound.into()) };
        let file = File::options().write(true).open(&top.path)?;
        let from = file.metadata()?.len();
        if state.file_max.is_some_and(|most| from + bytes.get() > most.get()) {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        fill(&file, from, bytes)
    }

    /// Fills an overlay as if all that the frozen ones hold were writes to the same clusters.
    pub(super) fn merge(&self, frozen: &[DiskOverlay], into: &Path) -> io::Result<()> {
        let lengths = frozen.iter().map(|overlay| Ok(fs::metadata(&overlay.path)?.len()));
        let most = lengths.collect::<io::Result<Vec<_>>>()?.into_iter().max().unwrap_or(0);
        let file = File::options().write(true).open(into)?;
        let from = file.metadata()?.len();
        fill(&file, from, ByteCount::new(most.saturating_sub(from)))
    }

    pub(super) fn has_exited(&self) -> bool {
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(rustix::event::poll(&mut fds, Some(&now)), Ok(ready) if ready > 0)
    }

    pub(super) fn kill(&self) {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        // It may be dead already; either way it is collected.
        child.kill().ok();
        child.wait().ok();
        rustix::net::shutdown(&self.port, Shutdown::Both).ok();
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Appends what takes room.
fn fill(file: &File, from: u64, bytes: ByteCount) -> io::Result<()> {
    let piece = vec![0x5A; 1 << 20];
    let mut done = 0;
    while done < bytes.get() {
        let now = piece.len().min(usize::try_from(bytes.get() - done).unwrap_or(usize::MAX));
        file.write_all_at(&piece[..now], from + done)?;
        done += now as u64;
    }
    Ok(())
}
