//! Where things are when nobody says so. Pure: what the environment says comes in as a value.

use forkd_daemon::IsolationPolicy;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

/// What decides the defaults.
#[derive(Debug, Clone, Default)]
pub(crate) struct Surroundings {
    /// Effective user.
    pub(crate) uid: u32,
    /// `HOME`.
    pub(crate) home: Option<PathBuf>,
    /// `XDG_STATE_HOME`.
    pub(crate) xdg_state_home: Option<PathBuf>,
    /// `XDG_RUNTIME_DIR`.
    pub(crate) xdg_runtime_dir: Option<PathBuf>,
    /// The running executable.
    pub(crate) exe: PathBuf,
    /// Where it is.
    pub(crate) exe_dir: PathBuf,
}

/// The directories of one daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Directories {
    /// Durable files.
    pub(crate) state: PathBuf,
    /// Memory layers in use, on tmpfs.
    pub(crate) hot: PathBuf,
    /// Sockets and logs.
    pub(crate) run: PathBuf,
}

impl Surroundings {
    /// Those of this process.
    pub(crate) fn of_process() -> std::io::Result<Self> {
        let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
        let exe = std::env::current_exe()?;
        Ok(Self {
            uid: rustix::process::geteuid().as_raw(),
            home: absolute("HOME"),
            xdg_state_home: absolute("XDG_STATE_HOME"),
            xdg_runtime_dir: absolute("XDG_RUNTIME_DIR"),
            exe_dir: exe.parent().unwrap_or(Path::new("/")).to_owned(),
            exe,
        })
    }

    /// The daemon's directories: below `forkd_home` if given, else root's or the user's.
    pub(crate) fn directories(&self, forkd_home: Option<&Path>) -> Directories {
        let hot = PathBuf::from(format!("/dev/shm/forkd-{}", self.uid));
        if let Some(home) = forkd_home {
            // Hot layers need tmpfs; the name keeps daemons with different homes apart.
            let hash = hex::encode(&Sha256::digest(home.as_os_str().as_encoded_bytes())[..4]);
            return Directories {
                state: home.join("state"),
                hot: PathBuf::from(format!("/dev/shm/forkd-{}-{hash}", self.uid)),
                run: home.join("run"),
            };
        }
        if self.uid == 0 {
            return Directories { state: "/var/lib/forkd".into(), hot, run: "/run/forkd".into() };
        }
        let run = match &self.xdg_runtime_dir {
            Some(directory) => directory.join("forkd"),
            None => PathBuf::from(format!("/tmp/forkd-{}", self.uid)),
        };
        let home_state = || self.home.as_ref().map(|home| home.join(".local/state"));
        let state = match self.xdg_state_home.clone().or_else(home_state) {
            Some(directory) => directory.join("forkd"),
            None => PathBuf::from(format!("/var/tmp/forkd-{}", self.uid)),
        };
        Directories { state, hot, run }
    }

    /// The first place of images that `exists`; the first of all when none does.
    pub(crate) fn image_dir(&self, exists: impl Fn(&Path) -> bool) -> PathBuf {
        let places =
            [self.exe_dir.join("../share/forkd/images"), self.exe_dir.join("../../build/images")];
        first_existing(places, exists)
    }

    /// The first place of the shim that `exists`; the first of all when none does.
    pub(crate) fn shim(&self, exists: impl Fn(&Path) -> bool) -> PathBuf {
        const NAME: &str = "libforkd_shim.so";
        let places = [self.exe_dir.join(NAME), self.exe_dir.join("../lib/forkd").join(NAME)];
        first_existing(places, exists)
    }

    /// The first place of the launcher that `exists`; the first of all when none does.
    pub(crate) fn launcher(&self, exists: impl Fn(&Path) -> bool) -> PathBuf {
        const NAME: &str = "forkd-launcher";
        let places = [self.exe_dir.join(NAME), self.exe_dir.join("../lib/forkd").join(NAME)];
        first_existing(places, exists)
    }

    /// How far VMMs must be kept from the host if nobody says it.
    pub(crate) fn isolation(&self) -> IsolationPolicy {
        if self.uid == 0 { IsolationPolicy::Required } else { IsolationPolicy::Best }
    }

    /// The first place of the meter that `exists`; the first of all when none does. In a build tree
    /// the program of that name beside ours is not the static one.
    pub(crate) fn meter(&self, exists: impl Fn(&Path) -> bool) -> PathBuf {
        const NAME: &str = "forkd-meter";
        let built = "../agent/x86_64-unknown-linux-gnu/agent";
        let places = ["../lib/forkd", built].map(|place| self.exe_dir.join(place).join(NAME));
        first_existing(places, exists)
    }
}

fn first_existing(places: [PathBuf; 2], exists: impl Fn(&Path) -> bool) -> PathBuf {
    let [first, second] = places;
    if !exists(&first) && exists(&second) { second } else { first }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user() -> Surroundings {
        Surroundings {
            uid: 1000,
            home: Some("/home/u".into()),
            exe_dir: "/opt/forkd/bin".into(),
            ..Surroundings::default()
        }
    }

    #[test]
    fn root_and_users_have_their_own_places() {
        let root = Surroundings { uid: 0, ..user() }.directories(None);
        assert_eq!(root.state, Path::new("/var/lib/forkd"));
        assert_eq!((root.run, root.hot), ("/run/forkd".into(), "/dev/shm/forkd-0".into()));
        let plain = user().directories(None);
        assert_eq!(plain.state, Path::new("/home/u/.local/state/forkd"));
        assert_eq!(plain.run, Path::new("/tmp/forkd-1000"));
        let xdg = Surroundings {
            xdg_state_home: Some("/s".into()),
            xdg_runtime_dir: Some("/run/user/1000".into()),
            ..user()
        };
        let xdg = xdg.directories(None);
        assert_eq!((xdg.state, xdg.run), ("/s/forkd".into(), "/run/user/1000/forkd".into()));
    }

    #[test]
    fn homes_share_nothing_and_keep_hot_layers_on_tmpfs() {
        let (a, b) =
            (user().directories(Some(Path::new("/a"))), user().directories(Some(Path::new("/b"))));
        assert_eq!((a.state, a.run), ("/a/state".into(), "/a/run".into()));
        assert_ne!(a.hot, b.hot);
        assert!(a.hot.starts_with("/dev/shm") && b.hot.starts_with("/dev/shm"));
    }

    #[test]
    fn an_installed_tree_wins_over_a_build_tree_and_the_first_place_is_named_when_none_exists() {
        let installed = "/opt/forkd/bin/../share/forkd/images";
        let built = "/opt/forkd/bin/../../build/images";
        assert_eq!(user().image_dir(|_| true), Path::new(installed));
        assert_eq!(user().image_dir(|path| path == Path::new(built)), Path::new(built));
        assert_eq!(user().image_dir(|_| false), Path::new(installed));
        assert!(user().shim(|_| false).ends_with("bin/libforkd_shim.so"));
        assert!(user().launcher(|_| false).ends_with("bin/forkd-launcher"));
        assert!(user().meter(|_| false).ends_with("lib/forkd/forkd-meter"));
    }
}
