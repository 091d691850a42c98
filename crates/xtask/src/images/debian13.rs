//! The root file system of Debian 13, where its tier of tests runs: QEMU, and what the project
//! installs on a machine, but no compilers.
//!
//! It is no image: nothing boots from it. It comes from the mirrors of this machine's own release.

use std::fs;

use anyhow::Context;

use super::product::{Inputs, Product, write_json};
use super::{debian, root_disk};
use crate::command::run_logged;
use crate::enter::System;
use crate::progress::Step;
use crate::setup;
use crate::workspace::Workspace;

/// Debian 13.
const CODENAME: &str = "trixie";
/// Not installed there: half of the packages' files, which no program reads.
const EXCLUDE: [&str; 4] =
    ["/usr/share/doc/*", "/usr/share/info/*", "/usr/share/locale/*", "/usr/share/man/*"];

/// Builds it unless it is current. Needs root.
pub(crate) fn build(workspace: &Workspace) -> anyhow::Result<System> {
    let output = workspace.debian13();
    fs::create_dir_all(&output).with_context(|| format!("create {}", output.display()))?;
    let _lock = super::product::lock(workspace)?;
    super::product::remove_leftovers(&output)?;
    let mut packages = setup::to_run();
    packages.sort_unstable();
    let mut inputs = Inputs::new();
    inputs.add("release", CODENAME.as_bytes());
    inputs.add("packages", packages.join(" ").as_bytes());
    inputs.add("exclude", EXCLUDE.join(" ").as_bytes());
    let product = Product::new(output.clone(), "root", "product.json", inputs.finish());
    if product.is_current() {
        return Ok(System::new(output));
    }
    let step = Step::start("Debian 13's root file system");
    let folder = product.begin()?;
    let mut mmdebstrap = root_disk::bootstrap("root", "directory", &packages.join(","))?;
    for path in EXCLUDE {
        mmdebstrap.arg(format!("--dpkgopt=path-exclude={path}"));
    }
    mmdebstrap.arg(CODENAME).arg(folder.join("tree"));
    let list = folder.join("host.sources");
    if let Some(sources) = debian::sources_as_here(CODENAME)? {
        fs::write(&list, sources).context("write the package sources")?;
        mmdebstrap.arg(&list);
    }
    run_logged(&step, mmdebstrap, &workspace.log("debian13-root")).with_context(|| {
        format!(
            "build Debian 13's root file system; its packages come from this machine's mirrors, \
             which must be reachable and offer {CODENAME}"
        )
    })?;
    let description = serde_json::json!({"inputs_hash": product.inputs_hash()});
    write_json(&folder.join("product.json"), &description)?;
    product.publish()?;
    step.done(&format!("{} packages and what they need", packages.len()));
    Ok(System::new(output))
}
