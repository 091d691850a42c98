//! What the daemon and the shim say to each other over their `SOCK_SEQPACKET` socket.
//!
//! One packet a request, one packet a reply. All numbers are native-endian: both ends run on one
//! machine. The shim is versioned with the daemon; the first request checks that.

use std::time::Duration;

use forkd_types::limit;

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

/// Most threads in one request: those of all vCPUs that a guest can have.
pub const THREADS_PER_REQUEST_MAX: usize = limit::VCPUS_MAX as usize;

/// A hold of vCPUs that nobody has ended is over: some time after the daemon would end it.
pub const HOLD_MAX: Duration = Duration::from_secs(2);
const _: () = assert!(limit::VCPUS_HELD_MAX.as_millis() < HOLD_MAX.as_millis());

/// What is asked of the shim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Create a userfaultfd and send it back: by the attached `/dev/userfaultfd`, if there is one.
    Userfaultfd,
    /// Map ranges of the attached file copy-on-write over existing memory.
    Map(Vec<Mapping>),
    /// Send back the far end of the VMM's network device.
    NetworkLink,
    /// Map ranges of zeros over existing memory; their offsets do not matter.
    MapZeros(Vec<Mapping>),
    /// Keep the vCPUs from running guest code, whatever the VMM tells them, until they are
    /// released or [`HOLD_MAX`] has passed. Emulated ones are these threads of the VMM, as its own
    /// namespace numbers them; those on KVM are found where they enter it.
    HoldVcpus(Vec<u32>),
    /// Let held vCPUs go.
    ReleaseVcpus,
    /// Let the held vCPU go that is this thread of the VMM. Others stay held.
    ReleaseVcpu(u32),
}

impl Request {
    const fn number(&self) -> u32 {
        match self {
            Self::Userfaultfd => 1,
            Self::Map(_) => 2,
            Self::NetworkLink => 3,
            Self::MapZeros(_) => 4,
            Self::HoldVcpus(_) => 5,
            Self::ReleaseVcpus => 6,
            Self::ReleaseVcpu(_) => 7,
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
/// With more than [`MAPPINGS_PER_REQUEST_MAX`] mappings or [`THREADS_PER_REQUEST_MAX`] threads.
#[must_use]
pub fn encode_request(request: &Request) -> Vec<u8> {
    let mut body = Vec::new();
    let count = match request {
        Request::Map(mappings) | Request::MapZeros(mappings) => {
            assert!(mappings.len() <= MAPPINGS_PER_REQUEST_MAX);
            body.reserve_exact(mappings.len() * Mapping::BYTES);
            mappings.iter().for_each(|mapping| body.extend(mapping.to_bytes()));
            mappings.len()
        }
        Request::HoldVcpus(threads) => {
            assert!(threads.len() <= THREADS_PER_REQUEST_MAX);
            threads.iter().for_each(|thread| body.extend(thread.to_ne_bytes()));
            threads.len()
        }
        Request::ReleaseVcpu(thread) => {
            body.extend(thread.to_ne_bytes());
            1
        }
        Request::Userfaultfd | Request::NetworkLink | Request::ReleaseVcpus => 0,
    };
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    let head = [VERSION, request.number(), count].map(u32::to_ne_bytes);
    [head.as_flattened(), &body].concat()
}

/// A request, or `None` when the packet is not one of this version.
#[must_use]
pub fn decode_request(packet: &[u8]) -> Option<Request> {
    let word = |at: usize| packet.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
    let (version, number, count) = (word(0)?, word(4)?, word(8)?);
    let body = packet.get(HEADER_BYTES..)?;
    let count = usize::try_from(count).ok()?;
    let holds = |most: usize, bytes: usize| count <= most && body.len() == count * bytes;
    let mappings = || {
        let mappings = body.chunks_exact(Mapping::BYTES).filter_map(Mapping::from_bytes);
        holds(MAPPINGS_PER_REQUEST_MAX, Mapping::BYTES).then(|| mappings.collect())
    };
    let threads = || {
        let threads = body.chunks_exact(size_of::<u32>()).filter_map(|word| word.try_into().ok());
        holds(THREADS_PER_REQUEST_MAX, size_of::<u32>())
            .then(|| threads.map(u32::from_ne_bytes).collect())
    };
    let bare = |request: Request| body.is_empty().then_some(request).filter(|_| count == 0);
    if version != VERSION {
        return None;
    }
    match number {
        1 => bare(Request::Userfaultfd),
        2 => mappings().map(Request::Map),
        3 => bare(Request::NetworkLink),
        4 => mappings().map(Request::MapZeros),
        5 => threads().map(Request::HoldVcpus),
        6 => bare(Request::ReleaseVcpus),
        7 => match threads()?[..] {
            [thread] => Some(Request::ReleaseVcpu(thread)),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_survives_the_wire_and_a_cut_one_is_refused() {
        let mappings = vec![
            Mapping { address: 0x7f00_0000_0000, length: 4096, file_offset: 8192 },
            Mapping { address: 1, length: 2, file_offset: 3 },
        ];
        for request in [
            Request::Userfaultfd,
            Request::Map(mappings.clone()),
            Request::NetworkLink,
            Request::MapZeros(mappings),
            Request::HoldVcpus(vec![7, 4_000_000]),
            Request::ReleaseVcpus,
            Request::ReleaseVcpu(7),
        ] {
            let bytes = encode_request(&request);
            assert_eq!(decode_request(&bytes).as_ref(), Some(&request));
            for cut in 0..bytes.len() {
                assert_eq!(decode_request(&bytes[..cut]), None, "{request:?} cut at {cut}");
            }
            let longer = [&bytes[..], &[0; 4]].concat();
            assert_eq!(decode_request(&longer), None, "{request:?} with more behind it");
        }
    }

    #[test]
    fn another_version_and_an_unknown_number_are_refused() {
        let bytes = encode_request(&Request::Userfaultfd);
        assert!(decode_request(&bytes).is_some());
        for at in [0, 4] {
            let mut changed = bytes.clone();
            changed[at] ^= 0xFF;
            assert_eq!(decode_request(&changed), None);
        }
    }
}
