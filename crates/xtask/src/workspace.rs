//! Where things are: the repository root and the folders derived from it.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

/// Naming the target keeps the agent's flags away from build scripts and macros.
pub(crate) const AGENT_TARGET: &str = "x86_64-unknown-linux-gnu";

/// The VMM's preload library, beside the program `forkd`.
pub(crate) const SHIM: &str = "libforkd_shim.so";
/// The program that confines VMMs.
pub(crate) const LAUNCHER: &str = "forkd-launcher";

/// The repository and its folders. All paths are absolute.
#[derive(Debug, Clone)]
pub(crate) struct Workspace {
    /// The folder that holds the workspace's `Cargo.toml`.
    pub(crate) root: PathBuf,
    /// Cargo's output folder.
    pub(crate) target: PathBuf,
}

impl Workspace {
    /// Finds the repository from the current folder upwards.
    pub(crate) fn find() -> anyhow::Result<Self> {
        let current = env::current_dir().context("read the current folder")?;
        for folder in current.ancestors() {
            let manifest = folder.join("Cargo.toml");
            if manifest.is_file()
                && std::fs::read_to_string(&manifest)
                    .with_context(|| format!("read {}", manifest.display()))?
                    .lines()
                    .any(|line| line == "[workspace]")
            {
                let target = match env::var_os("CARGO_TARGET_DIR") {
                    Some(path) => std::path::absolute(PathBuf::from(path))?,
                    None => folder.join("target"),
                };
                return Ok(Self { root: folder.to_owned(), target });
            }
        }
        bail!("not inside the forkd repository: {}", current.display())
    }

    /// Where guest kernel and images are built.
    pub(crate) fn images(&self) -> PathBuf {
        self.root.join("build/images")
    }

    /// Where the machine for the KVM tests is built.
    pub(crate) fn kvm_host(&self) -> PathBuf {
        self.root.join("build/kvm-host")
    }

    /// Where Debian 13 is, and what is built in it.
    pub(crate) fn debian13(&self) -> PathBuf {
        self.root.join("build/debian13")
    }

    /// Where the output of long commands is kept.
    pub(crate) fn log(&self, name: &str) -> PathBuf {
        self.root.join("build/logs").join(format!("{name}.log"))
    }

    /// Where the programs are that a user runs, after `build`.
    pub(crate) fn released(&self) -> PathBuf {
        self.target.join("release")
    }

    /// The preload library that also tries what a VMM that was taken over would try.
    pub(crate) fn probe_shim(&self) -> PathBuf {
        self.probe_target().join("debug").join(SHIM)
    }

    /// Where it is built: it has the name of the one that is shipped.
    pub(crate) fn probe_target(&self) -> PathBuf {
        self.target.join("probe")
    }

    /// Where the programs are that the tests run: they share their libraries with the tests, and
    /// check their own arithmetic and assertions.
    pub(crate) fn tested(&self) -> PathBuf {
        self.target.join("debug")
    }

    /// A static program for guests.
    pub(crate) fn for_guests(&self, package: &str) -> PathBuf {
        let folder = self.target.join("agent").join(AGENT_TARGET);
        folder.join("agent").join(package)
    }

    /// The path as seen from the root, for messages.
    pub(crate) fn relative<'a>(&self, path: &'a Path) -> &'a Path {
        path.strip_prefix(&self.root).unwrap_or(path)
    }

    /// The cargo that started us (or the one on the path), run in the root.
    pub(crate) fn cargo(&self) -> Command {
        let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.current_dir(&self.root);
        // `cargo run` describes *our* package in these; build scripts must not see them.
        for (name, _) in env::vars_os() {
            let name_text = name.to_string_lossy();
            if name_text.starts_with("CARGO_PKG_") || name_text.starts_with("CARGO_MANIFEST") {
                command.env_remove(&name);
            }
        }
        command
    }

    /// What tests that start VMs are told of where everything is; the programs are in a folder.
    pub(crate) fn places_for_vms(&self, programs: &Path) -> [(&'static str, PathBuf); 5] {
        [
            ("FORKD_IMAGE_DIR", self.images()),
            ("FORKD_BIN", programs.join("forkd")),
            ("FORKD_SHIM", programs.join(SHIM)),
            ("FORKD_PROBE_SHIM", self.probe_shim()),
            ("FORKD_WITNESS", self.for_guests("forkd-witness")),
        ]
    }
}
