//! Brings the loopback interface up with one netlink message; images need no `ip` for it.

use std::io;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto,
    socket_with,
};

/// The kernel gives the loopback interface this index in every network namespace.
const LOOPBACK_INDEX: i32 = 1;

/// The protocol's number is 0, which is written as none.
const NETLINK_ROUTE: Option<Protocol> = None;
const RTM_NEWLINK: u16 = 16;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const IFF_UP: u32 = 1;

/// `struct nlmsghdr` and `struct ifinfomsg`.
const MESSAGE_BYTES: u32 = 16 + 16;

pub(super) fn bring_up() -> io::Result<()> {
    let socket =
        socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, NETLINK_ROUTE)?;
    sendto(&socket, &message(), SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    let mut answer = [0u8; 128];
    let (_, count) = recv(&socket, &mut answer[..], RecvFlags::empty())?;
    // `struct nlmsghdr`, then the error as a negative number, or 0.
    let Some(&[a, b, c, d]) = answer.get(16..20).filter(|_| count >= 20) else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    match i32::from_ne_bytes([a, b, c, d]) {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error.saturating_neg())),
    }
}

fn message() -> Vec<u8> {
    let mut bytes = Vec::new();
    // nlmsghdr: length, type, flags, sequence, port.
    bytes.extend(MESSAGE_BYTES.to_ne_bytes());
    bytes.extend(RTM_NEWLINK.to_ne_bytes());
    bytes.extend((NLM_F_REQUEST | NLM_F_ACK).to_ne_bytes());
    bytes.extend([0; 8]);
    // ifinfomsg: family and type, index, flags, which flags to change.
    bytes.extend([0; 4]);
    bytes.extend(LOOPBACK_INDEX.to_ne_bytes());
    bytes.extend(IFF_UP.to_ne_bytes());
    bytes.extend(IFF_UP.to_ne_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_message_is_as_long_as_it_says() {
        let bytes = super::message();
        assert_eq!(bytes.len(), 32);
        assert_eq!(bytes[..4], 32u32.to_ne_bytes());
    }
}
