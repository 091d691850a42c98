//! The initramfs: the guest agent as `/init` and the kernel modules that it loads. With busybox it
//! is a whole image that needs no disk.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use sha2::{Digest as _, Sha256};

use super::cpio::Archive;
use super::kernel::Kernel;
use super::modules::{self, Compression};
use super::product::{Content, Inputs, Product, tree, write_json};
use super::recipe::{Definition, KernelRecipe};
use crate::build::is_static_elf;
use crate::command::output;
use crate::progress::{Step, mebibytes};
use crate::workspace::Workspace;

/// Where the guest agent looks for modules; `order` there has one file name per line.
const MODULES: &str = "lib/modules/forkd";

/// Mount points that the guest agent uses.
const MOUNT_POINTS: [&str; 6] = ["dev", "newroot", "proc", "run", "sys", "tmp"];

/// Debian's busybox-static.
const BUSYBOX: &str = "/bin/busybox";

/// The built initramfs.
pub(super) struct Initramfs {
    /// Changes whenever the content does.
    pub(super) id: String,
    files: Files,
}

/// What an archive is made from.
struct Files {
    agent: PathBuf,
    /// Source path and name in the archive, in load order.
    modules: Vec<(PathBuf, String)>,
}

/// Builds the initramfs that images with a root disk share.
pub(super) fn build(
    workspace: &Workspace,
    recipe: &KernelRecipe,
    kernel: &Kernel,
    agent: &Path,
) -> anyhow::Result<Initramfs> {
    let program = fs::read(agent).with_context(|| format!("read {}", agent.display()))?;
    let mut inputs = Inputs::new();
    inputs.add("kernel", kernel.id.as_bytes());
    inputs.add("modules", recipe.modules.join(" ").as_bytes());
    inputs.add("agent", &program);
    inputs.add("command line", recipe.command_line.as_bytes());
    let product = Product::new(workspace.images(), "initramfs", "product.json", inputs.finish());
    let files = Files { agent: agent.to_owned(), modules: find_modules(&recipe.modules, kernel)? };
    let initramfs = Initramfs { id: product.inputs_hash().to_owned(), files };
    if product.is_current() {
        return Ok(initramfs);
    }
    let step = Step::start("initramfs");
    let folder = product.begin()?;
    let bytes = archive(&initramfs.files)?.finish();
    fs::write(folder.join("initramfs.cpio"), &bytes).context("write initramfs.cpio")?;
    // For images that users pull: they have a disk of their own, and boot as ours do.
    let boot = serde_json::json!({
        "kernel": "../kernel/vmlinuz",
        "kernel_version": kernel.version,
        "initramfs": "initramfs.cpio",
        "command_line": recipe.command_line,
        "sha256": {"kernel": sha256(&fs::read(workspace.images().join("kernel/vmlinuz"))?),
            "initramfs": sha256(&bytes)},
    });
    write_json(&folder.join("boot.json"), &boot)?;
    let description = serde_json::json!({"inputs_hash": product.inputs_hash()});
    write_json(&folder.join("product.json"), &description)?;
    product.publish()?;
    step.done(&mebibytes(bytes.len() as u64));
    Ok(initramfs)
}

fn sha256(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

/// Adds the wanted modules and what they need to `folder`, and the file `order` that lists them.
pub(super) fn add_modules(
    archive: &mut Archive,
    folder: &str,
    wanted: &[String],
    kernel: &Kernel,
) -> anyhow::Result<()> {
    add_module_files(archive, folder, &find_modules(wanted, kernel)?)
}

fn find_modules(wanted: &[String], kernel: &Kernel) -> anyhow::Result<Vec<(PathBuf, String)>> {
    let read = |name: &str| {
        let path = kernel.modules.join(name);
        fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
    };
    let order = modules::load_order(wanted, &read("modules.dep")?, &read("modules.builtin")?)?;
    let named = order
        .iter()
        .enumerate()
        .map(|(position, path)| (kernel.modules.join(path), modules::file_name(position, path)));
    Ok(named.collect())
}

fn archive(files: &Files) -> anyhow::Result<Archive> {
    let mut archive = Archive::default();
    for folder in MOUNT_POINTS {
        archive.directory(folder);
    }
    // The kernel opens it for PID 1 before anything is mounted.
    archive.character_device("dev/console", 0o600, (5, 1));
    let agent = fs::read(&files.agent).context("read the guest agent")?;
    archive.file("init", 0o755, &agent);
    add_module_files(&mut archive, MODULES, &files.modules)?;
    Ok(archive)
}

fn add_module_files(
    archive: &mut Archive,
    folder: &str,
    modules: &[(PathBuf, String)],
) -> anyhow::Result<()> {
    let mut order = String::new();
    for (source, name) in modules {
        archive.file(&format!("{folder}/{name}"), 0o644, &read_module(source)?);
        order.push_str(name);
        order.push('\n');
    }
    archive.file(&format!("{folder}/order"), 0o644, order.as_bytes());
    Ok(())
}

/// The module, unpacked: the guest has no program to do it.
fn read_module(path: &Path) -> anyhow::Result<Vec<u8>> {
    let text = path.to_str().context("module paths are UTF-8")?;
    let Compression::Program(program) = modules::compression(text)? else {
        return fs::read(path).with_context(|| format!("read {text}"));
    };
    let result = Command::new(program)
        .args(["-dc", text])
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("start {program}"))?;
    if !result.status.success() {
        bail!("{program} could not unpack {text}: {}", String::from_utf8_lossy(&result.stderr));
    }
    Ok(result.stdout)
}

/// The busybox program of the host, checked to be static.
pub(super) fn busybox() -> anyhow::Result<Vec<u8>> {
    let bytes = fs::read(BUSYBOX).with_context(|| format!("read {BUSYBOX}"))?;
    if !is_static_elf(&bytes) {
        bail!("{BUSYBOX} is not static; install busybox-static");
    }
    Ok(bytes)
}

/// Writes an image that consists of an initramfs only.
pub(super) fn image(
    initramfs: &Initramfs,
    definition: &Definition,
    files: &Path,
    folder: &Path,
) -> anyhow::Result<Content> {
    let mut archive = archive(&initramfs.files)?;
    archive.file("bin/busybox", 0o755, &busybox()?);
    let applets = output(Command::new(BUSYBOX).arg("--list-full"))?;
    for applet in applets.lines().filter(|applet| applet.contains('/')) {
        archive.symlink(applet, "/bin/busybox");
    }
    for directory in &definition.directories {
        archive.directory(directory.trim_start_matches('/'));
    }
    for entry in tree(files)? {
        match &entry.content {
            Some(content) => archive.file(&entry.path, entry.mode, content),
            None => archive.directory(&entry.path),
        }
    }
    let bytes = archive.finish();
    fs::write(folder.join("initramfs.cpio"), &bytes).context("write initramfs.cpio")?;
    Ok(Content {
        initramfs: "initramfs.cpio",
        root_disk: None,
        root_disk_bytes: None,
        stored_bytes: bytes.len() as u64,
        packages: Vec::new(),
    })
}
