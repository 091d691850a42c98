//! Finding the daemon, and starting one of the user's own when none runs.
//!
//! ```text
//! --url / --socket given  -> that one or nothing
//! else                    -> <run>/forkd.sock: alive? use it
//!                            else lock, look again, start `forkd serve`, wait for /healthz
//! ```

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use forkd_client::{Access, Client, Target};
use rustix::fs::{FlockOperation, flock};

use super::settings;
use crate::console::report::{self, Hinted};
use crate::options::Global;

/// For a daemon to answer after its start. Trying out KVM takes seconds of it.
const START_DEADLINE: Duration = Duration::from_secs(60);
/// Between two looks at a daemon that starts.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Lines of the daemon's log that are shown when it does not start.
const LOG_LINES_SHOWN: usize = 15;

/// A client of the daemon, which is started if it is ours to start.
pub(crate) async fn client(global: &Global) -> anyhow::Result<Client> {
    if let Some(client) = named_client(global)? {
        return Ok(client);
    }
    let run_dir = settings::default_run_dir()?;
    let client = Client::new(Target::Socket(run_dir.join("forkd.sock")))?;
    let of_service = settings::is_of_a_service(&run_dir);
    if !of_service {
        settings::secure_run_dir(&run_dir)?;
    }
    if is_alive(&client).await {
        return Ok(client);
    }
    if of_service {
        let text = format!("the service that `{}` belongs to is not running", run_dir.display());
        return Err(Hinted::unreachable(text, "run `systemctl start forkd`").into());
    }
    start(&client, &run_dir).await?;
    Ok(client)
}

/// A client of the daemon if one runs; none is started.
pub(crate) async fn running_client(global: &Global) -> anyhow::Result<Option<Client>> {
    let client = match named_client(global)? {
        Some(client) => client,
        None => Client::new(Target::Socket(settings::default_run_dir()?.join("forkd.sock")))?,
    };
    Ok(is_alive(&client).await.then_some(client))
}

/// A client of the daemon that the user named, if they did.
fn named_client(global: &Global) -> anyhow::Result<Option<Client>> {
    let Some(target) = named_target(global) else { return Ok(None) };
    let token = std::env::var("FORKD_TOKEN").ok().filter(|token| !token.is_empty());
    Ok(Some(Client::with_access(target, &Access { token, roots: global.ca_cert.clone() })?))
}

fn named_target(global: &Global) -> Option<Target> {
    let socket = || global.socket.clone().map(Target::Socket);
    global.url.as_deref().map(Target::at).or_else(socket)
}

async fn is_alive(client: &Client) -> bool {
    if let Target::Socket(path) = client.target()
        && !fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket())
    {
        return false;
    }
    let answer = tokio::time::timeout(Duration::from_secs(5), client.health()).await;
    matches!(answer, Ok(Ok(_)))
}

/// Starts a daemon, or waits for one that somebody else starts at this moment.
async fn start(client: &Client, run_dir: &Path) -> anyhow::Result<()> {
    let deadline = Instant::now() + START_DEADLINE;
    let _lock = start_lock(run_dir, deadline).await?;
    if is_alive(client).await {
        return Ok(());
    }
    let log = run_dir.join("daemon.log");
    let mut daemon = spawn(&log, &[])?;
    until_it_answers(client, &mut daemon, &log, deadline).await
}

/// Starts a daemon with these options of `serve` and waits until it answers. `log` gets its log.
/// Where it shall listen must not be open to others; what becomes of it is up to the caller, who
/// gets it as soon as there is a process.
pub(crate) async fn start_own(
    client: &Client,
    log: &Path,
    options: &[OsString],
    daemon: &mut Option<Child>,
) -> anyhow::Result<()> {
    let daemon = daemon.insert(spawn(log, options)?);
    until_it_answers(client, daemon, log, Instant::now() + START_DEADLINE).await
}

async fn until_it_answers(
    client: &Client,
    daemon: &mut Child,
    log: &Path,
    deadline: Instant,
) -> anyhow::Result<()> {
    while !is_alive(client).await {
        if let Some(status) = daemon.try_wait().context("watch the daemon")? {
            return Err(not_started(&format!("it ended with {status}"), log));
        }
        if Instant::now() > deadline {
            return Err(not_started(&format!("no answer within {START_DEADLINE:?}"), log));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    Ok(())
}

/// A new or empty file that others cannot read. A link in its place is an error.
fn create_private(path: &Path) -> std::io::Result<File> {
    let mut options = File::options();
    options.write(true).create(true).truncate(true).mode(0o600);
    options.custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed()).open(path)
}

async fn start_lock(run_dir: &Path, deadline: Instant) -> anyhow::Result<File> {
    let path = run_dir.join("start.lock");
    let file = create_private(&path).with_context(|| format!("create `{}`", path.display()))?;
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < deadline => {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let text = "another command has been starting the daemon for too long";
                return Err(Hinted::unreachable(text, "try again; see `forkd doctor`").into());
            }
            Err(errno) => {
                return Err(errno).with_context(|| format!("lock `{}`", path.display()));
            }
        }
    }
}

/// Starts `forkd serve` with our own environment; it detaches itself from this session.
fn spawn(log: &Path, options: &[OsString]) -> anyhow::Result<Child> {
    if log.exists() {
        fs::rename(log, log.with_extension("log.old")).context("keep the previous log")?;
    }
    let output = create_private(log).with_context(|| format!("create `{}`", log.display()))?;
    let program = std::env::current_exe().context("find the running executable")?;
    Command::new(program)
        .args(["serve", "--detached"])
        .args(options)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .spawn()
        .context("start the daemon")
}

fn not_started(problem: &str, log: &Path) -> anyhow::Error {
    let text = fs::read(log).unwrap_or_default();
    let text = report::printable(&String::from_utf8_lossy(&text));
    let lines: Vec<&str> = text.lines().collect();
    let shown = &lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..];
    let mut message = format!("the daemon did not start: {problem}");
    if !shown.is_empty() {
        message.push_str("; its log ends with:");
    }
    for line in shown {
        message.push_str("\n  | ");
        message.push_str(line);
    }
    Hinted::unreachable(message, format!("see `forkd doctor` and {}", log.display())).into()
}

/// The socket that `global` names, or the default one; none when a URL is named.
pub(crate) fn socket_of(global: &Global) -> anyhow::Result<Option<PathBuf>> {
    Ok(match named_target(global) {
        Some(Target::Url(_)) => None,
        Some(Target::Socket(socket)) => Some(socket),
        None => Some(settings::default_run_dir()?.join("forkd.sock")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_second_start_waits_for_the_first() {
        let directory = tempfile::tempdir().unwrap();
        let now = Instant::now();
        let first = start_lock(directory.path(), now).await.unwrap();
        let soon = now + Duration::from_millis(50);
        assert!(start_lock(directory.path(), soon).await.is_err(), "the first one is not over");
        drop(first);
        // A child that another test starts holds a copy of the lock until it runs its program.
        let soon = Instant::now() + Duration::from_secs(5);
        assert!(start_lock(directory.path(), soon).await.is_ok());
    }

    #[test]
    fn a_daemon_that_does_not_start_shows_the_end_of_its_log() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("daemon.log");
        let lines: String = (0..40).map(|n| format!("line {n}\n")).collect();
        fs::write(&log, lines).unwrap();
        let text = not_started("it ended", &log).to_string();
        assert!(text.contains("| line 39") && text.contains("| line 25"), "{text}");
        assert!(!text.contains("| line 24"), "{text}");
    }
}
