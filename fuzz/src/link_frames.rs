//! Frames of a guest's link: whatever they are, the gateway's answers are well formed.

pub use forkd_netd::fuzzing::check_frame as check;

/// An IPv4 header of the guest, then this.
fn packet(protocol: u8, inside: &[u8]) -> Vec<u8> {
    let length = u16::try_from(20 + inside.len()).expect("a short packet");
    let mut frame = [[2; 12].as_slice(), &[8, 0, 0x45, 0], &length.to_be_bytes()].concat();
    frame.extend([0, 0, 0, 0, 64, protocol, 0, 0, 10, 42, 0, 2, 203, 0, 113, 7]);
    frame.extend_from_slice(inside);
    frame
}

/// One frame of each kind.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let syn = [0x9c, 0x40, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 0xff, 0xff, 0, 0, 0, 0];
    let datagram = [0x9c, 0x40, 0, 7, 0, 12, 0, 0, b'p', b'i', b'n', b'g'];
    let echo = [8, 0, 0, 0, 0, 1, 0, 2, b'p', b'i', b'n', b'g'];
    let mut who_has = [[0xff; 6], [2; 6]].concat();
    who_has.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 2, 2, 2, 2, 2, 10, 42, 0, 2]);
    who_has.extend([0, 0, 0, 0, 0, 0, 10, 42, 0, 1]);
    vec![packet(6, &syn), packet(17, &datagram), packet(1, &echo), who_has]
}
