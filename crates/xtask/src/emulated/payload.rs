//! The disk with what runs in the emulated machine.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use sha2::{Digest as _, Sha256};

use crate::command::output;
use crate::workspace::{LAUNCHER, SHIM, Workspace};

/// Tells the product's programs where everything is there, and that nothing may be emulated.
pub(crate) const PRODUCT_ENVIRONMENT: &str = "\
    export HOME=/tmp RUST_BACKTRACE=0 FORKD_IMAGE_DIR=/payload/images\n\
    export FORKD_SHIM=/payload/shim.so FORKD_ACCEL=kvm\n\
    export FORKD_QEMU=/usr/bin/qemu-system-x86_64-microvm\n";

/// Runs in the machine.
const RUN: &str = include_str!("run.sh");
/// Size of the root disk of an image there: its content and room for what the guests write.
const ROOT_DISK: &str = "384M";
/// Of the disk; it is sparse.
const DISK_BYTES: u64 = 4 << 30;

/// The disk's content, until it is made.
pub(crate) struct Payload {
    work: PathBuf,
    tree: PathBuf,
}

impl Payload {
    /// Nothing yet, in an existing folder.
    pub(crate) fn begin(work: &Path) -> anyhow::Result<Self> {
        let tree = work.join("payload");
        fs::create_dir(&tree).with_context(|| format!("create {}", tree.display()))?;
        Ok(Self { work: work.to_owned(), tree })
    }

    /// Adds some of the folders of the images. The root disk of `python` gets smaller: the product
    /// reads all of it for its checksum, and the emulated CPU has no instructions for that.
    pub(crate) fn add_images(
        &mut self,
        workspace: &Workspace,
        names: &[&str],
    ) -> anyhow::Result<()> {
        let to = self.tree.join("images");
        fs::create_dir(&to).with_context(|| format!("create {}", to.display()))?;
        let from = workspace.images();
        let mut cp = Command::new("cp");
        cp.args(["-r", "--sparse=always"]).args(names.iter().map(|name| from.join(name))).arg(&to);
        output(&mut cp).context("copy the images")?;
        let disk = to.join("python/root.ext4");
        output(administrators("resize2fs").arg(&disk).arg(ROOT_DISK)).context("shrink the disk")?;
        let mut hash = Sha256::new();
        let read = File::open(&disk).and_then(|mut file| io::copy(&mut file, &mut hash));
        let bytes = read.with_context(|| format!("read {}", disk.display()))?;
        let about = to.join("python/image.json");
        let text = fs::read(&about).with_context(|| format!("read {}", about.display()))?;
        let mut image: serde_json::Value = serde_json::from_slice(&text)?;
        image["sha256"]["root_disk"] = hex::encode(hash.finalize()).into();
        image["root_disk_bytes"] = bytes.into();
        fs::write(&about, image.to_string()).with_context(|| format!("write {}", about.display()))
    }

    /// Adds a program without what only a debugger needs.
    pub(crate) fn add_program(&mut self, from: &Path, name: &str) -> anyhow::Result<()> {
        let mut strip = Command::new("strip");
        strip.arg("--strip-debug").arg("-o").arg(self.tree.join(name)).arg(from);
        output(&mut strip).with_context(|| format!("copy {}", from.display())).map(drop)
    }

    /// Adds what a user installs, from the folder where it was built.
    pub(crate) fn add_product(&mut self, programs: &Path) -> anyhow::Result<()> {
        self.add_program(&programs.join("forkd"), "forkd")?;
        fs::copy(programs.join(SHIM), self.tree.join("shim.so")).context("copy the shim")?;
        let launcher = programs.join(LAUNCHER);
        fs::copy(launcher, self.tree.join(LAUNCHER)).context("copy the launcher")?;
        Ok(())
    }

    /// Adds a script.
    pub(crate) fn add_script(&mut self, name: &str, content: &str) -> anyhow::Result<()> {
        let path = self.tree.join(name);
        let written = fs::write(&path, content);
        let made = written.and_then(|()| fs::set_permissions(&path, Permissions::from_mode(0o755)));
        made.with_context(|| format!("write {name}"))
    }

    /// Makes the disk. A shell reads the environment, and runs each line of the jobs.
    pub(crate) fn finish(mut self, environment: &str, jobs: &str) -> anyhow::Result<PathBuf> {
        for (name, content) in [("environment", environment), ("jobs", jobs), ("run", RUN)] {
            self.add_script(name, content)?;
        }
        let disk = self.work.join("payload.ext4");
        File::create(&disk)?.set_len(DISK_BYTES).context("create the disk")?;
        let mut mke2fs = administrators("mke2fs");
        mke2fs.args(["-q", "-F", "-t", "ext4", "-m", "0", "-O", "^has_journal", "-d"]);
        output(mke2fs.arg(&self.tree).arg(&disk)).context("make the disk")?;
        Ok(disk)
    }
}

/// A program for administrators, which need not be in PATH.
fn administrators(program: &str) -> Command {
    let mut command = Command::new(program);
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
    command
}
