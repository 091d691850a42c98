//! What the daemon and the shim say to each other over their `SOCK_SEQPACKET` socket.
//!
//! One packet a request, one packet a reply. All numbers are native-endian: both ends run on one
//! machine. The shim is versioned with the daemon; the first request checks that.

/// Raised when a request changes its meaning. An operation that a shim does not know is refused.
pub const VERSION: u32 = 2;

/// Environment variable that tells the shim the number of its listening socket.
pub const LISTEN_FD_VARIABLE: &str = "FORKD_SHIM_FD";

/// Environment variable that tells the shim the number of the far end of the VMM's network device.
pub const LINK_FD_VARIABLE: &str = "FORKD_SHIM_LINK_FD";

/// Environment variable that tells the shim to filter the VMM's system calls.
pub const FILTER_VARIABLE: &str = "FORKD_SHIM_FILTER";

/// Mappings in one request: keeps a packet under the default socket buffer.
pub const MAPPINGS_PER_REQUEST_MAX: usize = 2048;

/// Bytes of the longest request.
pub const REQUEST_BYTES_MAX: usize = HEADER_BYTES + MAPPINGS_PER_REQUEST_MAX * Mapping::BYTES;

/// Bytes before the mappings of a request.
pub const HEADER_BYTES: usize = 12;

/// Bytes of a reply: an `i32`, 0 or a positive error number.
pub const REPLY_BYTES: usize = 4;

/// What is asked of the shim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Create a userfaultfd and send it back: by the attached `/dev/userfaultfd`, if there is one.
    Userfaultfd = 1,
    /// Map ranges of the attached file copy-on-write over existing memory.
    Map = 2,
    /// Send back the far end of the VMM's network device.
    NetworkLink = 3,
    /// Map ranges of zeros over existing memory; their offsets do not matter.
    MapZeros = 4,
}

impl Operation {
    /// The operation with this number.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        match number {
            1 => Some(Self::Userfaultfd),
            2 => Some(Self::Map),
            3 => Some(Self::NetworkLink),
            4 => Some(Self::MapZeros),
            _ => None,
        }
    }
}

/// One range, to be mapped at a fixed address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapping {
    /// Where in the VMM's address space.
    pub address: u64,
    /// How many bytes.
    pub length: u64,
    /// Where in the attached file.
    pub file_offset: u64,
}

impl Mapping {
    /// Bytes of one mapping on the wire.
    pub const BYTES: usize = 24;

    fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.address.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.length.to_ne_bytes());
        bytes[16..].copy_from_slice(&self.file_offset.to_ne_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| bytes.get(at..at + 8)?.try_into().ok().map(u64::from_ne_bytes);
        Some(Self { address: word(0)?, length: word(8)?, file_offset: word(16)? })
    }
}

/// The bytes of a request.
///
/// # Panics
/// With more than [`MAPPINGS_PER_REQUEST_MAX`] mappings.
#[must_use]
pub fn encode_request(operation: Operation, mappings: &[Mapping]) -> Vec<u8> {
    assert!(mappings.len() <= MAPPINGS_PER_REQUEST_MAX);
    let count = u32::try_from(mappings.len()).unwrap_or(u32::MAX);
    let mut bytes = Vec::with_capacity(HEADER_BYTES + mappings.len() * Mapping::BYTES);
    bytes.extend(VERSION.to_ne_bytes());
    bytes.extend((operation as u32).to_ne_bytes());
    bytes.extend(count.to_ne_bytes());
    for mapping in mappings {
        bytes.extend(mapping.to_bytes());
    }
    bytes
}

/// A request, or `None` when the packet is not one of this version.
#[must_use]
pub fn decode_request(packet: &[u8]) -> Option<(Operation, Vec<Mapping>)> {
    let word = |at: usize| packet.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
    let (version, operation, count) = (word(0)?, word(4)?, word(8)?);
    let body = packet.get(HEADER_BYTES..)?;
    let count = usize::try_from(count).ok()?;
    if version != VERSION
        || count > MAPPINGS_PER_REQUEST_MAX
        || body.len() != count * Mapping::BYTES
    {
        return None;
    }
    let mappings = body.chunks_exact(Mapping::BYTES).filter_map(Mapping::from_bytes).collect();
    Some((Operation::from_number(operation)?, mappings))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_survives_the_wire_and_a_cut_one_is_refused() {
        let mappings = [
            Mapping { address: 0x7f00_0000_0000, length: 4096, file_offset: 8192 },
            Mapping { address: 1, length: 2, file_offset: 3 },
        ];
        let bytes = encode_request(Operation::Map, &mappings);
        assert_eq!(decode_request(&bytes), Some((Operation::Map, mappings.to_vec())));
        for cut in 0..bytes.len() {
            assert_eq!(decode_request(&bytes[..cut]), None, "cut at {cut}");
        }
    }

    #[test]
    fn another_version_is_refused() {
        let mut bytes = encode_request(Operation::Userfaultfd, &[]);
        assert!(decode_request(&bytes).is_some());
        bytes[0] ^= 0xFF;
        assert_eq!(decode_request(&bytes), None);
    }
}
