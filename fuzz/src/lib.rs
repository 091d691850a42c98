//! What must hold of every parser that reads what others have written, for any input: guests,
//! VMMs, clients, and a disk that may have changed what it stored.
//!
//! Each module has a `check`, which panics when its claim is broken, and `seeds`, good inputs from
//! which a search for bad ones begins. The programs in `fuzz_targets/` give `check` to libFuzzer;
//! this crate's own test gives it the seeds, each of them cut and flipped.
//!
//! Does not do: search. `make fuzz` does, with the layout that `cargo fuzz` knows.

#![expect(clippy::missing_panics_doc, reason = "a check fails by panicking")]

pub mod api_bodies;
pub mod artifact;
pub mod dns_messages;
pub mod e2b_envelopes;
pub mod first_bytes;
pub mod guest_frames;
pub mod guest_messages;
pub mod layer_index;
pub mod link_frames;
pub mod manifest;
pub mod oci_archives;
pub mod oci_documents;
pub mod oci_references;
pub mod policy_entries;
pub mod qcow2_header;
pub mod qmp_replies;
pub mod recipes;

/// One search.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Its name, and that of its program.
    pub name: &'static str,
    /// Panics when an input breaks the claim.
    pub check: fn(&[u8]),
    /// Inputs to begin with.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All of them.
pub const TARGETS: [Target; 17] = [
    Target { name: "guest_frames", check: guest_frames::check, seeds: guest_frames::seeds },
    Target { name: "guest_messages", check: guest_messages::check, seeds: guest_messages::seeds },
    Target { name: "qmp_replies", check: qmp_replies::check, seeds: qmp_replies::seeds },
    Target { name: "manifest", check: manifest::check, seeds: manifest::seeds },
    Target { name: "layer_index", check: layer_index::check, seeds: layer_index::seeds },
    Target { name: "qcow2_header", check: qcow2_header::check, seeds: qcow2_header::seeds },
    Target { name: "artifact", check: artifact::check, seeds: artifact::seeds },
    Target { name: "api_bodies", check: api_bodies::check, seeds: api_bodies::seeds },
    Target { name: "link_frames", check: link_frames::check, seeds: link_frames::seeds },
    Target { name: "dns_messages", check: dns_messages::check, seeds: dns_messages::seeds },
    Target { name: "e2b_envelopes", check: e2b_envelopes::check, seeds: e2b_envelopes::seeds },
    Target { name: "first_bytes", check: first_bytes::check, seeds: first_bytes::seeds },
    Target { name: "oci_archives", check: oci_archives::check, seeds: oci_archives::seeds },
    Target { name: "oci_documents", check: oci_documents::check, seeds: oci_documents::seeds },
    Target { name: "oci_references", check: oci_references::check, seeds: oci_references::seeds },
    Target { name: "policy_entries", check: policy_entries::check, seeds: policy_entries::seeds },
    Target { name: "recipes", check: recipes::check, seeds: recipes::seeds },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_has_a_program_and_seeds() {
        for target in TARGETS {
            let program = format!("fuzz_targets/{}.rs", target.name);
            let program = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(program);
            assert!(program.is_file(), "{}", program.display());
            assert!(!(target.seeds)().is_empty(), "{}", target.name);
        }
    }

    #[test]
    fn seeds_pass_whole_and_cut_and_with_flipped_bits() {
        for target in TARGETS {
            for seed in (target.seeds)() {
                (target.check)(&seed);
                for at in 0..seed.len().min(512) {
                    (target.check)(&seed[..at]);
                    let mut damaged = seed.clone();
                    damaged[at] ^= 1 << (at % 8);
                    (target.check)(&damaged);
                }
            }
        }
    }
}
