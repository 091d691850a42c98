//! The key of a step: a hash of all that its result depends on.
//!
//! It covers the key of the state before, the step, and the files that it copies with their modes.
//! It does not cover what a program fetches from a network, or the time: such a step is the same as
//! long as its text is.

use forkd_types::Digest;
use serde::Serialize;

use crate::Step;

/// Keys of another version of this program are never taken for its own.
const VERSION: u32 = 1;

/// So many hex digits of a key are in the tag of a step: 160 bits.
const TAG_DIGITS: usize = 40;

/// Before the key in the tag of a step.
const TAG_PREFIX: &str = "step-";

/// Of the state of a sandbox after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key(Digest);

/// Where a build begins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// A snapshot: one that is made anew under the same tag is another.
    Snapshot {
        /// Its tag.
        tag: String,
        /// When it was made, in seconds since 1970.
        created_at_unix: u64,
    },
    /// A template of an OCI image.
    Image {
        /// Its reference.
        reference: String,
        /// Guest RAM, if not the usual.
        mem_size_mib: Option<u64>,
        /// Virtual CPUs, if not the usual.
        vcpus: Option<u32>,
    },
}

/// A file or a directory that a step copies.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct CopiedFile {
    /// Where it goes.
    pub target: String,
    /// Permission bits.
    pub mode: u32,
    /// Of its content; none for a directory.
    pub content: Option<Digest>,
}

impl Key {
    /// Of the state that a build begins with.
    #[must_use]
    pub fn of_origin(origin: &Origin) -> Self {
        Self::of(&(VERSION, origin))
    }

    /// Of the state after `step`, which copies `files`. Their order does not matter.
    #[must_use]
    pub fn after(self, step: &Step, files: &[CopiedFile]) -> Self {
        let mut files = files.to_vec();
        files.sort_unstable();
        Self::of(&(self.0, step, files))
    }

    fn of(what: &impl Serialize) -> Self {
        // These types have no map whose keys are no text, and nothing else that JSON cannot say.
        Self(Digest::of(&serde_json::to_vec(what).unwrap_or_default()))
    }

    /// The tag of the snapshot that has this state.
    #[must_use]
    pub fn tag(self) -> String {
        format!("{TAG_PREFIX}{}", &self.0.hex()[..TAG_DIGITS])
    }

    /// Whether a snapshot of this tag is the result of a step.
    #[must_use]
    pub fn is_tag(tag: &str) -> bool {
        tag.strip_prefix(TAG_PREFIX).is_some_and(|digits| {
            let is_digit = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
            digits.len() == TAG_DIGITS && digits.bytes().all(is_digit)
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Command, Copy, Run, Start};

    fn origin(tag: &str) -> Key {
        Key::of_origin(&Origin::Snapshot { tag: tag.into(), created_at_unix: 7 })
    }

    fn keys(steps: &[Step]) -> Vec<Key> {
        let mut key = origin("t");
        steps
            .iter()
            .map(|step| {
                key = key.after(step, &[]);
                key
            })
            .collect()
    }

    fn any_step() -> impl Strategy<Value = Step> {
        let word = "[a-c]{0,3}";
        let run = |command| Step::Run(Run { command, arguments: Default::default() });
        let start = |command| Step::Start(Start { command, ready: None });
        prop_oneof![
            word.prop_map(move |line| run(Command::Shell(line))),
            prop::collection::vec(word, 0..3).prop_map(move |args| run(Command::Args(args))),
            word.prop_map(move |line| start(Command::Shell(line))),
            prop::collection::btree_map(word, word, 0..3).prop_map(Step::Env),
            word.prop_map(Step::Workdir),
            word.prop_map(Step::User),
            (
                prop::collection::vec(word, 0..3),
                word,
                prop::option::of(word),
                prop::option::of(0..8u32)
            )
                .prop_map(|(sources, to, owner, mode)| Step::Copy(Copy {
                    sources,
                    to,
                    owner,
                    mode
                })),
        ]
    }

    fn any_file() -> impl Strategy<Value = CopiedFile> {
        ("[a-c]{1,3}", 0..4u32, prop::option::of("[ab]")).prop_map(|(target, mode, content)| {
            CopiedFile { target, mode, content: content.map(|text| Digest::of(text.as_bytes())) }
        })
    }

    proptest! {
        #[test]
        fn the_same_steps_have_the_same_keys_and_a_change_changes_all_from_there_on(
            steps in prop::collection::vec(any_step(), 1..6),
            other in any_step(),
            at in any::<prop::sample::Index>(),
        ) {
            prop_assert_eq!(keys(&steps), keys(&steps.clone()));
            let at = at.index(steps.len());
            prop_assume!(steps[at] != other);
            let mut changed = steps.clone();
            changed[at] = other;
            let (before, after) = (keys(&steps), keys(&changed));
            prop_assert_eq!(&before[..at], &after[..at]);
            for (one, two) in before[at..].iter().zip(&after[at..]) {
                prop_assert_ne!(one, two);
            }
        }

        #[test]
        fn the_order_of_files_does_not_matter_but_each_of_them_does(
            files in prop::collection::vec(any_file(), 1..5),
            other in any_file(),
        ) {
            let step = Step::User("u".into());
            let of = |files: &[CopiedFile]| origin("t").after(&step, files);
            let turned: Vec<_> = files.iter().rev().cloned().collect();
            prop_assert_eq!(of(&files), of(&turned));
            prop_assume!(files[0] != other);
            let mut changed = files.clone();
            changed[0] = other;
            prop_assert_ne!(of(&files), of(&changed));
        }
    }

    #[test]
    fn another_beginning_is_another_state_and_tags_are_known_by_their_form() {
        assert_ne!(origin("a"), origin("b"));
        let tag = origin("a").tag();
        assert!(Key::is_tag(&tag) && tag.parse::<forkd_types::TagName>().is_ok());
        assert!(!Key::is_tag("step-1") && !Key::is_tag("app"));
    }
}
