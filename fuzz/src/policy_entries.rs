//! Entries of a network policy, and parts of its rules: what is read is written so that it is read
//! as the same again.

use forkd_types::network::{AddressRange, Destination, HeaderName, HeaderTemplate, HostPattern};

/// Reads the input as each kind of entry.
pub fn check(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    match text.parse::<Destination>() {
        Ok(entry) => assert_eq!(entry.to_string().parse(), Ok(entry)),
        Err(error) => {
            assert!(error.to_string().chars().count() < 400, "a client makes long errors")
        }
    }
    if let Ok(range) = text.parse::<AddressRange>() {
        assert_eq!(range.to_string().parse(), Ok(range));
    }
    if let Ok(host) = text.parse::<HostPattern>() {
        assert_eq!(host.to_string().parse(), Ok(host));
    }
    if let Ok(name) = text.parse::<HeaderName>() {
        assert_eq!(name.to_string().parse(), Ok(name));
    }
    if let Ok(value) = text.parse::<HeaderTemplate>() {
        assert_eq!(value.to_string(), text, "a value is changed");
        assert!(!text.contains(['\r', '\n', '\0']), "two headers of one");
    }
}

/// One entry of each kind.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let destinations =
        ["*.example.org:8000-8100", "udp://203.0.113.0/24:53", "[2001:db8::/32]:443", "host:5432"];
    let rules = ["*", "*.example.org", "X-Api-Key", "Bearer ${secrets.KEY}"];
    destinations.iter().chain(&rules).map(|entry| entry.as_bytes().to_vec()).collect()
}
