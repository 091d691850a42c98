//! The gateway process: started when there is none, started again when it ends.
//!
//! It is found by its socket, so one that an earlier daemon has started is used as it is. It ends
//! by itself when no daemon is present and no VMM has a link.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use forkd_netd_protocol::{
    Attach, Client, ClientError, Flow, GatewayUsage, Notice, Presence, read_connections, register,
};
use forkd_types::network::{Alias, NetworkLeave, NetworkName, NetworkPolicy};
use forkd_types::{Isolation, SandboxId};
use rustix::process::Signal;
use tokio::net::UnixStream;
use tokio::sync::{Mutex, mpsc, watch};
use tokio::time::{Instant, sleep, timeout};

use super::home::{GatewayHome, log_folder};
use super::{CredentialFiles, Gateway, VmLink};
use crate::EngineConfig;
use crate::background::blocking;
use crate::host::Users;

/// From its start until it listens: milliseconds on an idle host.
const START_DEADLINE: Duration = Duration::from_secs(20);
const START_POLL: Duration = Duration::from_millis(2);
/// For one that nobody needs to end.
const END_DEADLINE: Duration = Duration::from_secs(10);
/// Between two questions whether it still answers.
const PING_PAUSE: Duration = Duration::from_secs(1);
/// For the answer, which takes microseconds.
const PING_DEADLINE: Duration = Duration::from_secs(3);
/// Between two attempts to start one.
const RETRY: Duration = Duration::from_secs(1);
/// Notices of the gateway that nobody has looked at yet.
const NOTICES_QUEUED: usize = 64;

/// What the gateway says on its standard error, which is nothing unless it fails.
const LAST_WORDS: &str = "netd.log";

/// The process that listens.
#[derive(Debug, Clone, Copy, Default)]
struct Running {
    /// Which one it is, or was: they are counted from 1.
    number: u64,
    listens: bool,
    /// Nobody starts another one.
    left_alone: bool,
}

/// The gateway of one daemon.
#[derive(Debug)]
pub(crate) struct GatewayProcess {
    home: Arc<GatewayHome>,
    /// Has its socket.
    run_dir: PathBuf,
    client: Client,
    running: watch::Sender<Running>,
    notices: (mpsc::Sender<Notice>, Mutex<mpsc::Receiver<Notice>>),
}

impl GatewayProcess {
    /// For the daemon with this configuration, whose VMMs are isolated so. None is started yet.
    pub(crate) fn new(config: &EngineConfig, isolation: Isolation, users: Users) -> Self {
        let (sender, receiver) = mpsc::channel(NOTICES_QUEUED);
        Self {
            notices: (sender, Mutex::new(receiver)),
            home: Arc::new(GatewayHome::new(config, isolation, users)),
            client: Client::new(socket_in(&config.run_dir)),
            run_dir: config.run_dir.clone(),
            running: watch::Sender::default(),
        }
    }

    /// Sees to it that one runs, for as long as this is polled.
    pub(crate) async fn keep(&self) {
        let _kept = Kept(&self.running);
        let mut lost = false;
        loop {
            match self.find_or_start(lost).await {
                Ok(presence) => {
                    self.running.send_modify(|running| {
                        *running = Running {
                            number: running.number + 1,
                            listens: true,
                            left_alone: false,
                        };
                    });
                    let reason = self.look_after(&presence).await;
                    self.running.send_modify(|running| running.listens = false);
                    tracing::debug!(%reason, "the network gateway is lost");
                    lost = true;
                }
                Err(error) => {
                    let words = fs::read_to_string(self.run_dir.join(LAST_WORDS));
                    let words = words.unwrap_or_default();
                    let words = words.lines().next_back().unwrap_or_default().to_owned();
                    tracing::error!(%error, words, "the network gateway does not start");
                    sleep(RETRY).await;
                }
            }
        }
    }

    /// Sees to it that the gateway answers, and takes what it tells, until it ends. Gives the
    /// reason.
    async fn look_after(&self, presence: &Presence) -> String {
        tokio::select! {
            reason = self.listen(presence) => reason,
            () = self.silence() => {
                tracing::warn!("the network gateway does not answer, and is ended");
                if let Err(error) = end(presence).await {
                    tracing::error!(%error, "the network gateway cannot be ended");
                }
                "it does not answer".to_owned()
            }
        }
    }

    /// Waits until the gateway does not answer twice in turn: the first answer may be late because
    /// this process stood still too.
    async fn silence(&self) {
        let mut missed = 0;
        while missed < 2 {
            sleep(PING_PAUSE).await;
            if let Err(error) = self.home.refresh_resolvers() {
                tracing::warn!(%error, "the network gateway asks resolvers that the host had");
            }
            let answered = timeout(PING_DEADLINE, self.client.usage()).await.is_ok();
            missed = if answered { 0 } else { missed + 1 };
        }
    }

    /// Takes what the gateway tells, until it ends. Gives the reason.
    async fn listen(&self, presence: &Presence) -> String {
        if let Err(error) = presence.watch().await {
            return error.to_string();
        }
        loop {
            match presence.next().await {
                // There is always somebody who takes them.
                Ok(notice) => drop(self.notices.0.send(notice).await),
                Err(error) => return error.to_string(),
            }
        }
    }

    /// Finds the one that listens, or starts one, which is worth a word if there was one before.
    async fn find_or_start(&self, lost: bool) -> io::Result<Presence> {
        let socket = socket_in(&self.run_dir);
        if let Ok(presence) = Presence::at(&socket) {
            return Ok(presence);
        }
        if lost {
            tracing::warn!("the network gateway has ended; another one is started");
        }
        self.start().await?;
        let until = Instant::now() + START_DEADLINE;
        loop {
            match Presence::at(&socket) {
                Ok(presence) => return Ok(presence),
                Err(error) if Instant::now() > until => return Err(io::Error::other(error)),
                Err(_) => sleep(START_POLL).await,
            }
        }
    }

    async fn start(&self) -> io::Result<()> {
        let words = File::create(self.run_dir.join(LAST_WORDS))?;
        let socket = forkd_netd_protocol::bind(&socket_in(&self.run_dir))?;
        let home = Arc::clone(&self.home);
        blocking(move || home.start(socket, words)).await.map_err(io::Error::other)?
    }

    /// Asks the gateway that listens, or the next one if it ends meanwhile.
    async fn ask<T, F>(&self, ask: impl Fn(Client) -> F) -> Result<T, ClientError>
    where
        F: Future<Output = Result<T, ClientError>>,
    {
        let until = Instant::now() + START_DEADLINE;
        loop {
            let mut running = self.running.subscribe();
            let left = until.saturating_duration_since(Instant::now());
            let waited = running.wait_for(|running| running.listens || running.left_alone);
            let is_there = timeout(left, waited)
                .await
                .is_ok_and(|running| running.is_ok_and(|running| !running.left_alone));
            let asked = ask(self.client.clone()).await;
            let lost = matches!(
                asked,
                Err(ClientError::Unreachable { .. } | ClientError::Lost(_) | ClientError::Silent)
            );
            if !is_there || !lost || Instant::now() >= until {
                return asked;
            }
            sleep(START_POLL).await;
        }
    }
}

/// Somebody sees to it that a gateway runs, until this is dropped. From then on nobody waits for
/// another one.
struct Kept<'a>(&'a watch::Sender<Running>);

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|running| running.left_alone = true);
    }
}

/// Ends the gateway at the other end, and waits for it.
async fn end(presence: &Presence) -> io::Result<()> {
    let process = presence.process()?;
    rustix::process::pidfd_send_signal(&process, Signal::KILL)?;
    let ended = register(process)?;
    timeout(END_DEADLINE, ended.readable()).await?.map(drop)
}

fn socket_in(run_dir: &std::path::Path) -> PathBuf {
    run_dir.join("netd.sock")
}

#[async_trait]
impl Gateway for GatewayProcess {
    async fn started(&self, after: u64) -> u64 {
        let mut running = self.running.subscribe();
        let next = running.wait_for(|running| running.listens && running.number > after).await;
        // Its sender lives as long as this.
        next.map_or(after, |running| running.number)
    }

    async fn noticed(&self) -> Notice {
        match self.notices.1.lock().await.recv().await {
            Some(notice) => notice,
            // The other end is in here too.
            None => std::future::pending().await,
        }
    }

    async fn usage(&self) -> Result<GatewayUsage, ClientError> {
        self.client.usage().await
    }

    async fn gone(&self) {
        let socket = socket_in(&self.run_dir);
        let until = Instant::now() + END_DEADLINE;
        while Presence::at(&socket).is_ok() && Instant::now() < until {
            sleep(START_POLL).await;
        }
    }

    fn left(&self, sandbox: &SandboxId) -> Vec<Flow> {
        let read = read_connections(&log_folder(&self.run_dir, sandbox));
        let flows = read.unwrap_or_else(|error| {
            tracing::warn!(%sandbox, %error, "connections may outlive their gateway");
            Vec::new()
        });
        flows.into_iter().map(Flow::Tcp).collect()
    }

    async fn links(&self) -> Result<Vec<SandboxId>, ClientError> {
        self.ask(|client| async move { client.links().await }).await
    }

    async fn attach(&self, attach: Attach, link: Arc<VmLink>) -> Result<(), ClientError> {
        if let Err(error) = self.home.make_log_folder(&attach.sandbox) {
            tracing::warn!(sandbox = %attach.sandbox, %error, "there is no network log");
        }
        let attach = Arc::new(attach);
        self.ask(|client| {
            let (attach, link) = (Arc::clone(&attach), Arc::clone(&link));
            async move {
                client.attach(Attach::clone(&attach), link.socket.as_fd(), link.vmm.as_fd()).await
            }
        })
        .await
    }

    async fn set_credentials(&self, files: Arc<CredentialFiles>) -> Result<(), ClientError> {
        self.ask(|client| {
            let files = Arc::clone(&files);
            async move {
                let CredentialFiles { secrets, key, roots } = files.as_ref();
                client.set_credentials([secrets.as_fd(), key.as_fd(), roots.as_fd()]).await
            }
        })
        .await
    }

    async fn detach(&self, sandbox: &SandboxId) -> Result<(), ClientError> {
        self.ask(|client| async move { client.detach(sandbox.clone()).await }).await
    }

    async fn set_policy(
        &self,
        sandbox: &SandboxId,
        policy: &NetworkPolicy,
        leave: NetworkLeave,
    ) -> Result<(), ClientError> {
        self.ask(
            |client| async move { client.set_policy(sandbox.clone(), policy.clone(), leave).await },
        )
        .await
    }

    async fn set_networks(
        &self,
        sandbox: &SandboxId,
        networks: BTreeMap<NetworkName, Alias>,
    ) -> Result<(), ClientError> {
        self.ask(|client| {
            let (sandbox, networks) = (sandbox.clone(), networks.clone());
            async move { client.set_networks(sandbox, networks).await }
        })
        .await
    }

    async fn dial(&self, sandbox: &SandboxId, port: u16) -> Result<UnixStream, ClientError> {
        self.ask(|client| async move { client.dial(sandbox.clone(), port).await }).await
    }

    async fn hold(&self, sandbox: &SandboxId) -> Result<Vec<Flow>, ClientError> {
        self.client.hold(sandbox.clone()).await
    }

    async fn release(&self, sandbox: &SandboxId) -> Result<Vec<Flow>, ClientError> {
        self.client.release(sandbox.clone()).await?;
        self.client.flows(sandbox.clone()).await
    }
}

#[cfg(test)]
mod tests {
    use crate::Limits;

    use super::*;

    #[tokio::test]
    async fn nobody_waits_for_a_gateway_that_nobody_starts_again() {
        let folder = tempfile::tempdir().unwrap();
        let config = crate::fake::config(folder.path(), Limits::default()).unwrap();
        fs::create_dir_all(&config.run_dir).unwrap();
        let gateway = GatewayProcess::new(&config, Isolation::None, Users::DAEMONS);
        gateway.running.send_modify(|running| running.listens = true);
        // It has ended, and the daemon does.
        drop(Kept(&gateway.running));
        let asked = timeout(START_DEADLINE, gateway.links()).await.expect("it waits");
        assert!(matches!(asked, Err(ClientError::Unreachable { .. })), "{asked:?}");
    }
}
