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
pub mod guest_frames;
pub mod guest_messages;
pub mod layer_index;
pub mod manifest;
pub mod qmp_replies;

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
pub const TARGETS: [Target; 6] = [
    Target { name: "guest_frames", check: guest_frames::check, seeds: guest_frames::seeds },
    Target { name: "guest_messages", check: guest_messages::check, seeds: guest_messages::seeds },
    Target { name: "qmp_replies", check: qmp_replies::check, seeds: qmp_replies::seeds },
    Target { name: "manifest", check: manifest::check, seeds: manifest::seeds },
    Target { name: "layer_index", check: layer_index::check, seeds: layer_index::seeds },
    Target { name: "api_bodies", check: api_bodies::check, seeds: api_bodies::seeds },
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
