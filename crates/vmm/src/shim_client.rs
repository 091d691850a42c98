//! The daemon's end of the shim's socket.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use forkd_sys::packet;
use forkd_sys::shim_wire::{self, Mapping, Request};
use forkd_sys::uffd::{self, Userfaultfd};
use forkd_types::PageRun;
use rustix::fs::OFlags;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

use crate::{GuestRam, VmmError};

/// Pages of guest RAM and where they come from.
#[derive(Debug, Clone, Copy)]
pub struct MappedRun<'a> {
    /// A layer's file, which is laid out like guest RAM. None: they are zero. A hole of the file
    /// would read as zeros too, but the file system would need room for each of its pages that the
    /// guest touches, and the guest would die where there is none.
    pub file: Option<BorrowedFd<'a>>,
    /// Which pages: of guest RAM and, at the same offset, of the file.
    pub run: PageRun,
}

/// The numbers of the shim's descriptors.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ShimNumbers {
    /// Its socket.
    pub(crate) socket: i32,
    /// The far end of the network link, if there is one.
    pub(crate) link: Option<i32>,
}

impl ShimNumbers {
    /// The variables of the environment that say them.
    pub(crate) fn variables(self) -> impl Iterator<Item = (&'static str, String)> {
        let link = self.link.map(|link| (shim_wire::LINK_FD_VARIABLE, link.to_string()));
        std::iter::once((shim_wire::LISTEN_FD_VARIABLE, self.socket.to_string())).chain(link)
    }
}

/// A connection to the shim of one VMM.
#[derive(Debug)]
pub struct ShimClient {
    connection: OwnedFd,
    deadline: Duration,
    /// Replies that the shim owes: to the request under way, and to those that were given up.
    owed: usize,
}

impl ShimClient {
    /// Connects to the socket at `path`, which was listening before the VMM started.
    pub(crate) fn connect(path: &Path, deadline: Duration) -> Result<Self, VmmError> {
        let failed =
            |errno: rustix::io::Errno| VmmError::Shim { what: "be reached", source: errno.into() };
        let connection = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .map_err(failed)?;
        let receive = sockopt::Timeout::Recv;
        sockopt::set_socket_timeout(&connection, receive, Some(deadline)).map_err(failed)?;
        let address = SocketAddrUnix::new(path).map_err(failed)?;
        rustix::net::connect(&connection, &address).map_err(failed)?;
        Ok(Self { connection, deadline, owed: 0 })
    }

    /// Creates a userfaultfd over the VMM's address space.
    ///
    /// # Errors
    /// When the kernel does not permit it, or lacks the features that a live branch needs.
    pub fn userfaultfd(&mut self) -> Result<Userfaultfd, VmmError> {
        let what = "create a userfaultfd";
        // A confined VMM has no device of its own, and no right to the system call.
        let device = uffd::open_device().ok();
        let device = device.as_ref().map(AsFd::as_fd);
        let reply = self.request(what, &Request::Userfaultfd, device)?;
        Ok(Userfaultfd::handshake(sent(what, reply, require_userfaultfd)?)?)
    }

    /// The far end of the VMM's network device, which has one.
    ///
    /// # Errors
    /// When the shim has none.
    pub fn network_link(&mut self) -> Result<OwnedFd, VmmError> {
        let what = "give the far end of the network device";
        let reply = self.request(what, &Request::NetworkLink, None)?;
        sent(what, reply, require_link)
    }

    /// Maps `runs` copy-on-write over guest RAM. The guest must not run.
    ///
    /// # Errors
    /// When a mapping fails; guest RAM is then undefined and the VM must not be started.
    pub fn map(&mut self, ram: GuestRam, runs: &[MappedRun<'_>]) -> Result<(), VmmError> {
        let mut rest = runs;
        while let Some(first) = rest.first() {
            let number = |run: &MappedRun<'_>| run.file.map(|file| file.as_raw_fd());
            let same = |run: &&MappedRun<'_>| number(run) == number(first);
            let count =
                rest.iter().take(shim_wire::MAPPINGS_PER_REQUEST_MAX).take_while(same).count();
            let (now, later) = rest.split_at(count);
            let mappings: Vec<_> = now
                .iter()
                .map(|mapped| Mapping {
                    address: ram.address + mapped.run.start.byte_offset(),
                    length: mapped.run.bytes().get(),
                    file_offset: mapped.run.start.byte_offset(),
                })
                .collect();
            let request = match first.file {
                Some(_) => Request::Map(mappings),
                None => Request::MapZeros(mappings),
            };
            self.request("map a layer", &request, first.file)?;
            rest = later;
        }
        Ok(())
    }

    /// Keeps the vCPUs, of which emulated ones are these threads, from running guest code until
    /// they are released. By itself the shim releases them after a moment.
    ///
    /// # Errors
    /// When a thread is not there, or does not stand still.
    pub(crate) fn hold_vcpus(&mut self, threads: Vec<u32>) -> Result<(), VmmError> {
        self.request("hold the vCPUs", &Request::HoldVcpus(threads), None).map(drop)
    }

    /// Lets held vCPUs go.
    ///
    /// # Errors
    /// When they were not held any more.
    pub(crate) fn release_vcpus(&mut self) -> Result<(), VmmError> {
        self.request("release the vCPUs", &Request::ReleaseVcpus, None).map(drop)
    }

    /// Lets the held vCPU go that is this thread. Others stay held.
    ///
    /// # Errors
    /// When none was held any more.
    pub(crate) fn release_vcpu(&mut self, thread: u32) -> Result<(), VmmError> {
        self.request("release a vCPU", &Request::ReleaseVcpu(thread), None).map(drop)
    }

    fn request(
        &mut self,
        what: &'static str,
        request: &Request,
        attached: Option<BorrowedFd<'_>>,
    ) -> Result<Option<OwnedFd>, VmmError> {
        self.exchange(&shim_wire::encode_request(request), attached).map_err(|source| match source
            .kind()
        {
            io::ErrorKind::WouldBlock => {
                VmmError::Silent { command: what, deadline: self.deadline }
            }
            _ => VmmError::Shim { what, source },
        })
    }

    fn exchange(
        &mut self,
        packet: &[u8],
        attached: Option<BorrowedFd<'_>>,
    ) -> io::Result<Option<OwnedFd>> {
        let attached: Vec<_> = attached.into_iter().collect();
        packet::send(&self.connection, packet, &attached)?;
        self.owed += 1;
        // Late replies belong to requests that were given up; what they carry is closed.
        loop {
            let reply = self.reply()?;
            self.owed -= 1;
            if self.owed == 0 {
                return reply.result();
            }
        }
    }

    fn reply(&self) -> io::Result<Reply> {
        let mut reply = [0u8; shim_wire::REPLY_BYTES];
        let (bytes, created) = packet::receive(&self.connection, &mut reply)?;
        if bytes != shim_wire::REPLY_BYTES {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut created = created.into_iter();
        let (created, more) = (created.next(), created.next());
        if more.is_some() {
            return Err(io::Error::other("it sent more than one descriptor"));
        }
        Ok(Reply { number: i32::from_ne_bytes(reply), created })
    }
}

/// The descriptor that came with a reply. A VMM that was taken over sends what it likes.
fn sent(
    what: &'static str,
    descriptor: Option<OwnedFd>,
    require: impl FnOnce(&OwnedFd) -> io::Result<()>,
) -> Result<OwnedFd, VmmError> {
    let missing = || io::Error::other("it sent no descriptor");
    let checked = descriptor.ok_or_else(missing).and_then(|descriptor| {
        require(&descriptor)?;
        // Who reads it must not wait for the VMM.
        let flags = rustix::fs::fcntl_getfl(&descriptor)?;
        rustix::fs::fcntl_setfl(&descriptor, flags | OFlags::NONBLOCK)?;
        Ok(descriptor)
    });
    checked.map_err(|source| VmmError::Shim { what, source })
}

fn require_userfaultfd(descriptor: &OwnedFd) -> io::Result<()> {
    let kind = std::fs::read_link(format!("/proc/self/fd/{}", descriptor.as_raw_fd()))?;
    if kind == Path::new("anon_inode:[userfaultfd]") {
        return Ok(());
    }
    Err(io::Error::other(format!("it sent no userfaultfd but {}", kind.display())))
}

/// One datagram is one frame.
fn require_link(descriptor: &OwnedFd) -> io::Result<()> {
    let kind = sockopt::socket_domain(descriptor).and_then(|domain| {
        let is_link =
            domain == AddressFamily::UNIX && sockopt::socket_type(descriptor)? == SocketType::DGRAM;
        Ok(is_link)
    });
    match kind {
        Ok(true) => Ok(()),
        Ok(false) => Err(io::Error::other("it sent a socket of another kind")),
        Err(_) => Err(io::Error::other("it sent no socket")),
    }
}

/// One packet of the shim.
struct Reply {
    /// An error number, or 0.
    number: i32,
    created: Option<OwnedFd>,
}

impl Reply {
    fn result(self) -> io::Result<Option<OwnedFd>> {
        match self.number {
            0 => Ok(self.created),
            number => Err(io::Error::from_raw_os_error(number)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::net::{UnixDatagram, UnixStream};
    use std::thread;

    use super::*;

    const SOON: Duration = Duration::from_secs(10);

    /// A client of a shim that answers its first request with these bytes and descriptors.
    fn against(reply: &'static [u8], attached: Vec<OwnedFd>) -> ShimClient {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let kind = SocketType::SEQPACKET;
        let listener = rustix::net::socket(AddressFamily::UNIX, kind, None).unwrap();
        rustix::net::bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::listen(&listener, 1).unwrap();
        let client = ShimClient::connect(&path, SOON).unwrap();
        thread::spawn(move || {
            let peer = rustix::net::accept(&listener).unwrap();
            let mut request = vec![0; shim_wire::REQUEST_BYTES_MAX];
            packet::receive(&peer, &mut request).unwrap();
            let attached: Vec<_> = attached.iter().map(AsFd::as_fd).collect();
            packet::send(&peer, reply, &attached).unwrap();
        });
        client
    }

    /// That of a request that was done.
    const DONE: &[u8] = &[0; shim_wire::REPLY_BYTES];

    fn pipe() -> OwnedFd {
        rustix::pipe::pipe().unwrap().0
    }

    fn file() -> OwnedFd {
        File::open("/proc/self/exe").unwrap().into()
    }

    fn datagrams() -> OwnedFd {
        UnixDatagram::unbound().unwrap().into()
    }

    fn words(error: &VmmError) -> String {
        let VmmError::Shim { what, source } = error else { panic!("{error}") };
        format!("{what}: {source}")
    }

    #[test]
    fn what_is_no_userfaultfd_is_named_and_not_used() {
        let none = (Vec::new(), "it sent no descriptor");
        let two = (vec![pipe(), pipe()], "it sent more than one descriptor");
        let others = [
            (vec![pipe()], "it sent no userfaultfd but pipe:"),
            (vec![file()], "it sent no userfaultfd but /"),
            (vec![datagrams()], "it sent no userfaultfd but socket:"),
        ];
        for (attached, wanted) in others.into_iter().chain([none, two]) {
            let error = against(DONE, attached).userfaultfd().unwrap_err();
            assert!(words(&error).contains(wanted), "{wanted}: {}", words(&error));
        }
    }

    #[test]
    fn what_is_no_network_link_is_named_and_not_used() {
        let stream = OwnedFd::from(UnixStream::pair().unwrap().0);
        let internet = OwnedFd::from(std::net::UdpSocket::bind("127.0.0.1:0").unwrap());
        let others = [
            (vec![pipe()], "it sent no socket"),
            (vec![file()], "it sent no socket"),
            (vec![stream], "it sent a socket of another kind"),
            (vec![internet], "it sent a socket of another kind"),
            (Vec::new(), "it sent no descriptor"),
            (vec![datagrams(), datagrams()], "it sent more than one descriptor"),
        ];
        for (attached, wanted) in others {
            let error = against(DONE, attached).network_link().unwrap_err();
            assert!(words(&error).contains(wanted), "{wanted}: {}", words(&error));
        }
    }

    #[test]
    fn a_link_that_would_make_its_reader_wait_does_not() {
        let link = against(DONE, vec![datagrams()]).network_link().unwrap();
        let flags = rustix::fs::fcntl_getfl(&link).unwrap();
        assert!(flags.contains(OFlags::NONBLOCK), "{flags:?}");
        let error = UnixDatagram::from(link).recv(&mut [0; 8]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn an_answer_of_another_length_or_with_too_many_descriptors_is_an_error() {
        for reply in [&[0; 3][..], &[0; 5]] {
            let error = against(reply, vec![datagrams()]).network_link().unwrap_err();
            assert!(matches!(error, VmmError::Shim { .. }), "{error}");
        }
        let many = (0..packet::DESCRIPTORS_MAX).map(|_| datagrams()).collect();
        let error = against(DONE, many).network_link().unwrap_err();
        assert!(words(&error).contains("more than one"), "{}", words(&error));
    }
}
