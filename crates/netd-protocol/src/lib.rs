//! What the daemon asks of the gateway process, `forkd netd`, and how: one packet each way over a
//! Unix socket that keeps their bounds, with descriptors beside them.
//!
//! A [`Client`] connects for every request. So requests do not wait for each other, and the next
//! one reaches whatever process listens then: the gateway outlives daemons and is replaced when it
//! dies.
//!
//! Guarantees: each packet names the version that it is written in, and one of another version is
//! refused by that name; packets are bounded; every wait has a deadline.
//!
//! Does not do: start the gateway, or anything with packets of guests.

mod client;
mod connections;
mod message;
mod packet;
mod presence;
mod record;
mod secrets;

pub use client::{CLIENT_DEADLINE, Client, ClientError, bind};
pub use connections::{ConnectionFile, read_connections};
pub use message::{
    Attach, Failure, Flow, GatewayUsage, InheritedQuery, Notice, Reply, Request, TcpFlow, VERSION,
};
pub use packet::{Connection, PACKET_BYTES_MAX, PacketError, register};
pub use presence::Presence;
pub use record::{FlowRecord, LOG_BYTES_MAX, Traffic, log_path, older_log_path, read_log};
pub use secrets::{SECRETS_MAX, Secret, SecretValue, SecretValueError, Secrets, read_credential};

/// The subject of the certificate with which the gateway signs others.
pub const AUTHORITY_NAME: &str = "forkd network gateway";
