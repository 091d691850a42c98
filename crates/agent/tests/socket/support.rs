//! An agent process on this machine, and connections to it.

use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use forkd_engine::guest::GuestAgent;
use tempfile::TempDir;
use tokio::net::UnixStream;

/// Long enough for a busy machine; no test waits this long when all is well.
pub(crate) const SOON: Duration = Duration::from_secs(120);

/// How long an idle agent must use no more than [`IDLE_MOST`], two ticks of the kernel's clock.
const IDLE_FOR: Duration = Duration::from_secs(1);
const IDLE_MOST: Duration = Duration::from_millis(20);
/// An agent with something left to do has done it by then.
const IDLE_SOON: Duration = Duration::from_secs(20);

/// Ends its process when dropped.
pub(crate) struct LocalAgent {
    process: Child,
    pub(crate) folder: TempDir,
}

impl LocalAgent {
    pub(crate) fn start() -> Self {
        Self::start_with(|_| {})
    }

    /// Starts with a changed command line or environment.
    pub(crate) fn start_with(change: impl FnOnce(&mut Command)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_forkd-agent"));
        command.arg("--socket").arg(folder.path().join("agent"));
        command.env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        change(&mut command);
        let agent = Self { process: command.spawn().unwrap(), folder };
        let start = Instant::now();
        while !agent.socket().exists() {
            assert!(start.elapsed() < SOON, "the agent does not listen");
            std::thread::sleep(Duration::from_millis(2));
        }
        agent
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("agent")
    }

    pub(crate) async fn stream(&self) -> UnixStream {
        let start = Instant::now();
        loop {
            match UnixStream::connect(self.socket()).await {
                Ok(stream) => return stream,
                // The socket is there a moment before the agent listens on it.
                Err(error) => assert!(start.elapsed() < SOON, "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// A connection that has greeted.
    pub(crate) async fn greet(&self) -> GuestAgent {
        let agent = GuestAgent::connect(self.stream().await).unwrap();
        agent.hello(SOON).await.unwrap();
        agent
    }

    /// Processor time that the agent itself has used.
    pub(crate) fn cpu_time(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.process.id())).unwrap();
        // After the name, which is in brackets: user and system time are the 12th and the 13th.
        let (_, fields) = stat.rsplit_once(") ").unwrap();
        let ticks = |index| fields.split(' ').nth(index).unwrap().parse::<u64>().unwrap();
        Duration::from_millis((ticks(11) + ticks(12)) * 1000 / 100)
    }

    /// Waits until the agent has used next to no processor time for a while. One that polls for
    /// something never has, however little of a busy host it gets.
    pub(crate) async fn idle(&self) {
        let start = Instant::now();
        loop {
            let before = self.cpu_time();
            tokio::time::sleep(IDLE_FOR).await;
            let used = self.cpu_time() - before;
            if used <= IDLE_MOST {
                return;
            }
            assert!(start.elapsed() < IDLE_SOON, "not idle: {used:?} in {IDLE_FOR:?}");
        }
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for LocalAgent {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}
