//! Packets with descriptors, over a Unix socket that keeps their bounds (`SOCK_SEQPACKET`).

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

/// Descriptors that one packet can carry.
pub const DESCRIPTORS_MAX: usize = 32;

/// Sends one packet.
///
/// # Errors
/// What the kernel says; `EINVAL` for more than [`DESCRIPTORS_MAX`] descriptors.
pub fn send(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    // Alignment leaves room for more.
    if fds.len() > DESCRIPTORS_MAX {
        return Err(Errno::INVAL);
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::INVAL);
    }
    let bytes = [IoSlice::new(bytes)];
    rustix::net::sendmsg(socket, &bytes, &mut ancillary, SendFlags::NOSIGNAL).map(drop)
}

/// Receives one packet into `buffer`: its length, 0 when the peer has closed, and the descriptors
/// that came with it. They close when a program is executed.
///
/// # Errors
/// What the kernel says; `EMSGSIZE` for a packet that is larger than `buffer` or carries more
/// descriptors than there is room for.
pub fn receive(socket: impl AsFd, buffer: &mut [u8]) -> Result<(usize, Vec<OwnedFd>), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut buffers = [IoSliceMut::new(buffer)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = rustix::net::recvmsg(socket, &mut buffers, &mut ancillary, flags)?;
    let fds = ancillary
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        })
        .flatten()
        .collect();
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(Errno::MSGSIZE);
    }
    Ok((received.bytes, fds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::fs::File;
    use std::io::{Read as _, Write as _};

    fn pair() -> (OwnedFd, OwnedFd) {
        let flags = SocketFlags::CLOEXEC;
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
    }

    #[test]
    fn a_packet_arrives_whole_and_with_its_descriptors() {
        let (ours, theirs) = pair();
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        send(&ours, b"one", &[writer.as_fd()]).unwrap();
        send(&ours, b"two", &[]).unwrap();
        drop(writer);
        let mut buffer = [0; 16];
        let (bytes, mut fds) = receive(&theirs, &mut buffer).unwrap();
        assert_eq!(&buffer[..bytes], b"one");
        File::from(fds.pop().unwrap()).write_all(b"x").unwrap();
        let mut read = String::new();
        File::from(reader).read_to_string(&mut read).unwrap();
        assert_eq!((read.as_str(), fds.len()), ("x", 0));
        let (bytes, fds) = receive(&theirs, &mut buffer).unwrap();
        assert_eq!((&buffer[..bytes], fds.len()), (b"two".as_slice(), 0));
        drop(ours);
        assert_eq!(receive(&theirs, &mut buffer).unwrap().0, 0);
    }

    #[test]
    fn a_packet_that_does_not_fit_is_an_error_and_not_a_part() {
        let (ours, theirs) = pair();
        send(&ours, &[7; 17], &[]).unwrap();
        assert_eq!(receive(&theirs, &mut [0; 16]).unwrap_err(), Errno::MSGSIZE);
        let (reader, _writer) = rustix::pipe::pipe().unwrap();
        let many = [reader.as_fd(); DESCRIPTORS_MAX + 1];
        assert_eq!(send(&ours, b"x", &many).unwrap_err(), Errno::INVAL);
    }
}
