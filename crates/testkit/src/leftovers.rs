//! What lies in a lab's directories and belongs to nobody.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use forkd_store::{FileSet, Registry};

use crate::Lab;

impl Lab {
    /// Files and directories that no snapshot lists, no running VMM has open or mapped, and no
    /// sandbox owns.
    #[must_use]
    pub fn leftovers(&self) -> Vec<PathBuf> {
        let config = self.config();
        let known = self.known_names();
        let is_known = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let stem = name.split('.').next().unwrap_or_default();
            let blank = stem.starts_with("blank-") && name.ends_with(".qcow2");
            !name.ends_with(".new") && (blank || known.contains(stem))
        };
        let mut found = Vec::new();
        for directory in [
            config.hot_dir.join("layers"),
            config.state_dir.join("layers"),
            config.state_dir.join("overlays"),
            config.hot_dir.join("vms"),
            config.state_dir.join("vms"),
            config.run_dir.clone(),
            config.run_dir.join("netd/logs"),
        ] {
            found.extend(entries(&directory).into_iter().filter(|path| !is_known(path)));
        }
        let hot_files = entries(&config.hot_dir.join("vms"));
        let hot_files = hot_files.iter().flat_map(|directory| entries(directory));
        // The next pause of a confined VMM finds an empty file for its device state.
        let is_empty = |path: &PathBuf| fs::metadata(path).is_ok_and(|file| file.len() == 0);
        let is_known = |path: &PathBuf| {
            path.ends_with("ram") || path.ends_with("device-state") && is_empty(path)
        };
        found.extend(hot_files.filter(|path| !is_known(path)));
        found
    }

    /// Ids of layers, overlays and sandboxes that are in use.
    fn known_names(&self) -> BTreeSet<String> {
        let config = self.config();
        let registry = config.state_dir.join("registry.sqlite");
        let registry = Registry::open(&registry).expect("the registry opens");
        // What the launcher builds the root of VMMs on, and what the gateway has.
        let mut known = BTreeSet::from(["root", "netd"].map(str::to_owned));
        let rows = registry.snapshots().expect("the registry can be read");
        let listed = rows.iter().map(|row| FileSet::from(&row.manifest));
        let needed = listed.chain([self.engine.claimed_by_sandboxes()]).collect::<FileSet>();
        known.extend(needed.layers.iter().map(ToString::to_string));
        known.extend(needed.overlays.iter().map(ToString::to_string));
        for sandbox in self.engine.sandboxes() {
            known.insert(sandbox.id.to_string());
            known.extend(sandbox.pid.into_iter().flat_map(files_of));
        }
        known
    }

    /// How many descriptors this process has open.
    #[must_use]
    pub fn descriptor_count(&self) -> usize {
        entries(Path::new("/proc/self/fd")).len()
    }
}

/// The stems of all files that a process has open or mapped.
fn files_of(pid: u32) -> BTreeSet<String> {
    let stem = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.split('.').next().unwrap_or_default().to_owned()
    };
    let open = entries(Path::new(&format!("/proc/{pid}/fd")));
    let mut files: BTreeSet<String> =
        open.iter().filter_map(|link| fs::read_link(link).ok()).map(|path| stem(&path)).collect();
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    files.extend(
        maps.lines()
            .filter_map(|line| line.split_whitespace().nth(5))
            .map(|path| stem(Path::new(path))),
    );
    files
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}
