//! What a guest says on its console, and a VMM on its standard streams.
//!
//! ```text
//! ring     a file that keeps the end of a stream    drain    the thread that reads all streams
//! ```
//!
//! The console is a socket of the VMM that the daemon connects to. The standard streams of the VMM
//! are a FIFO with a name, which the VMM holds open for reading too: so it lives on without a
//! daemon, writes that nobody reads fail, and the next daemon finds them.
//!
//! Guarantees: whatever a guest or a VMM writes, the daemon's memory does not grow, each file holds
//! [`CONSOLE_BYTES`] at most, and reading it costs a bounded share of a processor. The writer is
//! held up instead. A VMM's end loses nothing that it had written before.
//!
//! Does not do: keep what a guest says to its console while no daemon runs, or interpret a byte.

mod drain;
mod ring;

use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use forkd_types::limit::{CONSOLE_BYTES, VMM_LOG_BYTES};
use rustix::fs::{CWD, FileType, Mode, OFlags};

use self::drain::Stream;
pub use self::ring::KeptOutput;
use self::ring::Ring;
use crate::{VmSpec, VmmError};

/// What is kept of the console of the VM with the run directory `directory`, running or not.
///
/// # Errors
/// When the file cannot be read.
pub fn console_output(directory: &Path) -> Result<KeptOutput, VmmError> {
    read(&console_ring(directory), CONSOLE_BYTES)
}

/// What is kept of the output of a VMM, for errors. Nothing if it cannot be read.
pub(crate) fn vmm_output(directory: &Path) -> Vec<u8> {
    read(&vmm_ring(directory), VMM_LOG_BYTES).unwrap_or_default().bytes
}

fn read(path: &Path, kept: u64) -> Result<KeptOutput, VmmError> {
    ring::read(path, kept).map_err(|source| VmmError::file("read", path, source))
}

fn console_socket(directory: &Path) -> PathBuf {
    directory.join("console.sock")
}

fn console_ring(directory: &Path) -> PathBuf {
    directory.join("console.ring")
}

fn vmm_fifo(directory: &Path) -> PathBuf {
    directory.join("vmm.fifo")
}

fn vmm_ring(directory: &Path) -> PathBuf {
    directory.join("vmm.ring")
}

/// The far ends of a VMM's streams.
#[derive(Debug)]
pub(crate) struct Ends {
    /// Listens for the console's reader, who has connected already.
    pub(crate) console: OwnedFd,
    /// For standard output and standard error.
    pub(crate) standard: OwnedFd,
}

/// The streams of one VMM, which are read until this is dropped or they end.
#[derive(Debug)]
pub(crate) struct Output {
    directory: PathBuf,
    streams: Vec<Stream>,
}

impl Output {
    /// Makes the streams of a VMM that is about to be started.
    pub(crate) fn make(spec: &VmSpec) -> Result<(Self, Ends), VmmError> {
        let socket = console_socket(&spec.directory);
        let listen = |source| VmmError::file("listen on", &socket, source);
        let console = UnixListener::bind(&socket).map_err(listen)?.into();
        let fifo = vmm_fifo(&spec.directory);
        let mode = Mode::RUSR | Mode::WUSR;
        // Reading too: without a daemon nobody else does, and the VMM must not be ended for it.
        // Not blocking: then what is too much is lost, and the VMM runs on.
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let standard = rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, mode, 0)
            .and_then(|()| rustix::fs::open(&fifo, flags, Mode::empty()))
            .map_err(|errno| VmmError::file("create", &fifo, errno.into()))?;
        Ok((Self::connect(spec)?, Ends { console, standard }))
    }

    /// Reads the streams of a VMM, which has them or is about to.
    pub(crate) fn connect(spec: &VmSpec) -> Result<Self, VmmError> {
        let directory = &spec.directory;
        let socket = console_socket(directory);
        let console = UnixStream::connect(&socket)
            .and_then(|stream| stream.set_nonblocking(true).map(|()| OwnedFd::from(stream)))
            .map_err(|source| VmmError::file("connect to", &socket, source))?;
        let fifo = vmm_fifo(directory);
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let standard = rustix::fs::open(&fifo, flags, Mode::empty())
            .map_err(|errno| VmmError::file("open", &fifo, errno.into()))?;
        let streams = [
            (console, console_ring(directory), CONSOLE_BYTES),
            (standard, vmm_ring(directory), VMM_LOG_BYTES),
        ];
        let streams = streams.into_iter().map(|(end, path, kept)| {
            Ring::open(&path, kept)
                .and_then(|ring| Stream::begin(end, ring))
                .map_err(|source| VmmError::file("keep output in", &path, source))
        });
        Ok(Self { directory: directory.clone(), streams: streams.collect::<Result<_, _>>()? })
    }

    /// What an earlier daemon has kept: the VMM cannot be listened to.
    pub(crate) fn of_before(spec: &VmSpec) -> Self {
        Self { directory: spec.directory.clone(), streams: Vec::new() }
    }

    /// What is kept of the console.
    pub(crate) fn of_the_console(&self) -> Result<KeptOutput, VmmError> {
        self.catch_up();
        console_output(&self.directory)
    }

    /// What is kept of the VMM's own words.
    pub(crate) fn of_the_vmm(&self) -> Vec<u8> {
        self.catch_up();
        vmm_output(&self.directory)
    }

    /// Reads what was written so far: the VMM may have ended.
    fn catch_up(&self) {
        self.streams.iter().for_each(Stream::catch_up);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::time::{Duration, Instant};

    use forkd_types::{Accelerator, ByteCount, limit::Deadlines};

    use super::*;
    use crate::{BootSource, Confinement, RamBacking, Start};

    const SOON: Duration = Duration::from_secs(30);

    fn spec(directory: &Path) -> VmSpec {
        VmSpec {
            accelerator: Accelerator::Tcg,
            cpu: forkd_types::CpuModel::Host,
            memory: ByteCount::from_mib(64),
            vcpus: 1,
            boot: BootSource {
                kernel: "/k".into(),
                initramfs: "/i".into(),
                command_line: String::new(),
            },
            ram: RamBacking::Layers { placeholder: "/hot/ram".into() },
            network_device: false,
            disk: None,
            directory: directory.to_owned(),
            start: Start::Load,
            deadlines: Deadlines::default(),
            confinement: Confinement::default(),
        }
    }

    fn accept(console: OwnedFd) -> UnixStream {
        UnixListener::from(console).accept().unwrap().0
    }

    fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !holds() {
            assert!(begun.elapsed() < SOON, "{what}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    #[test]
    fn of_a_flood_the_end_is_kept_and_what_is_missing_is_counted() {
        let folder = tempfile::tempdir().unwrap();
        let spec = spec(folder.path());
        let (output, ends) = Output::make(&spec).unwrap();
        let mut guest = accept(ends.console);
        guest.write_all(b"hello\n").unwrap();
        wait_until("it is read", || console_output(folder.path()).unwrap().bytes == b"hello\n");

        // Two and a half times what is kept.
        let flood = vec![b'y'; 1 << 18];
        for _ in 0..10 {
            guest.write_all(&flood).unwrap();
        }
        guest.write_all(b"end").unwrap();
        let kept = output.of_the_console().unwrap();
        assert_eq!(kept.bytes.len() as u64, CONSOLE_BYTES);
        assert!(kept.bytes.ends_with(b"end"));
        assert_eq!(kept.missing, 6 + 10 * (1 << 18) + 3 - CONSOLE_BYTES);
        let ring = std::fs::metadata(console_ring(folder.path())).unwrap();
        assert!(ring.len() < CONSOLE_BYTES + (128 << 10), "{}", ring.len());
    }

    /// Processor time of the thread that reads, in ticks of 10 ms.
    fn ticks_of_the_reader() -> u64 {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let stats = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("stat")));
        let reader = stats.flatten().find(|stat| stat.contains("(forkd-output)")).unwrap();
        let fields: Vec<&str> = reader.rsplit(')').next().unwrap().split_whitespace().collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    }

    #[test]
    fn a_flood_of_single_bytes_gets_on_and_costs_a_tenth_of_a_processor() {
        let folder = tempfile::tempdir().unwrap();
        let (output, ends) = Output::make(&spec(folder.path())).unwrap();
        let mut guest = accept(ends.console);
        guest.write_all(b"y").unwrap();
        wait_until("it is read", || !console_output(folder.path()).unwrap().bytes.is_empty());
        let (begun, before) = (Instant::now(), ticks_of_the_reader());
        let mut written = 1;
        while begun.elapsed() < Duration::from_secs(2) {
            guest.write_all(b"y").unwrap();
            written += 1;
        }
        let ticks = ticks_of_the_reader() - before;
        assert!(ticks <= 30, "{ticks} of 200 ticks");
        assert!(written > 20_000, "{written} bytes in 2 s");
        let kept = output.of_the_console().unwrap();
        assert_eq!(kept.missing + kept.bytes.len() as u64, written);
    }

    #[test]
    fn the_last_words_are_complete_when_a_vmm_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        let (output, ends) = Output::make(&spec(folder.path())).unwrap();
        let mut guest = accept(ends.console);
        let mut vmm = std::fs::File::from(ends.standard);
        // The thread rests after the first, so that the last are not read yet.
        for _ in 0..100 {
            guest.write_all(b"panic ").unwrap();
            vmm.write_all(b"abort ").unwrap();
        }
        drop((guest, vmm));
        assert_eq!(output.of_the_console().unwrap().bytes, b"panic ".repeat(100));
        assert_eq!(output.of_the_vmm(), b"abort ".repeat(100));
    }

    #[test]
    fn a_vmm_writes_on_without_a_daemon_and_the_next_one_finds_it() {
        let folder = tempfile::tempdir().unwrap();
        let spec = spec(folder.path());
        let (output, ends) = Output::make(&spec).unwrap();
        let listener = UnixListener::from(ends.console);
        let mut guest = listener.accept().unwrap().0;
        guest.write_all(b"first ").unwrap();
        wait_until("it is read", || !console_output(folder.path()).unwrap().bytes.is_empty());
        drop(output);
        wait_until("the reader is gone", || guest.write_all(b"unheard ").is_err());

        // Nobody reads: it does not end the writer, nor hold it up, nor is it kept for ever.
        let mut vmm = std::fs::File::from(ends.standard);
        vmm.write_all(b"alone ").unwrap();
        let full = (0..100).find_map(|_| vmm.write_all(&[b'z'; 4096]).err()).unwrap();
        assert_eq!(full.kind(), std::io::ErrorKind::WouldBlock);

        let next = Output::connect(&spec).unwrap();
        let mut guest = listener.accept().unwrap().0;
        guest.write_all(b"second").unwrap();
        assert_eq!(next.of_the_console().unwrap().bytes, b"first second");
        assert!(next.of_the_vmm().starts_with(b"alone "), "what the pipe held");
        vmm.write_all(b"again").unwrap();
        assert!(next.of_the_vmm().ends_with(b"again"));
    }

    #[test]
    fn a_vmm_that_floods_its_log_is_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let (output, ends) = Output::make(&spec(folder.path())).unwrap();
        let mut vmm = std::fs::File::from(ends.standard);
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(300) {
            // What finds no room is lost.
            vmm.write_all(&[b'z'; 4096]).ok();
        }
        assert_eq!(output.of_the_vmm().len() as u64, VMM_LOG_BYTES);
        let ring = std::fs::metadata(vmm_ring(folder.path())).unwrap();
        assert!(ring.len() < VMM_LOG_BYTES + (128 << 10), "{}", ring.len());
    }
}
