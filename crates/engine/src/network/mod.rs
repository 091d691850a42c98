//! The network of sandboxes: what each may reach, and the gateway that sees to it.
//!
//! ```text
//! guest's device -- link (held by its VMM) -- gateway process -- host's sockets, by policy
//!                                               ^ told what may pass, asked for connections
//! ```
//!
//! Every VM with a network device has its link joined to the gateway before it runs. The gateway is
//! a process of its own, outlives the daemon as VMMs do, and is started again when it has died:
//! links live as long as their VMMs, so it is handed them anew.
//!
//! Guarantees: a sandbox does not run before its policy is in force; what is started from a
//! snapshot has the policy of the sandbox that the snapshot was branched from, unless its creator
//! gives another; a child's inherited connections are reset. Each gateway process is handed the
//! secrets that header rules name, and nobody else is. A sandbox has the same alias in a private
//! network for as long as it is a member.
//!
//! Does not do: look at packets, or decide about a connection. The gateway does.

mod authority;
mod gateway;
mod home;
mod inherited;
mod private;
mod process;
mod roots;
mod secrets;
mod state;

pub(crate) use authority::Authority;
pub(crate) use gateway::{CredentialFiles, Gateway, VmLink};
pub(crate) use home::{log_folder, log_folders};
pub(crate) use inherited::InheritedNetwork;
pub(crate) use private::PrivateNetworks;
pub(crate) use process::GatewayProcess;
pub(crate) use roots::TrustedRoots;
pub(crate) use secrets::SecretStore;
pub(crate) use state::Networks;
