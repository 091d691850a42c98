//! What a capture asks of whoever has the VM.

/// Proof that the vCPUs do not run and that device state has been saved; implemented by the VMM's
/// frozen-window type only.
pub trait GuestStopped {}
