//! How much of what was written to a socket its peer has not read yet.

use std::io;
use std::os::fd::AsFd;

use rustix::ioctl;

/// `SIOCOUTQ` of `linux/sockios.h`.
const SIOCOUTQ: ioctl::Opcode = 0x5411;

/// Kernel memory, in bytes, held by what was written to this Unix stream socket and not read by its
/// peer. Zero exactly when the peer has read everything; otherwise larger than the unread content.
///
/// # Errors
/// Those of `ioctl(SIOCOUTQ)`.
pub fn unread_by_peer(socket: impl AsFd) -> io::Result<u32> {
    // JUSTIFICATION: no safe wrapper of this ioctl exists.
    // SAFETY: the opcode is SIOCOUTQ, which writes one int to the address that it is given.
    let bytes: i32 = unsafe { ioctl::ioctl(socket, ioctl::Getter::<SIOCOUTQ, i32>::new()) }?;
    Ok(u32::try_from(bytes).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    #[test]
    fn unread_bytes_are_seen_until_the_peer_has_read_the_last_one() {
        let (mut ours, mut peer) = UnixStream::pair().unwrap();
        assert_eq!(super::unread_by_peer(&ours).unwrap(), 0);
        ours.write_all(&[7; 10]).unwrap();
        let mut buffer = [0; 9];
        peer.read_exact(&mut buffer).unwrap();
        assert_ne!(super::unread_by_peer(&ours).unwrap(), 0);
        peer.read_exact(&mut buffer[..1]).unwrap();
        assert_eq!(super::unread_by_peer(&ours).unwrap(), 0);
    }
}
