//! Messages to and from the resolver: none makes an answer that is too long or pins what is denied.

pub use forkd_netd::fuzzing::check_message as check;

/// A query, and an answer with an alias and an address.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let query = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\x01\
        \x01a\x07example\0\0\x01\0\x01\
        \0\0\x29\x04\xd0\0\0\0\0\0\0";
    let answer = b"\x12\x34\x01\0\0\x01\0\x02\0\0\0\0\
        \x01a\x07example\0\0\x01\0\x01\
        \xc0\x0c\0\x05\0\x01\0\0\0\x3c\0\x04\x01b\xc0\x0e\
        \xc0\x27\0\x01\0\x01\0\0\0\x3c\0\x04\xcb\0\x71\x07";
    vec![query.to_vec(), answer.to_vec()]
}
