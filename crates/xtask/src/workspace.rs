//! Where things are: the repository root and the folders derived from it.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

/// Naming the target keeps the agent's flags away from build scripts and macros.
pub(crate) const AGENT_TARGET: &str = "x86_64-unknown-linux-gnu";

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

    /// Where the output of long commands is kept.
    pub(crate) fn log(&self, name: &str) -> PathBuf {
        self.root.join("build/logs").join(format!("{name}.log"))
    }

    /// The released command line program.
    pub(crate) fn forkd(&self) -> PathBuf {
        self.target.join("release/forkd")
    }

    /// The preload library that also tries what a VMM that was taken over would try.
    pub(crate) fn probe_shim(&self) -> PathBuf {
        self.probe_target().join("debug/libforkd_shim.so")
    }

    /// Where it is built: it has the name of the one that is shipped.
    pub(crate) fn probe_target(&self) -> PathBuf {
        self.target.join("probe")
    }

    /// The program that confines VMMs.
    pub(crate) fn launcher(&self) -> PathBuf {
        self.forkd().with_file_name("forkd-launcher")
    }

    /// The VMM's preload library.
    pub(crate) fn shim(&self) -> PathBuf {
        self.forkd().with_file_name("libforkd_shim.so")
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

    /// Cargo for tests that start VMs, told where everything is.
    pub(crate) fn cargo_for_vms(&self) -> Command {
        let mut cargo = self.cargo();
        cargo
            .env("FORKD_IMAGE_DIR", self.images())
            .env("FORKD_BIN", self.forkd())
            .env("FORKD_SHIM", self.shim())
            .env("FORKD_PROBE_SHIM", self.probe_shim())
            .env("FORKD_WITNESS", self.for_guests("forkd-witness"));
        cargo
    }
}
