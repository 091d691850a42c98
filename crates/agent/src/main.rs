//! The guest agent: the first process of every guest, and the daemon's hand inside it.
//!
//! ```text
//!  port --> reader thread --> request thread (one each) --> outbox --> writer thread --> port
//!              |                   |  poll: pipes, exit, credit, signals
//!              |                   +--> process table <-- reaper thread
//!              +--> interpreter thread (Python, started at first use, keeps its state)
//! ```
//!
//! Guarantees:
//! * As PID 1 it never exits and never panics on what it reads: that would end the guest.
//! * The reader thread never waits for a program, a file or the host. A slow host holds back only
//!   the requests whose output it does not take.
//! * A `Hello` starts a new epoch. Whatever requests of older epochs still produce is discarded,
//!   while their processes go on: a branched child does not answer its source's questions. A
//!   program that is to be kept is found again by its name, with what it wrote meanwhile.
//! * A renewal is confirmed only when every part of it took effect.
//!
//! What it does not do: keep programs of the guest from harming the guest, or from harming the
//! agent. All of the guest is the sandbox; the daemon trusts nothing that comes out of it.
//!
//! Usage: as `/init` of an initramfs without arguments; `forkd-agent --socket PATH` serves one
//! connection after the other on a Unix socket and changes nothing on the machine.

mod active;
mod attributes;
mod environment;
mod eval;
mod exec;
mod files;
mod hooks;
mod identity;
mod image_defaults;
mod init;
mod kept;
mod kept_watch;
mod link;
mod log;
mod outbox;
mod owner;
mod pipes;
mod ports;
mod power;
mod process;
mod relay;
mod renew;
mod renewals;
mod server;
mod sync;
mod terminal;
mod threads;
mod tree;
mod usage;
mod user;
mod watch;

use std::process::ExitCode;
use std::sync::Arc;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    match (std::process::id(), arguments.next(), arguments.next()) {
        (1, _, _) => init::run(),
        (_, Some(option), Some(path)) if option == "--socket" => {
            match link::SocketLink::listen(std::path::Path::new(&path)) {
                Ok(link) => server::serve(Arc::new(link), server::Standing::Guest),
                Err(error) => {
                    log::failure(&format!("cannot listen on {}: {error}", path.display()));
                    ExitCode::FAILURE
                }
            }
        }
        _ => {
            log::failure("usage: forkd-agent --socket PATH (or as the first process of a guest)");
            ExitCode::from(2)
        }
    }
}
