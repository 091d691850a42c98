//! Claims about what two machines from one image must not share: see the name of each file.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod random_numbers_differ_in_children;
mod twenty_children_have_identities_of_their_own;
mod unconfirmed_child_is_destroyed;
