//! The proof that a capture asks for.

/// Proof that the vCPUs of a guest do not run and that its device state has been saved, so that
/// nothing writes guest memory until the guest resumes. Only the last type of a VMM's pause window
/// implements it.
pub trait GuestStopped {}
