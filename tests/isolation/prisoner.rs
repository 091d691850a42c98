//! Sandboxes whose VMMs have the library that tries what a hostile VMM would try.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use forkd_engine::IsolationPolicy;
use forkd_testkit::{Guest, Lab, SOON};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

const ANSWER_BYTES_MAX: usize = 64 << 10;

/// A lab whose VMMs have that library and are confined as `isolation` says, by the launcher or by
/// one that leaves out a step.
pub(crate) async fn lab(isolation: IsolationPolicy, launcher: Option<&Path>) -> Lab {
    let shim = std::env::var_os("FORKD_PROBE_SHIM").expect("run the tests with `make test`");
    Lab::with_config(&Lab::hot_directory(), |config| {
        config.shim = shim.into();
        config.isolation = isolation;
        if let Some(launcher) = launcher {
            launcher.clone_into(&mut config.launcher);
        }
    })
    .await
}

/// What came of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Attempt {
    /// It worked; what was found.
    Worked(String),
    /// It did not; why.
    Refused(String),
    /// The VMM, or its thread, was ended for it.
    Ended,
}

/// Lets the VMM of a sandbox try something.
pub(crate) fn attempt(lab: &Lab, guest: &Guest<'_>, name: &str, argument: &str) -> Attempt {
    attempt_in(&lab.config().run_dir.join(guest.id.as_str()), name, argument)
}

/// Lets the VMM with that run directory try something.
pub(crate) fn attempt_in(directory: &Path, name: &str, argument: &str) -> Attempt {
    let path = directory.join("shim.sock");
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::connect(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    let timeout = rustix::net::sockopt::Timeout::Recv;
    rustix::net::sockopt::set_socket_timeout(&socket, timeout, Some(SOON)).unwrap();
    let question = format!("probe {name} {argument}");
    rustix::net::send(&socket, question.as_bytes(), SendFlags::NOSIGNAL).unwrap();
    let mut answer = vec![0; ANSWER_BYTES_MAX];
    let (bytes, _) = match rustix::net::recv(&socket, &mut answer, RecvFlags::empty()) {
        Ok(received) => received,
        // It was ended before it had read all that it was sent.
        Err(Errno::CONNRESET) => return Attempt::Ended,
        Err(error) => panic!("{name} {argument}: {error}"),
    };
    let answer = String::from_utf8_lossy(&answer[..bytes]).into_owned();
    match answer.split_once(' ') {
        Some(("ok", found)) => Attempt::Worked(found.to_owned()),
        Some(("refused", why)) => Attempt::Refused(why.to_owned()),
        _ if answer.is_empty() || answer == "ended" => Attempt::Ended,
        _ => panic!("{name}: {answer:?}"),
    }
}

/// The cgroup of a process with this controller.
pub(crate) fn cgroup(pid: u32, controller: &str) -> PathBuf {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let has = |line: &&str| {
        let controllers = line.split(':').nth(1).unwrap_or_default();
        controllers.split(',').any(|name| name == controller)
    };
    let line =
        groups.lines().find(has).or_else(|| groups.lines().find(|line| line.starts_with("0::")));
    let path = line.and_then(|line| line.splitn(3, ':').nth(2)).unwrap().trim_start_matches('/');
    let mounts = [format!("/sys/fs/cgroup/{controller}"), "/sys/fs/cgroup".to_owned()];
    mounts.iter().map(|mount| Path::new(mount).join(path)).find(|path| path.is_dir()).unwrap()
}

/// The process of a sandbox's VMM.
pub(crate) fn pid(lab: &Lab, guest: &Guest<'_>) -> u32 {
    lab.engine.sandbox(&guest.id).unwrap().pid.unwrap()
}

/// The overlay that a sandbox writes to, by its inode and on the host.
pub(crate) fn top_overlay(lab: &Lab, guest: &Guest<'_>) -> (PathBuf, u64) {
    let writable = |descriptor: &std::fs::DirEntry| {
        let info = descriptor.path().to_string_lossy().replace("/fd/", "/fdinfo/");
        let info = std::fs::read_to_string(info).unwrap_or_default();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap_or_default();
        u32::from_str_radix(flags.trim(), 8).is_ok_and(|flags| flags & 3 == 2)
    };
    let descriptors = std::fs::read_dir(format!("/proc/{}/fd", pid(lab, guest))).unwrap().flatten();
    let overlays = descriptors.filter(writable).filter_map(|descriptor| {
        let name = std::fs::read_link(descriptor.path()).ok()?.file_name()?.to_owned();
        let path = lab.config().state_dir.join("overlays").join(name);
        path.is_file().then_some(path)
    });
    let overlays: Vec<PathBuf> = overlays.collect();
    let [overlay] = &overlays[..] else { panic!("it writes to {overlays:?}") };
    (overlay.clone(), std::fs::metadata(overlay).unwrap().ino())
}
