//! Claim: guests reach what their policy permits, to the byte, and nothing else; what is refused is
//! refused at once.
//!
//! Method: the gateway runs on a host in a network namespace. Guests are TCP stacks at the other
//! end of their links, and an internet in another namespace has every address. No VM is needed.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, clippy::cast_precision_loss, reason = "figures are for people")]

mod guest;
mod secure;
mod world;

mod branches;
mod crafted;
mod figures;
mod flows;
mod members;
mod names;
mod others;
mod rules;
mod rules_refused;
mod stale;
mod ways_out;
