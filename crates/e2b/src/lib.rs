//! E2B's interfaces in front of the engine, so that programs which use E2B's clients run unchanged:
//! the control interface, and in place of E2B's agent in the guest its calls and file addresses.
//!
//! ```text
//! target   to what a request goes      control  create, list, end, fork, pause, snapshots
//! id       names of sandboxes          envd     programs and files of one sandbox
//! secret   keys and tokens             connect  framing of calls
//! record   what is kept of each one    failure  errors, in the forms that clients read
//! ```
//!
//! Guarantees: nothing secret of a client is in a guest or a snapshot because of this; what forkd
//! does not do is refused by its name and not passed over; streams hold no whole body in memory.
//!
//! Does not do: listen, encrypt, know who has which key of the operator's. The daemon does.

mod connect;
mod failure;
mod id;
mod secret;
mod signature;
mod target;
