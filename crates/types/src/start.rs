//! The phases of a start. The same strings are API fields, metric labels, table columns and rows of
//! `docs/start.md`.

use crate::name::named;

named! {
    /// One phase of the start of a sandbox, in the order in which they happen.
    StartPhase {
        /// The start takes its turn, and the snapshot's files are held for it.
        Claim = "claim",
        /// An empty overlay for what the guest will write to its disk.
        Disk = "disk",
        /// The VMM's process starts, and takes commands.
        Launch = "launch",
        /// The snapshot's layers are mapped over guest RAM.
        Map = "map",
        /// Its network device is joined to the gateway, with its policy.
        Network = "network",
        /// The VMM reads the device state.
        Load = "load",
        /// The new identity is sent, and the vCPUs run.
        Resume = "resume",
        /// The guest takes the identity and confirms it.
        Renew = "renew",
        /// The sandbox is written down, and somebody watches over it.
        HandOut = "hand_out",
    }
}
