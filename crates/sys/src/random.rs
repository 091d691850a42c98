//! The kernel's random generator: add entropy and make it count at once.
//!
//! Two VMs from one image share the state of their generators until entropy is added *and* the
//! generator is reseeded; a plain write to `/dev/urandom` alone takes effect only at the next
//! regular reseed.

use std::io;
use std::os::fd::AsFd;

use rustix::ioctl;

/// Most bytes that one call adds.
pub const ENTROPY_BYTES_MAX: usize = 256;

/// `struct rand_pool_info` of `linux/random.h`, with room for the largest buffer.
#[repr(C)]
struct RandPoolInfo {
    entropy_count_bits: i32,
    buffer_bytes: i32,
    buffer: [u8; ENTROPY_BYTES_MAX],
}

// The kernel declares the argument as `int[2]`: the size of the header only.
const RNDADDENTROPY: ioctl::Opcode = ioctl::opcode::write::<[i32; 2]>(b'R', 0x03);
const RNDRESEEDCRNG: ioctl::Opcode = ioctl::opcode::none(b'R', 0x07);

const _: () = assert!(RNDADDENTROPY == 0x4008_5203 && RNDRESEEDCRNG == 0x5207);

/// Mixes `entropy` into the pool behind `random` (an open `/dev/urandom`) and credits all of it.
///
/// # Errors
/// `InvalidInput` for more than [`ENTROPY_BYTES_MAX`] bytes; `EPERM` without `CAP_SYS_ADMIN`.
pub fn add_entropy(random: impl AsFd, entropy: &[u8]) -> io::Result<()> {
    let mut info =
        RandPoolInfo { entropy_count_bits: 0, buffer_bytes: 0, buffer: [0; ENTROPY_BYTES_MAX] };
    let room = info.buffer.get_mut(..entropy.len()).ok_or(io::ErrorKind::InvalidInput)?;
    room.copy_from_slice(entropy);
    let bytes = i32::try_from(entropy.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    info.buffer_bytes = bytes;
    info.entropy_count_bits = bytes * 8;
    // JUSTIFICATION: no safe wrapper of this ioctl exists.
    // SAFETY: the opcode is RNDADDENTROPY, which reads a `rand_pool_info` whose `buf_size` bytes
    // follow it; `buffer_bytes` is at most the buffer's length. It writes nothing.
    unsafe { ioctl::ioctl(random, ioctl::Setter::<RNDADDENTROPY, RandPoolInfo>::new(info)) }?;
    Ok(())
}

/// Makes the generator behind `random` take a new key from the pool now.
///
/// # Errors
/// `EPERM` without `CAP_SYS_ADMIN`; `ENODATA` before the pool was first filled.
pub fn reseed(random: impl AsFd) -> io::Result<()> {
    // JUSTIFICATION: no safe wrapper of this ioctl exists.
    // SAFETY: the opcode is RNDRESEEDCRNG, which takes no argument and touches no memory of ours.
    unsafe { ioctl::ioctl(random, ioctl::NoArg::<RNDRESEEDCRNG>::new()) }?;
    Ok(())
}
