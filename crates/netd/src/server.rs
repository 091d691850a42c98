//! The control socket: what daemons ask.
//!
//! Guarantees: the links stay when a daemon goes. A request that is not understood is answered so.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forkd_netd_protocol::{
    Attach, Connection, Failure, GatewayUsage, Notice, PacketError, Reply, Request,
};
use forkd_types::SandboxId;
use rustix::net::SocketFlags;
use tokio::io::Interest;
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::sync::{Notify, mpsc, oneshot, watch};

use crate::link::{Command, Link, Places};
use crate::pins::Pins;
use crate::policy::Rules;

/// Requests to one link that wait for it.
const COMMANDS_QUEUED: usize = 64;

/// From the start until a daemon has connected.
const FIRST_DEADLINE: Duration = Duration::from_secs(20);

/// All links.
#[derive(Clone)]
pub(crate) struct Server {
    links: Arc<Mutex<HashMap<SandboxId, mpsc::Sender<Command>>>>,
    /// How many connections there are. A daemon that is there has one.
    present: watch::Sender<usize>,
    /// Told of each link that has ended.
    ended: Arc<Notify>,
    places: Places,
}

impl Server {
    pub(crate) fn new(places: Places) -> Self {
        Self {
            links: Arc::default(),
            present: watch::Sender::default(),
            ended: Arc::default(),
            places,
        }
    }

    /// Takes connections until there is neither a daemon nor a link.
    pub(crate) async fn run(self, listener: OwnedFd) -> io::Result<()> {
        tokio::select! {
            taken = self.clone().take_all(listener) => taken,
            () = self.abandoned() => Ok(()),
        }
    }

    /// Waits until no daemon is connected, of which there was one or should have been, and no VMM
    /// has its link.
    async fn abandoned(&self) {
        let mut present = self.present.subscribe();
        // Whoever has started this connects at once.
        tokio::time::timeout(FIRST_DEADLINE, present.changed()).await.ok();
        loop {
            let ended = self.ended.notified();
            if present.wait_for(|present| *present == 0).await.is_err() {
                return;
            }
            if self.links().values().all(mpsc::Sender::is_closed) {
                return;
            }
            tokio::select! {
                () = ended => {}
                _ = present.changed() => {}
            }
        }
    }

    async fn take_all(self, listener: OwnedFd) -> io::Result<()> {
        let listener = forkd_netd_protocol::register(listener)?;
        loop {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let accept =
                |listener: &OwnedFd| Ok(rustix::net::accept_with(listener.as_fd(), flags)?);
            let accepted = listener.async_io(Interest::READABLE, accept).await;
            match accepted.and_then(Connection::new) {
                Ok(connection) => {
                    // Counted in the order in which they have come: a daemon's first one stays.
                    self.present.send_modify(|present| *present += 1);
                    tokio::spawn(self.clone().serve(connection));
                }
                Err(error) => {
                    tracing::warn!(%error, "a daemon could not connect");
                    // Without descriptors the next try would fail as well.
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    async fn serve(self, connection: Connection) {
        self.serve_until_it_ends(connection).await;
        self.present.send_modify(|present| *present -= 1);
    }

    async fn serve_until_it_ends(&self, connection: Connection) {
        let mut notices = None;
        loop {
            let request = tokio::select! {
                request = connection.receive::<Request>() => request,
                notice = next(&mut notices) => {
                    if connection.send(&Reply::Notice(notice), &[]).await.is_err() {
                        return;
                    }
                    continue;
                }
            };
            if let Ok((Request::Watch, _)) = &request {
                notices = Some(self.places.totals.notices());
            }
            let (reply, stream) = match request {
                Ok((request, fds)) => match self.answer(request, fds).await {
                    Ok((reply, stream)) => (reply, stream),
                    Err(failure) => (Reply::Failed(failure), None),
                },
                Err(PacketError::Closed | PacketError::Io(_)) => return,
                Err(error) => (Reply::Failed(Failure::BadRequest(error.to_string())), None),
            };
            let fds: Vec<_> = stream.iter().map(AsFd::as_fd).collect();
            if let Err(error) = connection.send(&reply, &fds).await {
                tracing::debug!(%error, "a daemon did not take its answer");
                return;
            }
        }
    }

    async fn answer(
        &self,
        request: Request,
        fds: Vec<OwnedFd>,
    ) -> Result<(Reply, Option<OwnedFd>), Failure> {
        let reply = match request {
            Request::Links => {
                let mut links = self.links();
                links.retain(|_, link| !link.is_closed());
                Reply::Links(links.keys().cloned().collect())
            }
            Request::Usage => {
                let live = self.links().values().filter(|link| !link.is_closed()).count();
                let links = u64::try_from(live).unwrap_or(u64::MAX);
                Reply::Usage(GatewayUsage { links, ..self.places.totals.usage() })
            }
            Request::Watch => Reply::Done,
            Request::Attach(attach) => {
                self.attach(*attach, fds).await?;
                Reply::Done
            }
            Request::Detach { sandbox } => {
                let link = self.links().remove(&sandbox);
                link.ok_or(Failure::NoLink(sandbox))?;
                Reply::Done
            }
            Request::SetPolicy { sandbox, policy, leave } => {
                let rules = Box::new(Rules::new(policy, leave));
                self.ask(&sandbox, |reply| Command::SetPolicy(rules, reply)).await?;
                Reply::Done
            }
            Request::SetNetworks { sandbox, networks } => {
                self.ask(&sandbox, |reply| Command::SetNetworks(networks, reply)).await?;
                Reply::Done
            }
            Request::SetCredentials => {
                self.places.credentials.replace(fds)?;
                Reply::Done
            }
            Request::Hold { sandbox } => Reply::Flows(self.ask(&sandbox, Command::Hold).await?),
            Request::Release { sandbox } => {
                self.ask(&sandbox, Command::Release).await?;
                Reply::Done
            }
            Request::Flows { sandbox } => Reply::Flows(self.ask(&sandbox, Command::Flows).await?),
            Request::Dial { sandbox, port } => {
                let dialled = self.ask(&sandbox, |reply| Command::Dial(port, reply)).await?;
                return Ok((Reply::Done, Some(dialled?)));
            }
        };
        Ok((reply, None))
    }

    async fn attach(&self, attach: Attach, fds: Vec<OwnedFd>) -> Result<(), Failure> {
        let sandbox = attach.sandbox.clone();
        let bad = |why: String| Failure::BadLink { sandbox: sandbox.clone(), why };
        let Ok([socket, vmm]) = <[OwnedFd; 2]>::try_from(fds) else {
            return Err(bad("two descriptors must come along".to_owned()));
        };
        let pins = match &attach.parent {
            // A parent that is gone has no answers to leave.
            Some(parent) => self.ask(parent, Command::Pins).await.unwrap_or_default(),
            None => Pins::default(),
        };
        let (commands, receiver) = mpsc::channel(COMMANDS_QUEUED);
        let mut links = self.links();
        // One whose VMM has ended makes room.
        if links.get(&sandbox).is_some_and(|link| !link.is_closed()) {
            return Err(Failure::HasLink(sandbox));
        }
        let link = Link::new(attach, socket, vmm, pins, &self.places, receiver)
            .map_err(|error| bad(error.to_string()))?;
        links.insert(sandbox, commands);
        drop(links);
        let ended = Arc::clone(&self.ended);
        tokio::spawn(async move {
            link.run().await;
            ended.notify_waiters();
        });
        Ok(())
    }

    async fn ask<T>(
        &self,
        sandbox: &SandboxId,
        command: impl FnOnce(oneshot::Sender<T>) -> Command,
    ) -> Result<T, Failure> {
        let gone = || Failure::NoLink(sandbox.clone());
        let link = self.links().get(sandbox).cloned().ok_or_else(gone)?;
        let (reply, answer) = oneshot::channel();
        link.send(command(reply)).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())
    }

    fn links(&self) -> MutexGuard<'_, HashMap<SandboxId, mpsc::Sender<Command>>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits for the next notice, if there is to be one.
async fn next(notices: &mut Option<broadcast::Receiver<Notice>>) -> Notice {
    if let Some(notices) = notices {
        loop {
            match notices.recv().await {
                Ok(notice) => return notice,
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => break,
            }
        }
    }
    std::future::pending().await
}
