//! The interval timer of a PC, the Intel 8254. A machine begins with its channel 0 running, 18
//! times a second, whether anybody wants its interrupts or not. An emulated one costs its host two
//! wake-ups each time. Linux stops it by itself from 6.12 on.

use std::io;

const CHANNEL_0: u16 = 0x40;
const CONTROL: u16 = 0x43;
/// All of its ports.
const PORTS: libc::c_ulong = 4;
/// Channel 0, low byte, then high byte, mode 0: it counts down once and stays there.
const COUNT_ONCE: u8 = 0x30;

/// Lets channel 0 count down once more, within 55 ms, and then stand still. Needs the right to raw
/// I/O. For a kernel that keeps time by this channel, time would stop: see
/// `/sys/devices/system/clockevents`.
///
/// # Errors
/// `PermissionDenied` without that right; `Unsupported` if the kernel gives no ports to processes.
pub fn stop() -> io::Result<()> {
    let _ports = Ports::open()?;
    write(CONTROL, COUNT_ONCE);
    write(CHANNEL_0, 0);
    write(CHANNEL_0, 0);
    Ok(())
}

/// This thread's access to the ports.
struct Ports(());

impl Ports {
    fn open() -> io::Result<Self> {
        set_access(true).map(|()| Self(()))
    }
}

impl Drop for Ports {
    fn drop(&mut self) {
        // It can only be given up: the thread has it.
        set_access(false).ok();
    }
}

fn set_access(allowed: bool) -> io::Result<()> {
    // JUSTIFICATION: rustix has no `ioperm`.
    // SAFETY: the call takes numbers alone, and changes what this thread may do.
    let result = unsafe { libc::ioperm(CHANNEL_0.into(), PORTS, allowed.into()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn write(port: u16, value: u8) {
    // JUSTIFICATION: there is no other way to reach a port where the kernel has no `/dev/port`.
    // SAFETY: it is called with access to the ports alone, and they are of a timer, which reaches
    // no memory.
    unsafe {
        core::arch::asm!("out dx, al", in("dx") port, in("al") value,
            options(nomem, nostack, preserves_flags));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Not [`stop`]: it would stop that of this machine.
    #[test]
    fn access_to_the_ports_is_refused_as_documented_where_it_is() {
        if let Err(error) = Ports::open() {
            let documented = [io::ErrorKind::PermissionDenied, io::ErrorKind::Unsupported];
            assert!(documented.contains(&error.kind()), "{error:?}");
        }
    }
}
