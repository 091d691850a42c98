//! The machine that the KVM tests run in: a Debian with QEMU on a root disk, the distribution's
//! kernel with KVM's modules. Its CPU is emulated; see the test tiers for how it is run.
//!
//! It is not an image: no sandbox boots from it, so it is built beside the images.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;

use super::cpio::Archive;
use super::product::{Inputs, Product, write_json};
use super::recipe::{Base, Definition, KernelRecipe};
use super::{debian, initramfs, kernel, root_disk};
use crate::progress::{Step, mebibytes};
use crate::setup;
use crate::workspace::Workspace;

/// What is on its root disk.
const RECIPE: &str = include_str!("kvm_host.json");
/// Its first program: loads the modules and runs what the second disk says.
const INIT: &str = include_str!("kvm_host.init");
/// Drivers that it loads: an ordinary machine with PCI, and KVM for the emulated CPU.
const MODULES: [&str; 4] = ["virtio_pci", "virtio_blk", "virtio_console", "kvm_amd"];
/// Folders of the initramfs.
const FOLDERS: [&str; 7] = ["bin", "dev", "lib/modules", "newroot", "proc", "sbin", "sys"];

/// The files of the machine.
pub(crate) struct KvmHost {
    pub(crate) kernel: PathBuf,
    pub(crate) initramfs: PathBuf,
    pub(crate) root_disk: PathBuf,
}

/// Builds what is not current. The kernel is that of the images.
pub(crate) fn build(workspace: &Workspace) -> anyhow::Result<KvmHost> {
    let output = workspace.kvm_host();
    fs::create_dir_all(&output).with_context(|| format!("create {}", output.display()))?;
    let _lock = super::product::lock(workspace)?;
    super::product::remove_leftovers(&output)?;
    let codename = debian::codename()?;
    let kernel = kernel::build(workspace, &KernelRecipe::read(workspace)?, &codename, false)?;
    let initramfs = build_initramfs(workspace, &kernel)?;
    let root_disk = build_root_disk(workspace, &codename)?;
    Ok(KvmHost { kernel: workspace.images().join("kernel/vmlinuz"), initramfs, root_disk })
}

fn build_initramfs(workspace: &Workspace, kernel: &kernel::Kernel) -> anyhow::Result<PathBuf> {
    let busybox = initramfs::busybox()?;
    let mut inputs = Inputs::new();
    inputs.add("kernel", kernel.id.as_bytes());
    inputs.add("modules", MODULES.join(" ").as_bytes());
    inputs.add("init", INIT.as_bytes());
    inputs.add("busybox", &busybox);
    let (parent, hash) = (workspace.kvm_host(), inputs.finish());
    let product = Product::new(parent, "initramfs", "product.json", hash);
    let path = product.folder().join("initramfs.cpio");
    if product.is_current() {
        return Ok(path);
    }
    let mut archive = Archive::default();
    for folder in FOLDERS {
        archive.directory(folder);
    }
    archive.character_device("dev/console", 0o600, (5, 1));
    archive.file("init", 0o755, INIT.as_bytes());
    archive.file("bin/busybox", 0o755, &busybox);
    let wanted = MODULES.map(str::to_owned);
    initramfs::add_modules(&mut archive, "lib/modules", &wanted, kernel)?;
    let folder = product.begin()?;
    fs::write(folder.join("initramfs.cpio"), archive.finish()).context("write initramfs.cpio")?;
    publish(&product, &folder)?;
    Ok(path)
}

fn build_root_disk(workspace: &Workspace, codename: &str) -> anyhow::Result<PathBuf> {
    let definition: Definition = serde_json::from_str(RECIPE).context("kvm_host.json")?;
    let Base::Debian(base) = &definition.base else {
        anyhow::bail!("kvm_host.json has no Debian base");
    };
    let mut inputs = Inputs::new();
    inputs.add("recipe", RECIPE.as_bytes());
    inputs.add("release", codename.as_bytes());
    // The test programs are built against this machine's C library and tested with its QEMU.
    let here = setup::installed_versions(&["e2fsprogs", "libc6", "mmdebstrap", "qemu-system-x86"])?;
    inputs.add("packages here", here.as_bytes());
    let (parent, hash) = (workspace.kvm_host(), inputs.finish());
    let product = Product::new(parent, "root", "product.json", hash);
    let path = product.folder().join("root.ext4");
    if product.is_current() {
        return Ok(path);
    }
    let step = Step::start("the machine for the KVM tests");
    let folder = product.begin()?;
    let job = root_disk::Job {
        name: "kvm-host",
        base,
        directories: &definition.directories,
        files: Path::new("/nonexistent"),
        codename,
        folder: &folder,
    };
    let content = root_disk::build(workspace, &step, &job)?;
    publish(&product, &folder)?;
    step.done(&mebibytes(content.stored_bytes));
    Ok(path)
}

fn publish(product: &Product, folder: &Path) -> anyhow::Result<()> {
    let description = serde_json::json!({"inputs_hash": product.inputs_hash()});
    write_json(&folder.join("product.json"), &description)?;
    product.publish()
}
