//! Values of options: one of a few words, or a key with its value.

use std::error::Error;
use std::str::FromStr;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use forkd_types::{BranchMode, CpuModel};

/// Takes one of these words, each with what it means. The type knows how to read them.
pub(crate) fn one_of<T>(
    words: &[(&'static str, &'static str)],
) -> impl TypedValueParser<Value = T> + use<T>
where
    T: FromStr<Err: Error + Send + Sync + 'static> + Clone + Send + Sync + 'static,
{
    let values = words.iter().map(|(word, help)| PossibleValue::new(*word).help(*help));
    PossibleValuesParser::new(values).try_map(|word| word.parse::<T>())
}

/// Takes the name of a mode.
pub(crate) fn branch_mode() -> impl TypedValueParser<Value = BranchMode> {
    one_of(&[
        (BranchMode::Live.name(), "Pages that changed, while the guest runs"),
        (BranchMode::Diff.name(), "Pages that changed, while the guest is paused"),
        (BranchMode::Full.name(), "All pages, while the guest is paused"),
    ])
}

/// Takes the name of a CPU model.
pub(crate) fn cpu_model() -> impl TypedValueParser<Value = CpuModel> {
    one_of(&[
        (CpuModel::Host.name(), "All that the host has; for snapshots that stay on such hosts"),
        (CpuModel::V2.name(), "What processors have since about 2009"),
        (CpuModel::V3.name(), "What they have since about 2015, with AVX2"),
    ])
}

/// A key and its value. Which keys there may be is up to the daemon.
pub(crate) fn key_value(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("there is no `=` in it")?;
    Ok((key.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_ends_at_the_first_equals_sign() {
        let pair = |key: &str, value: &str| Ok((key.to_owned(), value.to_owned()));
        assert_eq!(key_value("A=1"), pair("A", "1"));
        assert_eq!(key_value("B=x=y"), pair("B", "x=y"));
        assert_eq!(key_value("C="), pair("C", ""));
        assert!(key_value("A").is_err());
    }
}
