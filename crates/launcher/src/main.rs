//! The launcher process: see the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    forkd_launcher::server::run(std::env::args().skip(1))
}
