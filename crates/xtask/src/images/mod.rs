//! `images`: the guest kernel, the initramfs and the images that sandboxes boot from.
//!
//! ```text
//! images/kernel.json            -> build/images/kernel/{vmlinuz, lib/modules/..., kernel.json}
//! guest agent + kernel modules  -> build/images/initramfs/{initramfs.cpio, product.json}
//! images/<name>/recipe.json     -> build/images/<name>/{image.json, product.json, root.ext4 | ...}
//! ```
//!
//! Guarantees: each product is built under a temporary name and renamed when it is complete, so an
//! interrupted build is never taken for a finished one; a product whose inputs are unchanged is
//! not built again; two builds at once wait for each other.
//!
//! New Debian packages are not an input: a built image stays as it is until `--refresh`.

mod cpio;
mod debian;
mod debian13;
mod initramfs;
mod kernel;
mod kvm_host;
mod modules;
mod product;
mod recipe;
mod root_disk;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use sha2::{Digest as _, Sha256};

pub(crate) use self::debian13::build as debian13;
pub(crate) use self::kvm_host::{KvmHost, build as kvm_host};
pub(crate) use self::root_disk::{PackOptions, pack as pack_root_disk};

use self::product::{Inputs, Product, write_json};
use self::recipe::{Base, KernelRecipe, Recipe};
use crate::workspace::Workspace;
use crate::{build, setup};

/// Options of `images`.
#[derive(clap::Args, Default)]
pub(crate) struct Options {
    /// Build these images only; when none is named, all but those that are built on demand.
    names: Vec<String>,
    /// Build again from the newest packages.
    #[arg(long)]
    refresh: bool,
    /// Use this static program as the guest agent rather than building ours.
    #[arg(long, value_name = "PATH")]
    agent: Option<PathBuf>,
}

/// What the images have in common.
struct Common {
    kernel: kernel::Kernel,
    initramfs: initramfs::Initramfs,
    codename: String,
    refresh: bool,
}

/// Builds what is not current.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<()> {
    let _lock = product::lock(workspace)?;
    product::remove_leftovers(&workspace.images())?;

    let names = selected(workspace, &options.names)?;
    let kernel_recipe = KernelRecipe::read(workspace)?;
    let agent = match &options.agent {
        Some(path) => path.clone(),
        None => build::agent(workspace)?,
    };
    let codename = debian::codename()?;
    let kernel = kernel::build(workspace, &kernel_recipe, &codename, options.refresh)?;
    let initramfs = initramfs::build(workspace, &kernel_recipe, &kernel, &agent)?;
    let common = Common { kernel, initramfs, codename, refresh: options.refresh };
    for name in names {
        let recipe = Recipe::read(workspace, &name)?;
        if recipe.definition.on_demand && options.names.is_empty() {
            continue;
        }
        image(workspace, &recipe, &common).with_context(|| format!("build image {name}"))?;
    }
    Ok(())
}

/// Waits for another build; none begins until the file is closed.
fn selected(workspace: &Workspace, names: &[String]) -> anyhow::Result<Vec<String>> {
    let all = recipe::names(workspace)?;
    if names.is_empty() {
        return Ok(all);
    }
    match names.iter().find(|name| !all.contains(name)) {
        Some(unknown) => bail!("no image {unknown}; there are: {}", all.join(", ")),
        None => Ok(names.to_vec()),
    }
}

fn image(workspace: &Workspace, recipe: &Recipe, common: &Common) -> anyhow::Result<()> {
    let files = workspace.root.join("images").join(&recipe.name).join("files");
    let definition = &recipe.definition;
    let mut inputs = Inputs::new();
    inputs.add("recipe", &recipe.source);
    inputs.add_tree("files", &files)?;
    match &definition.base {
        Base::Initramfs => {
            inputs.add("initramfs", common.initramfs.id.as_bytes());
            inputs.add("busybox", &initramfs::busybox()?);
        }
        // A disk holds neither kernel nor guest agent: it stays when they change.
        Base::Debian(_) => {
            inputs.add("release", common.codename.as_bytes());
            let tools = setup::installed_versions(&["mmdebstrap", "e2fsprogs"])?;
            inputs.add("tools", tools.as_bytes());
        }
    }
    let product = Product::new(workspace.images(), &recipe.name, "product.json", inputs.finish());
    let has_packages = matches!(definition.base, Base::Debian(_));
    if product.is_current() && !(common.refresh && has_packages) {
        return describe(recipe, common, &product, &product.folder());
    }
    let step = crate::progress::Step::start(&format!("image {}", recipe.name));
    let folder = product.begin()?;
    let content = match &definition.base {
        Base::Initramfs => initramfs::image(&common.initramfs, definition, &files, &folder)?,
        Base::Debian(base) => {
            let job = root_disk::Job {
                name: &recipe.name,
                base,
                directories: &definition.directories,
                files: &files,
                codename: &common.codename,
                folder: &folder,
            };
            root_disk::build(workspace, &step, &job)?
        }
    };
    let built = serde_json::json!({
        "inputs_hash": product.inputs_hash(),
        "initramfs": content.initramfs,
        "root_disk": content.root_disk,
        "root_disk_bytes": content.root_disk_bytes,
        "packages": content.packages,
    });
    write_json(&folder.join("product.json"), &built)?;
    describe(recipe, common, &product, &folder)?;
    product.publish()?;
    step.done(&crate::progress::mebibytes(content.stored_bytes));
    Ok(())
}

/// Writes `image.json`, which the daemon reads, unless it is there already.
fn describe(
    recipe: &Recipe,
    common: &Common,
    product: &Product,
    folder: &Path,
) -> anyhow::Result<()> {
    let path = folder.join("product.json");
    let built = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
    let built: serde_json::Value =
        serde_json::from_slice(&built).with_context(|| format!("understand {}", path.display()))?;
    let mut identity = Inputs::new();
    identity.add("content", built.to_string().as_bytes());
    identity.add("kernel", common.kernel.id.as_bytes());
    identity.add("initramfs", common.initramfs.id.as_bytes());
    identity.add("command line", common.kernel.command_line.as_bytes());
    let content_hash = identity.finish();
    let kernel = "../kernel/vmlinuz";
    let sha256 = checksums(folder, &content_hash, kernel, &built)?;
    let description = serde_json::json!({
        "name": recipe.name,
        "description": recipe.definition.description,
        "kernel": kernel,
        "kernel_version": common.kernel.version,
        "initramfs": built["initramfs"],
        "root_disk": built["root_disk"],
        "root_disk_bytes": built["root_disk_bytes"],
        "command_line": common.kernel.command_line,
        "content_hash": content_hash,
        "inputs_hash": product.inputs_hash(),
        "sha256": sha256,
    });
    write_json(&folder.join("image.json"), &description)
}

/// SHA-256 of each file of an image. Those of a finished image stay as they were written: what has
/// happened to its files since must show.
fn checksums(
    folder: &Path,
    content_hash: &str,
    kernel: &str,
    built: &serde_json::Value,
) -> anyhow::Result<serde_json::Value> {
    let former: serde_json::Value = fs::read(folder.join("image.json"))
        .ok()
        .and_then(|text| serde_json::from_slice(&text).ok())
        .unwrap_or_default();
    if former["content_hash"] == *content_hash && former["sha256"].is_object() {
        return Ok(former["sha256"].clone());
    }
    let mut sums = serde_json::Map::new();
    for (name, file) in [
        ("kernel", Some(kernel)),
        ("initramfs", built["initramfs"].as_str()),
        ("root_disk", built["root_disk"].as_str()),
    ] {
        let Some(file) = file else { continue };
        // The folder has another name while it is built, and the same parent.
        let path = folder.join(file);
        let mut hash = Sha256::new();
        File::open(&path)
            .and_then(|mut file| io::copy(&mut file, &mut hash))
            .with_context(|| format!("read {}", path.display()))?;
        sums.insert(name.to_owned(), hex::encode(hash.finalize()).into());
    }
    Ok(sums.into())
}
