//! Kernel modules: the drivers of the few devices that a guest has.

use std::fs::{self, File};
use std::path::Path;

use rustix::io::Errno;
use rustix::system::finit_module;

use crate::log;

const FOLDER: &str = "/lib/modules/forkd";

/// Loads the files that `order` names, one per line, in this order. Without the list there is
/// nothing to load: the kernel has its drivers built in.
pub(super) fn load() {
    let folder = Path::new(FOLDER);
    let Ok(order) = fs::read_to_string(folder.join("order")) else { return };
    for name in order.lines().map(str::trim).filter(|name| !name.is_empty()) {
        let outcome =
            File::open(folder.join(name)).map_err(|error| error.to_string()).and_then(|file| {
                match finit_module(&file, c"", 0) {
                    Ok(()) | Err(Errno::EXIST) => Ok(()),
                    Err(errno) => Err(errno.to_string()),
                }
            });
        if let Err(error) = outcome {
            log::failure(&format!("module {name}: {error}"));
        }
    }
    // They live in memory twice otherwise.
    fs::remove_dir_all(folder).ok();
}
