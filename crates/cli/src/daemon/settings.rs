//! From options and surroundings to where the daemon is and how it is to be started.

use std::fs;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use forkd_daemon::{
    Accelerator, AcceleratorChoice, Limits, OwnerLimits, SandboxLimits, ServeConfig, SocketMode,
};
use forkd_types::ByteCount;

use super::paths::Surroundings;
use crate::console::report::Hinted;
use crate::options::{Global, Maxima, Places};

/// Where a daemon of this configuration works and listens.
pub(crate) fn serve_config(global: &Global, places: &Places) -> anyhow::Result<ServeConfig> {
    let surroundings = Surroundings::of_process().context("find the running executable")?;
    let home = places.home.as_deref().map(std::path::absolute).transpose()?;
    let directories = surroundings.directories(home.as_deref());
    let run_dir = directories.run;
    let socket = match &global.socket {
        Some(path) => std::path::absolute(path)?,
        None => run_dir.join("forkd.sock"),
    };
    let or = |given: &Option<PathBuf>, default: PathBuf| match given {
        Some(path) => std::path::absolute(path),
        None => Ok(default),
    };
    let image_dir = surroundings.image_dir(|path| path.is_dir());
    let shim = surroundings.shim(|path| path.is_file());
    let launcher = surroundings.launcher(|path| path.is_file());
    Ok(ServeConfig {
        state_dir: or(&places.state_dir, directories.state)?,
        hot_dir: or(&places.hot_dir, directories.hot)?,
        hot_budget: places.hot_budget_mib.map(ByteCount::from_mib),
        run_dir,
        socket,
        socket_mode: SocketMode::default(),
        image_dir: or(&places.image_dir, image_dir)?,
        shim: or(&places.shim, shim)?,
        launcher: or(&places.launcher, launcher)?,
        gateway: surroundings.exe.clone(),
        network: places.network,
        upstream_ca: places.upstream_ca.as_deref().map(std::path::absolute).transpose()?,
        isolation: places.isolation.unwrap_or_else(|| surroundings.isolation()),
        accelerator: accelerator(places)?,
        qemu: places.qemu.clone(),
        limits: Limits::default(),
        listen: places.listen,
        token_file: None,
        insecure_no_token: false,
        tls: None,
        previews: None,
        e2b: None,
        audit_log: None,
        stop_sandboxes: false,
    })
}

fn accelerator(places: &Places) -> anyhow::Result<AcceleratorChoice> {
    match places.accel {
        chosen if !places.require_kvm => Ok(chosen),
        AcceleratorChoice::Forced(Accelerator::Tcg) => Err(Hinted::new(
            "emulation is both asked for and refused",
            "leave out --accel tcg and FORKD_ACCEL, or --require-kvm and FORKD_REQUIRE_KVM",
        )
        .into()),
        _ => Ok(AcceleratorChoice::KvmOnly),
    }
}

/// How much the daemon may hold at once.
pub(crate) fn limits(maxima: &Maxima) -> Limits {
    Limits {
        sandboxes: maxima.max_sandboxes,
        guest_memory: maxima.max_guest_memory_mib.map(ByteCount::from_mib),
        branches: maxima.max_branches,
        standby: maxima.standby,
        each_owner: OwnerLimits {
            sandboxes: maxima.owner_max_sandboxes,
            guest_memory: maxima.owner_max_guest_memory_mib.map(ByteCount::from_mib),
            disk: maxima.owner_max_disk_mib.map(ByteCount::from_mib),
        },
        each_sandbox: SandboxLimits {
            memory: maxima.sandbox_max_memory_mib.map(ByteCount::from_mib),
            millicpus: maxima.sandbox_max_cpus,
            disk: maxima.sandbox_max_disk_mib.map(ByteCount::from_mib),
        },
    }
}

/// The run directory of a daemon that is to be found or started by default.
pub(crate) fn default_run_dir() -> anyhow::Result<PathBuf> {
    let surroundings = Surroundings::of_process().context("find the running executable")?;
    let home = std::env::var_os("FORKD_HOME").filter(|value| !value.is_empty());
    let home = home.map(std::path::absolute).transpose()?;
    Ok(surroundings.directories(home.as_deref()).run)
}

/// Whether root looks at the run directory of a daemon that another user runs, as the systemd unit
/// has it. Nobody but root has put it there: what it lies in is root's alone.
pub(crate) fn is_of_a_service(directory: &Path) -> bool {
    let mine = |metadata: &fs::Metadata| metadata.uid() == 0 && metadata.mode() & 0o022 == 0;
    let above = directory.parent().and_then(|above| fs::symlink_metadata(above).ok());
    rustix::process::geteuid().is_root()
        && above.is_some_and(|above| above.is_dir() && mine(&above))
        && fs::symlink_metadata(directory)
            .is_ok_and(|found| found.is_dir() && found.uid() != 0 && found.mode() & 0o022 == 0)
}

/// Creates the run directory for its owner only, or refuses one that is somebody else's: whoever
/// owns it could put a socket of their own there.
pub(crate) fn secure_run_dir(directory: &Path) -> anyhow::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .with_context(|| format!("create `{}`", directory.display()))?;
    let metadata = fs::symlink_metadata(directory)?;
    let uid = rustix::process::geteuid().as_raw();
    let problem = if !metadata.is_dir() {
        "is not a directory"
    } else if metadata.uid() != uid {
        "belongs to another user"
    } else if metadata.mode() & 0o022 != 0 {
        "can be written by others"
    } else {
        return Ok(());
    };
    Err(Hinted::new(
        format!("the run directory `{}` {problem}", directory.display()),
        "set FORKD_HOME to a directory of your own",
    )
    .into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_run_directory_that_others_can_write_or_that_is_a_link_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let own = root.path().join("own");
        secure_run_dir(&own).unwrap();
        assert_eq!(fs::metadata(&own).unwrap().mode() & 0o777, 0o700);
        secure_run_dir(&own).unwrap();
        let link = root.path().join("link");
        std::os::unix::fs::symlink(&own, &link).unwrap();
        assert!(secure_run_dir(&link).is_err());
        fs::set_permissions(&own, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(secure_run_dir(&own).is_err());
    }
}
