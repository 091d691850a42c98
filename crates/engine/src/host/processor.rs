//! What the processor can, as far as guests on KVM see it: device state that was saved on another
//! one may not load, or may crash the guest later.

use std::fs;

use sha2::{Digest as _, Sha256};

/// What makes two processors alike for a guest. The flags are many, so they are hashed.
const NAMED: [&str; 4] = ["vendor_id", "cpu family", "model", "stepping"];
const FLAGS: &str = "flags";

/// Who made the processor of this host; none where the kernel does not tell.
pub(super) fn vendor() -> Option<String> {
    vendor_in(&fs::read_to_string("/proc/cpuinfo").ok()?)
}

fn vendor_in(text: &str) -> Option<String> {
    let [vendor, ..] = NAMED;
    Some(format!("{vendor} {}", field(text, vendor)?))
}

/// The processor of this host in one line; none where the kernel does not tell.
pub(super) fn describe() -> Option<String> {
    describe_text(&fs::read_to_string("/proc/cpuinfo").ok()?)
}

fn describe_text(text: &str) -> Option<String> {
    let named: Option<Vec<_>> =
        NAMED.iter().map(|name| field(text, name).map(|it| format!("{name} {it}"))).collect();
    let flags = hex::encode(Sha256::digest(field(text, FLAGS)?));
    Some(format!("{}, {FLAGS} {}", named?.join(", "), &flags[..16]))
}

fn field(text: &str, name: &str) -> Option<String> {
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    let found = lines.find(|(key, _)| key.trim() == name);
    found.map(|(_, value)| value.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_differ_by_their_flags_too() {
        let text = |flags: &str| {
            format!(
                "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 85\n\
                 model name\t: Xeon\nstepping\t: 7\nflags\t\t: {flags}\n\nprocessor\t: 1\n"
            )
        };
        let one = describe_text(&text("fpu avx")).unwrap();
        assert!(one.starts_with("vendor_id GenuineIntel, cpu family 6, model 85, "), "{one}");
        assert_ne!(describe_text(&text("fpu avx avx2")).unwrap(), one);
        assert_eq!(describe_text("model: 85"), None);
        assert_eq!(vendor_in(&text("fpu")).unwrap(), "vendor_id GenuineIntel");
    }
}
