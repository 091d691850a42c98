//! The guest kernel: Debian's cloud kernel package, downloaded and unpacked, never installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use super::debian;
use super::product::{Inputs, Product, write_json};
use super::recipe::KernelRecipe;
use crate::command::run_logged;
use crate::progress::Step;
use crate::setup;
use crate::workspace::Workspace;

/// The built kernel.
pub(super) struct Kernel {
    /// Changes whenever the kernel does.
    pub(super) id: String,
    /// The package's version.
    pub(super) version: String,
    /// Of every image.
    pub(super) command_line: String,
    /// The folder with all modules and what `depmod` wrote about them.
    pub(super) modules: PathBuf,
}

/// A package that holds the kernel.
struct Package {
    name: String,
    version: String,
    /// As `uname -r` in the guest says.
    release: String,
}

/// Builds the kernel unless there is one for this release; `refresh` takes the newest.
pub(super) fn build(
    workspace: &Workspace,
    recipe: &KernelRecipe,
    codename: &str,
    refresh: bool,
) -> anyhow::Result<Kernel> {
    let mut inputs = Inputs::new();
    inputs.add("package", recipe.package.as_bytes());
    inputs.add("release", codename.as_bytes());
    let product = Product::new(workspace.images(), "kernel", "kernel.json", inputs.finish());
    if !product.is_current() || refresh {
        let step = Step::start("guest kernel");
        let package = find(workspace, &step, recipe)?;
        let folder = product.begin()?;
        unpack(workspace, &step, &package, &folder)?;
        let description = serde_json::json!({
            "package": package.name,
            "version": package.version,
            "release": package.release,
            "debian": codename,
            "inputs_hash": product.inputs_hash(),
        });
        write_json(&folder.join("kernel.json"), &description)?;
        product.publish()?;
        step.done(&package.version);
    }
    let description = product.read_description().context("read kernel.json")?;
    let text = |name: &str| description[name].as_str().unwrap_or_default().to_owned();
    Ok(Kernel {
        id: format!("{} {} {}", product.inputs_hash(), text("package"), text("version")),
        version: text("version"),
        command_line: recipe.command_line.clone(),
        modules: product.folder().join("lib/modules").join(text("release")),
    })
}

/// Asks apt which kernel is the newest; refreshes its lists if it does not know any.
fn find(workspace: &Workspace, step: &Step, recipe: &KernelRecipe) -> anyhow::Result<Package> {
    step.detail("asking apt for the newest package");
    let mut depends = debian::package_field(&recipe.package, "Depends");
    if depends.is_none() && rustix::process::geteuid().is_root() {
        setup::update_package_lists(workspace, step)?;
        depends = debian::package_field(&recipe.package, "Depends");
    }
    let Some(depends) = depends else {
        bail!("apt does not know {}; run: sudo apt-get update", recipe.package);
    };
    let name = image_package(&depends)
        .with_context(|| format!("no kernel image among what {} needs", recipe.package))?;
    let version = debian::package_field(&name, "Version")
        .with_context(|| format!("apt does not know {name}"))?;
    let release = name.trim_start_matches("linux-image-").to_owned();
    Ok(Package { name, version, release })
}

/// The kernel image package in a `Depends` field.
fn image_package(depends: &str) -> Option<String> {
    depends
        .split([',', '|'])
        .filter_map(|item| item.split_whitespace().next())
        .find(|name| name.starts_with("linux-image-"))
        .map(str::to_owned)
}

fn unpack(
    workspace: &Workspace,
    step: &Step,
    package: &Package,
    folder: &Path,
) -> anyhow::Result<()> {
    let unpacked = folder.join("unpacked");
    fs::create_dir(&unpacked).context("create a folder for the package")?;
    let log = workspace.log("kernel-download");
    if let Err(error) = run_logged(step, download(package, folder), &log) {
        // The lists may name a version that the mirror has replaced.
        if !rustix::process::geteuid().is_root() {
            return Err(error.context("download the kernel (try: sudo apt-get update)"));
        }
        setup::update_package_lists(workspace, step)?;
        run_logged(step, download(package, folder), &log).context("download the kernel")?;
    }
    for entry in fs::read_dir(folder)? {
        let archive = entry?.path();
        if archive.extension().is_some_and(|extension| extension == "deb") {
            let mut dpkg_deb = Command::new("dpkg-deb");
            dpkg_deb.arg("-x").arg(&archive).arg(&unpacked);
            run_logged(step, dpkg_deb, &workspace.log("kernel-unpack"))?;
            fs::remove_file(&archive)?;
        }
    }
    let image = unpacked.join("boot").join(format!("vmlinuz-{}", package.release));
    fs::rename(&image, folder.join("vmlinuz"))
        .with_context(|| format!("no {} in {}", image.display(), package.name))?;
    let modules = ["lib/modules", "usr/lib/modules"]
        .map(|path| unpacked.join(path))
        .into_iter()
        .find(|path| path.is_dir())
        .with_context(|| format!("no modules in {}", package.name))?;
    fs::create_dir(folder.join("lib"))?;
    fs::rename(modules, folder.join("lib/modules"))?;
    fs::remove_dir_all(&unpacked)?;
    let mut depmod = Command::new("depmod");
    depmod.arg("-b").arg(folder).arg(&package.release);
    // Where it is not on an ordinary user's path.
    let path = std::env::var("PATH").unwrap_or_default();
    depmod.env("PATH", format!("{path}:/usr/sbin:/sbin"));
    run_logged(step, depmod, &workspace.log("kernel-depmod"))
}

fn download(package: &Package, folder: &Path) -> Command {
    let mut command = Command::new("apt-get");
    command
        .args(["download", "-o", "Acquire::Retries=3"])
        // apt drops root for downloads and warns where its user cannot write; it need not here.
        .args(["-o", "APT::Sandbox::User=root"])
        .arg(format!("{}={}", package.name, package.version))
        .current_dir(folder);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_image_is_found_among_the_dependencies() {
        let depends = "linux-base (>= 4), linux-image-6.12.9+deb13-cloud-amd64 (= 6.12.9-1)";
        assert_eq!(image_package(depends).unwrap(), "linux-image-6.12.9+deb13-cloud-amd64");
        assert_eq!(image_package("kmod, initramfs-tools | linux-initramfs-tool"), None);
    }
}
