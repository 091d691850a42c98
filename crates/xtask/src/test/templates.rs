//! Templates that the system tests share: each is built once for a run, and a test that is not
//! about building takes a copy, in a tenth of the time.
//!
//! Guarantees: they are made anew for each run, with the programs under test. Does not: serve a
//! test that is run by hand; it builds its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use tempfile::TempDir;

use crate::command::output;
use crate::workspace::Workspace;

/// Names the folder of the templates to the tests, which call one `IMAGE-MEBIBYTES.forkd`.
pub(super) const VARIABLE: &str = "FORKD_TEST_TEMPLATES";

/// Those that several tests ask for: image and memory in MiB.
const SHARED: [(&str, u32); 2] = [("tiny", 128), ("python", 256)];

/// Where they are.
pub(super) fn folder(workspace: &Workspace) -> PathBuf {
    workspace.root.join("build/test-templates")
}

/// Makes them.
pub(super) fn make(workspace: &Workspace) -> anyhow::Result<()> {
    let folder = folder(workspace);
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("remove {}", folder.display()))?;
    }
    fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
    let home = TempDir::with_prefix("fh-").context("create a home")?;
    let forkd = |arguments: &[&str]| {
        let mut command = Command::new(workspace.tested().join("forkd"));
        command.args(arguments).envs(workspace.places_for_vms(&workspace.tested()));
        command.env("FORKD_HOME", home.path()).env("FORKD_HOT_DIR", home.path().join("hot"));
        output(command.env("FORKD_ACCEL", "tcg"))
    };
    let made = SHARED.iter().try_for_each(|(image, mebibytes)| {
        make_one(&forkd, &folder, image, *mebibytes)
            .with_context(|| format!("make the template {image} of {mebibytes} MiB"))
    });
    let stopped = forkd(&["stop", "--stop-sandboxes"]);
    made.and(stopped.map(|_| ()))
}

fn make_one(
    forkd: &dyn Fn(&[&str]) -> anyhow::Result<String>,
    folder: &Path,
    image: &str,
    mebibytes: u32,
) -> anyhow::Result<()> {
    let tag = format!("{image}-{mebibytes}");
    let memory = mebibytes.to_string();
    forkd(&["template", "build", image, "--tag", &tag, "--mem-size-mib", &memory])?;
    let file = folder.join(format!("{tag}.forkd"));
    forkd(&["snapshot", "export", &tag, &file.to_string_lossy()])?;
    Ok(())
}
