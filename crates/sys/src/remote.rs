//! Reading another process's memory.
//!
//! `process_vm_readv(2)` copies straight from the other process's pages, without the intermediate
//! page that `/proc/PID/mem` uses. It needs the permission to trace the process: the same user, and
//! with Yama's `ptrace_scope=1` the shim's word that we may.

use std::io;

use rustix::process::Pid;

/// Another process's address space, for reading.
#[derive(Debug, Clone, Copy)]
pub struct RemoteMemory {
    pid: Pid,
}

impl RemoteMemory {
    /// The memory of process `pid`. Whether it may be read shows at the first read.
    #[must_use]
    pub fn of(pid: Pid) -> Self {
        Self { pid }
    }

    /// Fills `into` with the bytes at `address`.
    ///
    /// The bytes are a consistent cut only if the process cannot write them meanwhile; that is the
    /// caller's business (pages are write-protected first).
    ///
    /// # Errors
    /// `ESRCH` when the process is gone, `EPERM` when we may not trace it, `EFAULT` when part of
    /// the range is not mapped. Never a partial success.
    pub fn read(&self, address: u64, into: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < into.len() {
            let rest = &mut into[done..];
            let local = libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() };
            let at = usize::try_from(address).map_err(io::Error::other)? + done;
            let remote =
                libc::iovec { iov_base: std::ptr::without_provenance_mut(at), iov_len: rest.len() };
            // JUSTIFICATION: rustix does not offer process_vm_readv.
            // SAFETY: `local` describes exactly the exclusively borrowed rest of `into`, which the
            // kernel may overwrite with any bytes; the remote address is only ever interpreted in
            // the other process, where a bad one gives EFAULT.
            let got = unsafe {
                libc::process_vm_readv(
                    self.pid.as_raw_nonzero().get(),
                    &raw const local,
                    1,
                    &raw const remote,
                    1,
                    0,
                )
            };
            match usize::try_from(got) {
                Err(_) => {
                    let error = io::Error::last_os_error();
                    if error.kind() != io::ErrorKind::Interrupted {
                        return Err(error);
                    }
                }
                Ok(0) => return Err(io::Error::from_raw_os_error(libc::EFAULT)),
                Ok(bytes) => done += bytes,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_own_memory_through_the_kernel() {
        let source: Vec<u8> = (0..20_000u32).map(|i| i.to_le_bytes()[0] ^ 0x5a).collect();
        let mut copy = vec![0; source.len()];
        let me = RemoteMemory::of(rustix::process::getpid());
        me.read(source.as_ptr().addr() as u64, &mut copy).unwrap();
        assert_eq!(source, copy);
    }

    #[test]
    fn an_unmapped_address_is_an_error_not_a_short_read() {
        let me = RemoteMemory::of(rustix::process::getpid());
        let error = me.read(4096, &mut [0; 16]).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
    }
}
