//! The first process of a guest: from the kernel's initramfs to a machine that serves requests.
//!
//! ```text
//! mount what programs expect -> load modules -> wait for the disk, if there is one -> switch to it
//!   -> names, limits, network -> files with its identity -> open the port -> serve for ever
//! ```
//!
//! A step that fails is logged and the next one is taken: a guest that can still be asked is worth
//! more than one that stopped. Only without the port nothing can be done; then the machine ends.

mod interrupts;
mod modules;
mod mounts;
mod network;

use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::system::RebootCommand;

use crate::link::PortLink;
use crate::log;
use crate::renew::Renewer;
use crate::server::{self, Standing};

/// How long the port may take to appear after its driver was loaded.
const PORT_WAIT: Duration = Duration::from_secs(10);

/// Host name until the first renewal, unless the image has one.
const HOST_NAME: &str = "forkd";

/// Open files of a program; servers that people run in guests want more than the kernel's 1024.
const OPEN_FILES: Rlimit = Rlimit { current: Some(65_536), maximum: Some(524_288) };

/// Brings the machine up and serves. Does not return while the machine lives.
pub(crate) fn run() -> ExitCode {
    mounts::mount_kernel_file_systems();
    modules::load();
    let has_root_disk = mounts::switch_to_disk();
    mounts::mount_user_file_systems();
    settle();
    if let Err(error) = network::set_up() {
        log::failure(&format!("network: {error}"));
    }
    let renewer = Renewer::prepare();
    let renewer = renewer.inspect_err(|error| log::failure(&format!("identity: {error}"))).ok();
    match PortLink::open(forkd_protocol::PORT_NAME, PORT_WAIT) {
        Ok(link) => {
            let device = link.device().ok_or(io::ErrorKind::NotFound.into());
            if let Err(error) = device.and_then(interrupts::send_to_first_cpu) {
                log::failure(&format!("interrupt of the port: {error}"));
            }
            log::note("ready");
            server::serve(Arc::new(link), Standing::Init { has_root_disk, renewer });
        }
        Err(error) => {
            log::failure(&format!("port {}: {error}", forkd_protocol::PORT_NAME));
        }
    }
    // The end of the first process would be a kernel panic; this says better what is meant.
    rustix::fs::sync();
    rustix::system::reboot(RebootCommand::Restart).ok();
    ExitCode::FAILURE
}

/// Names and limits that all programs inherit.
fn settle() {
    let image_name = std::fs::read_to_string("/etc/hostname").unwrap_or_default();
    let name = match image_name.trim() {
        "" => HOST_NAME,
        name => name,
    };
    if let Err(error) = rustix::system::sethostname(name.as_bytes()) {
        log::failure(&format!("host name: {error}"));
    }
    if let Err(error) = setrlimit(Resource::Nofile, OPEN_FILES) {
        log::failure(&format!("open files: {error}"));
    }
}
