//! TCP ports of a guest: which are listened on, and the way to those on its loopback address.

use std::net::IpAddr;
use std::time::Duration;

use forkd_protocol::{Reply, Request, credit_cost};

use super::call::Deadline;
use super::{GuestAgent, GuestError, OUTPUT_BYTES_MAX};

/// Longest name of a program that is told, in characters; the kernel keeps 15 bytes.
const PROGRAM_CHARS_MAX: usize = 64;

/// A TCP port that is listened on. All of it comes from the guest.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListeningPort {
    /// The port.
    pub port: u16,
    /// The address that it is listened on.
    pub address: IpAddr,
    /// The process that listens, if the guest knows it.
    pub pid: Option<u32>,
    /// The name of its program.
    pub program: Option<String>,
}

impl GuestAgent {
    /// The TCP ports that are listened on, by number and address.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn list_ports(&self, within: Duration) -> Result<Vec<ListeningPort>, GuestError> {
        let mut call = self.call("list ports", Deadline::after(within))?;
        call.begin(&Request::ListPorts { output_credit: call.window() })?;
        let mut ports = Vec::new();
        let mut bytes = 0;
        loop {
            let reply = call.next().await?;
            bytes += reply.payload_bytes().map_or(0, credit_cost);
            if bytes > OUTPUT_BYTES_MAX {
                return Err(GuestError::OutputTooLarge { limit: OUTPUT_BYTES_MAX });
            }
            match reply {
                Reply::Done {} => {
                    call.finish();
                    ports.sort_unstable();
                    return Ok(ports);
                }
                Reply::Port { address, port, pid, program } => {
                    let unexpected = |_| GuestError::unexpected("list ports", "address");
                    let address = address.parse().map_err(unexpected)?;
                    let program = program.as_deref().map(shown);
                    ports.push(ListeningPort { port, address, pid, program });
                }
                other => return Err(call.unexpected(&other)),
            }
        }
    }

    /// Opens a way to a server that listens on the guest's loopback address only: the port that the
    /// gateway may connect to next, once and within seconds.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn open_port(&self, port: u16, within: Duration) -> Result<u16, GuestError> {
        match self.ask("open port", Request::OpenPort { port }, within).await? {
            Reply::PortOpened { port } => Ok(port),
            _ => Err(GuestError::unexpected("open port", "reply")),
        }
    }
}

/// A program's name in one line.
fn shown(name: &str) -> String {
    let shown = name.chars().take(PROGRAM_CHARS_MAX);
    shown.map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}
