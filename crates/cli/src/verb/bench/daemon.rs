//! A daemon of the measurement's own, in directories that go with it.

use std::ffi::OsString;
use std::path::Path;
use std::process::Child;

use anyhow::Context as _;
use forkd_client::{Client, Target};
use tempfile::TempDir;

use crate::console::report;
use crate::daemon::{connect, process, settings};

/// Where hot layers are by default: a tmpfs that every distribution mounts.
const SHARED_MEMORY: &str = "/dev/shm";

/// A daemon that ends with this value, and with it its VMs and all its files.
pub(super) struct OwnDaemon {
    client: Client,
    process: Option<Child>,
    directories: Vec<TempDir>,
}

impl OwnDaemon {
    /// Starts one. Its durable files are in a new directory below `store`, its hot layers in one
    /// below `hot`.
    pub(super) async fn start(store: Option<&Path>, hot: Option<&Path>) -> anyhow::Result<Self> {
        // The path of a socket is short.
        let home = TempDir::with_prefix("fb-").context("create a directory")?;
        let hot = directory_in(hot.unwrap_or(Path::new(SHARED_MEMORY)))?;
        let mut options = vec!["--remove-sandboxes".into()];
        options.extend(option("--home", home.path()));
        options.extend(option("--hot-dir", hot.path()));
        let run_dir = home.path().join("run");
        settings::secure_run_dir(&run_dir)?;
        let client = Client::new(Target::Socket(run_dir.join("forkd.sock")))?;
        let state = store.map(directory_in).transpose()?;
        // Each place is named: the environment may name those of another daemon.
        let state_dir = state.as_ref().map_or(home.path().join("state"), |s| s.path().to_owned());
        options.extend(option("--store", &state_dir));
        let directories = [Some(home), Some(hot), state].into_iter().flatten().collect();
        let mut daemon = Self { client, process: None, directories };
        let log = run_dir.join("daemon.log");
        let client = daemon.client.clone();
        connect::start_own(&client, &log, &options, &mut daemon.process).await?;
        Ok(daemon)
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Its process.
    pub(super) fn pid(&self) -> u32 {
        self.process.as_ref().map_or(0, Child::id)
    }

    /// Ends the daemon and removes everything.
    pub(super) fn end(mut self) -> anyhow::Result<()> {
        self.close()
    }

    fn close(&mut self) -> anyhow::Result<()> {
        if let Some(mut process) = self.process.take()
            && process.try_wait().context("watch the daemon")?.is_none()
        {
            // Its sandboxes go with it.
            process::terminate(rustix::process::Pid::from_child(&process))?;
            process.wait().context("wait for the daemon")?;
        }
        let closed: Vec<_> = self.directories.drain(..).map(TempDir::close).collect();
        closed.into_iter().collect::<Result<(), _>>().context("remove what was measured with")
    }
}

impl Drop for OwnDaemon {
    fn drop(&mut self) {
        if let Err(problem) = self.close() {
            report::note(&format!("could not remove everything: {problem:#}"));
        }
    }
}

fn directory_in(parent: &Path) -> anyhow::Result<TempDir> {
    let parent = std::path::absolute(parent)?;
    TempDir::with_prefix_in("forkd-bench-", &parent)
        .with_context(|| format!("create a directory in `{}`", parent.display()))
}

fn option(name: &str, path: &Path) -> Vec<OsString> {
    vec![name.into(), path.into()]
}
