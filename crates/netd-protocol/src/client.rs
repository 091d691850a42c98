//! The daemon's end.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use forkd_types::SandboxId;
use forkd_types::network::{Alias, NetworkLeave, NetworkName, NetworkPolicy};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::message::{Attach, Failure, Flow, GatewayUsage, Reply, Request};
use crate::packet::{Connection, PacketError};

/// For one answer. The gateway answers within milliseconds; a guest that is dialled has half of
/// this time.
pub const CLIENT_DEADLINE: Duration = Duration::from_secs(10);

/// Why the gateway has not done what was asked.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nothing listens at its socket.
    #[error("the gateway cannot be reached at {}", path.display())]
    Unreachable {
        /// Its socket.
        path: PathBuf,
        /// What the kernel says.
        source: io::Error,
    },
    /// The exchange broke off.
    #[error("the gateway did not answer")]
    Lost(#[source] PacketError),
    /// The deadline has passed.
    #[error("the gateway did not answer within {} s", CLIENT_DEADLINE.as_secs())]
    Silent,
    /// It refuses.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// It answered another question.
    #[error("the gateway answered another question")]
    Confused,
}

/// Asks the gateway that listens at one path.
#[derive(Debug, Clone)]
pub struct Client {
    path: PathBuf,
}

impl Client {
    /// For the gateway at `path`. Nothing is connected yet.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Which sandboxes have a link there.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn links(&self) -> Result<Vec<SandboxId>, ClientError> {
        match self.ask(&Request::Links, &[]).await? {
            (Reply::Links(links), _) => Ok(links),
            _ => Err(ClientError::Confused),
        }
    }

    /// How much there is of everything.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn usage(&self) -> Result<GatewayUsage, ClientError> {
        match self.ask(&Request::Usage, &[]).await? {
            (Reply::Usage(usage), _) => Ok(usage),
            _ => Err(ClientError::Confused),
        }
    }

    /// Hands over a link: the gateway's end of the pair, and what becomes readable when the VMM
    /// ends, such as a descriptor of its process. The pair itself would not tell. Not called twice
    /// for one sandbox without [`Client::detach`].
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn attach(
        &self,
        attach: Attach,
        link: BorrowedFd<'_>,
        vmm: BorrowedFd<'_>,
    ) -> Result<(), ClientError> {
        self.done(&Request::Attach(Box::new(attach)), &[link, vmm]).await
    }

    /// Lets a link go.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn detach(&self, sandbox: SandboxId) -> Result<(), ClientError> {
        self.done(&Request::Detach { sandbox }, &[]).await
    }

    /// Replaces a policy and resets what it no longer permits.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn set_policy(
        &self,
        sandbox: SandboxId,
        policy: NetworkPolicy,
        leave: NetworkLeave,
    ) -> Result<(), ClientError> {
        self.done(&Request::SetPolicy { sandbox, policy, leave }, &[]).await
    }

    /// Replaces the private networks that a sandbox is a member of, and resets connections over
    /// those that it leaves.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn set_networks(
        &self,
        sandbox: SandboxId,
        networks: BTreeMap<NetworkName, Alias>,
    ) -> Result<(), ClientError> {
        self.done(&Request::SetNetworks { sandbox, networks }, &[]).await
    }

    /// Replaces secrets, the authority's private key, and the certificates from which those of
    /// servers are believed: descriptors of files.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn set_credentials(&self, files: [BorrowedFd<'_>; 3]) -> Result<(), ClientError> {
        self.done(&Request::SetCredentials, &files).await
    }

    /// Stops what goes to the guest, for 50 ms at most. When it returns, the last frame has been
    /// written.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn hold(&self, sandbox: SandboxId) -> Result<Vec<Flow>, ClientError> {
        self.listed(&Request::Hold { sandbox }).await
    }

    /// Ends a hold.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn release(&self, sandbox: SandboxId) -> Result<(), ClientError> {
        self.done(&Request::Release { sandbox }, &[]).await
    }

    /// What a child would inherit.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn flows(&self, sandbox: SandboxId) -> Result<Vec<Flow>, ClientError> {
        self.listed(&Request::Flows { sandbox }).await
    }

    /// Connects to a port of the guest.
    ///
    /// # Errors
    /// See [`ClientError`]; [`Failure::PortClosed`] when nothing listens.
    pub async fn dial(&self, sandbox: SandboxId, port: u16) -> Result<UnixStream, ClientError> {
        let (reply, fds) = self.ask(&Request::Dial { sandbox, port }, &[]).await?;
        let (Reply::Done, Some(stream)) = (reply, fds.into_iter().next()) else {
            return Err(ClientError::Confused);
        };
        let stream = std::os::unix::net::UnixStream::from(stream);
        let stream = stream.set_nonblocking(true).and_then(|()| UnixStream::from_std(stream));
        stream.map_err(|error| ClientError::Lost(error.into()))
    }

    async fn listed(&self, request: &Request) -> Result<Vec<Flow>, ClientError> {
        match self.ask(request, &[]).await? {
            (Reply::Flows(flows), _) => Ok(flows),
            _ => Err(ClientError::Confused),
        }
    }

    async fn done(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<(), ClientError> {
        match self.ask(request, fds).await? {
            (Reply::Done, _) => Ok(()),
            _ => Err(ClientError::Confused),
        }
    }

    async fn ask(
        &self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(Reply, Vec<OwnedFd>), ClientError> {
        let unreachable = |source| ClientError::Unreachable { path: self.path.clone(), source };
        let socket = connect(&self.path).map_err(unreachable)?;
        let connection = Connection::new(socket).map_err(unreachable)?;
        let exchange = async {
            connection.send(request, fds).await?;
            connection.receive::<Reply>().await
        };
        match timeout(CLIENT_DEADLINE, exchange).await {
            Err(_) => Err(ClientError::Silent),
            Ok(Err(error)) => Err(ClientError::Lost(error)),
            Ok(Ok((Reply::Failed(failure), _))) => Err(failure.into()),
            Ok(Ok(answer)) => Ok(answer),
        }
    }
}

/// A socket for the gateway to listen on: who starts it makes it, because a confined gateway sees
/// neither the path nor any other. A socket that was left there is replaced.
///
/// # Errors
/// What the kernel says.
pub fn bind(path: &Path) -> io::Result<OwnedFd> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let socket = socket()?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    // This user alone: others may neither reach the socket nor open it.
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok(socket)
}

fn socket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

pub(crate) fn connect(path: &Path) -> io::Result<OwnedFd> {
    let socket = socket()?;
    rustix::net::connect(socket.as_fd(), &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}
