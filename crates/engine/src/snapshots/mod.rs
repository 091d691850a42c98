//! Snapshots: what is known of them, the files they consist of, and the work on them that needs no
//! VM.
//!
//! ```text
//! catalog   rows, statuses, tags; owns the registry's part     files   who needs which file
//! parts     a snapshot's parts, opened or refused by name      view    quick mapping of a chain
//! publish   makes it durable                                   compact makes it independent
//! export    as one file for another daemon                      import  from such a file
//! push      into a registry and out of it                       registry as a carrier of artifacts
//! hub       what a registry has, before it is fetched
//! keys      who signs such files, and whom to trust
//! recheck   after a start: hot copies, checksums              disk_quota what an owner may occupy
//! ```
//!
//! Guarantees: only a `ready` snapshot is started from; a status is written in one place, which
//! checks the table of hops; a part that is missing or damaged is healed or refused by name.
//!
//! Does not do: know sandboxes beyond the files that they claim.

mod already_here;
mod catalog;
mod compact;
mod disk_quota;
mod export;
mod figures;
mod files;
pub(crate) mod hub;
mod import;
mod keys;
mod parts;
mod publish;
mod push;
mod recheck;
mod registry;
mod state;
mod view;

pub(crate) use catalog::{Catalog, Inherited};
pub use export::Exported;
pub(crate) use export::Label;
pub(crate) use figures::to_figures;
pub(crate) use files::Files;
pub use hub::{HubEntry, HubListing, HubSnapshot, Signer};
pub use import::{ImportRequest, Trust};
pub(crate) use keys::Keys;
pub use keys::TrustedKey;
pub use registry::Pushed;
pub(crate) use registry::reference_of;
pub(crate) use state::{Snapshots, SnapshotsConfig};
