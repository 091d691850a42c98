//! The connections of a guest, in a file: whoever comes after a gateway that died knows which ones
//! to end.
//!
//! A slot of 32 bytes for each connection, numbers with their most significant byte first: 4 or 6
//! for the address family, or 0 for a free slot; a byte of nothing; the guest's port, the other
//! end's port, two bytes of nothing, the address, `expected` and `sent`.
//!
//! Guarantees: a process that dies at any instant leaves every slot as it was before or after a
//! change. What is no slot is read as a free one. The sequence numbers are those from when the
//! connection was new: a probe needs no better ones.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use forkd_sys::file::open_regular;
use rustix::fs::OFlags;

use crate::TcpFlow;

const SLOT_BYTES: usize = 32;
/// Twice what one guest may have: its own, and those that it inherits.
const SLOTS_MAX: usize = 2048;

type Slot = [u8; SLOT_BYTES];

/// The file for one guest, to be written.
#[derive(Debug)]
pub struct ConnectionFile(File);

impl ConnectionFile {
    /// The file in a guest's folder, as it is or new.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn open(folder: &Path) -> io::Result<Self> {
        let flags = OFlags::NOFOLLOW.bits().cast_signed();
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600).custom_flags(flags);
        options.open(path(folder)).map(Self)
    }

    /// Writes a connection to a slot, or that it is free.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn put(&self, slot: usize, flow: Option<&TcpFlow>) -> io::Result<()> {
        let bytes = flow.map_or([0; SLOT_BYTES], write);
        let offset = u64::try_from(slot * SLOT_BYTES).map_err(io::Error::other)?;
        self.0.write_all_at(&bytes, offset)
    }

    /// Forgets all but the first `slots`.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn truncate(&self, slots: usize) -> io::Result<()> {
        self.0.set_len(u64::try_from(slots * SLOT_BYTES).map_err(io::Error::other)?)
    }
}

/// The connections in a guest's folder; none where no gateway has written any.
///
/// # Errors
/// What the kernel says.
pub fn read_connections(folder: &Path) -> io::Result<Vec<TcpFlow>> {
    let file = match open_regular(&path(folder)) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let (mut bytes, most) = (Vec::new(), u64::try_from(SLOTS_MAX * SLOT_BYTES));
    file.take(most.unwrap_or(0)).read_to_end(&mut bytes)?;
    Ok(bytes.as_chunks().0.iter().filter_map(read).collect())
}

fn path(folder: &Path) -> PathBuf {
    folder.join("connections")
}

fn write(flow: &TcpFlow) -> Slot {
    let mut slot = [0; SLOT_BYTES];
    let (family, address) = match flow.remote {
        IpAddr::V4(address) => (4, address.to_ipv6_mapped()),
        IpAddr::V6(address) => (6, address),
    };
    slot[0] = family;
    slot[2..4].copy_from_slice(&flow.guest_port.to_be_bytes());
    slot[4..6].copy_from_slice(&flow.remote_port.to_be_bytes());
    slot[8..24].copy_from_slice(&address.octets());
    slot[24..28].copy_from_slice(&flow.expected.to_be_bytes());
    slot[28..32].copy_from_slice(&flow.sent.to_be_bytes());
    slot
}

fn read(slot: &Slot) -> Option<TcpFlow> {
    let (head, numbers) = slot.split_last_chunk::<8>()?;
    let (head, address) = head.split_last_chunk::<16>()?;
    let address = Ipv6Addr::from(*address);
    let remote = match head[0] {
        4 => IpAddr::from(address.to_ipv4_mapped().unwrap_or(Ipv4Addr::UNSPECIFIED)),
        6 => IpAddr::from(address),
        _ => return None,
    };
    let [expected, sent] = [0, 4].map(|at| {
        let mut number = [0; 4];
        number.copy_from_slice(&numbers[at..at + 4]);
        u32::from_be_bytes(number)
    });
    let port = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
    let flow = TcpFlow { guest_port: port(2), remote, remote_port: port(4), expected, sent };
    (!remote.is_unspecified() && flow.guest_port != 0).then_some(flow)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(guest_port: u16, remote: &str) -> TcpFlow {
        let remote = remote.parse().unwrap();
        TcpFlow { guest_port, remote, remote_port: 443, expected: 0xfeed_0001, sent: 7 }
    }

    #[test]
    fn connections_are_read_as_they_were_written() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read_connections(folder.path()).unwrap(), []);
        let file = ConnectionFile::open(folder.path()).unwrap();
        let [one, two, three] =
            [flow(40_000, "203.0.113.7"), flow(40_001, "2001:db8::7"), flow(1, "::ffff:1.2.3.4")];
        for (slot, flow) in [(0, &one), (1, &one), (2, &two), (5, &three)] {
            file.put(slot, Some(flow)).unwrap();
        }
        file.put(1, None).unwrap();
        assert_eq!(read_connections(folder.path()).unwrap(), [one, two, three]);
        let again = ConnectionFile::open(folder.path()).unwrap();
        assert_eq!(read_connections(folder.path()).unwrap().len(), 3);
        again.truncate(3).unwrap();
        assert_eq!(read_connections(folder.path()).unwrap(), [one, two]);
    }

    #[test]
    fn what_is_no_connection_is_not_read_as_one() {
        let folder = tempfile::tempdir().unwrap();
        let mut bytes = write(&flow(1, "203.0.113.7")).to_vec();
        bytes.extend([4; 31]);
        std::fs::write(path(folder.path()), &bytes).unwrap();
        assert_eq!(read_connections(folder.path()).unwrap().len(), 1, "the last is not whole");
        let much = vec![4; SLOT_BYTES * (SLOTS_MAX + 9)];
        std::fs::write(path(folder.path()), &much).unwrap();
        // No address of IPv4 begins so.
        assert_eq!(read_connections(folder.path()).unwrap(), []);
        std::fs::write(path(folder.path()), much.iter().map(|_| 6).collect::<Vec<_>>()).unwrap();
        assert_eq!(read_connections(folder.path()).unwrap().len(), SLOTS_MAX);
        std::fs::remove_file(path(folder.path())).unwrap();
        std::os::unix::fs::symlink("/dev/zero", path(folder.path())).unwrap();
        assert!(read_connections(folder.path()).is_err(), "a gateway that was taken over");
        assert!(ConnectionFile::open(folder.path()).is_err());
    }
}
