//! The byte stream to the host. It never ends: when nobody is there, reading and writing wait.

use std::fs::{DirEntry, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use crate::sync::lock;

/// A byte stream that outlives its peers. One thread reads, another one writes.
pub(crate) trait Link: Send + Sync {
    /// Reads at least one byte, waiting for a peer if necessary.
    fn read(&self, buffer: &mut [u8]) -> usize;
    /// Writes all bytes, waiting for a peer if necessary.
    fn write_all(&self, bytes: &[u8]);
}

/// Sleeps longer and longer while nothing happens.
struct Backoff(Duration);

impl Backoff {
    const SHORTEST: Duration = Duration::from_millis(1);
    /// A sleeping reader notices a new host within this time.
    const LONGEST: Duration = Duration::from_millis(20);

    fn new() -> Self {
        Self(Self::SHORTEST)
    }

    fn sleep(&mut self) {
        std::thread::sleep(self.0);
        self.0 = (self.0 * 2).min(Self::LONGEST);
    }
}

/// The virtio-serial port. The kernel makes a read return 0 while the host side is not connected,
/// and a write wait.
pub(crate) struct PortLink {
    port: File,
    device: Option<String>,
}

impl PortLink {
    /// Waits for the port of this name to appear, and opens it.
    pub(crate) fn open(name: &str, within: Duration) -> io::Result<Self> {
        let start = std::time::Instant::now();
        let mut backoff = Backoff::new();
        loop {
            match find_port(name) {
                Some(port) => {
                    let device = std::fs::read_link(port.path().join("device")).ok();
                    let device = device.and_then(|it| Some(it.file_name()?.to_str()?.to_owned()));
                    let file = Path::new("/dev").join(port.file_name());
                    let port = OpenOptions::new().read(true).write(true).open(file)?;
                    return Ok(Self { port, device });
                }
                None if start.elapsed() > within => return Err(io::ErrorKind::NotFound.into()),
                None => backoff.sleep(),
            }
        }
    }

    /// The device that the port belongs to, such as `virtio0`.
    pub(crate) fn device(&self) -> Option<&str> {
        self.device.as_deref()
    }
}

/// The port with this name, as the kernel shows it.
fn find_port(name: &str) -> Option<DirEntry> {
    let ports = std::fs::read_dir("/sys/class/virtio-ports").ok()?;
    ports.flatten().find(|port| {
        let found = std::fs::read_to_string(port.path().join("name"));
        found.is_ok_and(|found| found.trim_end() == name)
    })
}

impl Link for PortLink {
    fn read(&self, buffer: &mut [u8]) -> usize {
        let mut backoff = Backoff::new();
        loop {
            match (&self.port).read(buffer) {
                Ok(count) if count > 0 => return count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(_) | Err(_) => backoff.sleep(),
            }
        }
    }

    fn write_all(&self, mut bytes: &[u8]) {
        let mut backoff = Backoff::new();
        while !bytes.is_empty() {
            match (&self.port).write(bytes) {
                Ok(count) if count > 0 => bytes = &bytes[count..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(_) | Err(_) => backoff.sleep(),
            }
        }
    }
}

/// A Unix socket on which one peer after the other is served.
pub(crate) struct SocketLink {
    listener: UnixListener,
    peer: Mutex<Option<Arc<UnixStream>>>,
    arrived: Condvar,
}

impl SocketLink {
    /// Listens at `path`, which must not exist.
    pub(crate) fn listen(path: &Path) -> io::Result<Self> {
        let listener = UnixListener::bind(path)?;
        Ok(Self { listener, peer: Mutex::new(None), arrived: Condvar::new() })
    }

    /// The peer, accepted if there is none.
    fn accept(&self) -> Option<Arc<UnixStream>> {
        if let Some(peer) = lock(&self.peer).as_ref() {
            return Some(Arc::clone(peer));
        }
        let (stream, _) = self.listener.accept().ok()?;
        let stream = Arc::new(stream);
        *lock(&self.peer) = Some(Arc::clone(&stream));
        self.arrived.notify_all();
        Some(stream)
    }

    /// Forgets this peer, unless another one has come.
    fn forget(&self, gone: &Arc<UnixStream>) {
        let mut peer = lock(&self.peer);
        if peer.as_ref().is_some_and(|current| Arc::ptr_eq(current, gone)) {
            *peer = None;
        }
    }

    /// The peer, waited for if there is none.
    fn wait_for_peer(&self) -> Arc<UnixStream> {
        let mut peer = lock(&self.peer);
        loop {
            if let Some(stream) = peer.as_ref() {
                return Arc::clone(stream);
            }
            peer = self.arrived.wait(peer).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }
}

impl Link for SocketLink {
    fn read(&self, buffer: &mut [u8]) -> usize {
        let mut backoff = Backoff::new();
        loop {
            let Some(peer) = self.accept() else {
                backoff.sleep();
                continue;
            };
            match (&*peer).read(buffer) {
                Ok(count) if count > 0 => return count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(_) | Err(_) => self.forget(&peer),
            }
        }
    }

    fn write_all(&self, mut bytes: &[u8]) {
        let mut backoff = Backoff::new();
        while !bytes.is_empty() {
            let peer = self.wait_for_peer();
            match (&*peer).write(bytes) {
                Ok(count) if count > 0 => bytes = &bytes[count..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The reader notices the end too, and accepts the next peer.
                Ok(_) | Err(_) => backoff.sleep(),
            }
        }
    }
}
