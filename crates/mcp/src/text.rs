//! Text of a guest, as much of it as a model should read.

/// Bytes of text that a field of an answer has at most.
pub const TEXT_BYTES_MAX: usize = 32 * 1024;

/// The text; of a long one its beginning and its end, with what is left out said between them.
pub(crate) fn shortened(text: &str) -> String {
    if text.len() <= TEXT_BYTES_MAX {
        return text.to_owned();
    }
    // Room for the words between them.
    let half = TEXT_BYTES_MAX / 2 - 64;
    let boundary = |from: usize| (from..text.len()).find(|at| text.is_char_boundary(*at));
    let head = &text[..boundary(half).unwrap_or(text.len())];
    let tail = &text[boundary(text.len() - half).unwrap_or(text.len())..];
    let left_out = text.len() - head.len() - tail.len();
    format!("{head}\n[... {left_out} bytes are left out ...]\n{tail}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_text_stays_and_long_text_keeps_both_ends_within_the_limit() {
        assert_eq!(shortened("héllo"), "héllo");
        let text = format!("begin{}end", "é".repeat(TEXT_BYTES_MAX));
        let short = shortened(&text);
        assert!(short.len() <= TEXT_BYTES_MAX, "{}", short.len());
        assert!(short.starts_with("begin") && short.ends_with("end"));
        assert!(short.contains("bytes are left out"));
    }
}
