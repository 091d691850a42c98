//! `--name=value` before the words of an instruction.

/// Takes the flags off, in order.
pub(super) fn split(mut text: &str) -> (Vec<(&str, &str)>, &str) {
    let mut flags = Vec::new();
    while let Some(rest) = text.strip_prefix("--") {
        let (flag, after) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        flags.push(flag.split_once('=').unwrap_or((flag, "")));
        text = after.trim_start();
    }
    (flags, text)
}
