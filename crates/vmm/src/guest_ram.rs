//! Where guest RAM is in the VMM's address space.

use std::fs;
use std::path::Path;

use forkd_types::ByteCount;
use rustix::process::Pid;

use crate::VmmError;

/// The range of the VMM's address space that is guest RAM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GuestRam {
    /// The VMM process.
    pub pid: Pid,
    /// First byte, in that process.
    pub address: u64,
    /// Size of RAM.
    pub length: ByteCount,
}

impl GuestRam {
    /// Finds the mapping of `backing` in process `pid`.
    ///
    /// # Errors
    /// When the file is not mapped there, or with another size.
    pub(crate) fn find(pid: Pid, backing: &Path, length: ByteCount) -> Result<Self, VmmError> {
        let maps_path = format!("/proc/{}/maps", pid.as_raw_nonzero());
        let maps = fs::read_to_string(&maps_path)
            .map_err(|source| VmmError::file("read", maps_path, source))?;
        let missing =
            || VmmError::NoGuestRam { path: backing.to_owned(), pid: pid.as_raw_nonzero().get() };
        let (start, end) = find_range(&maps, &backing.to_string_lossy()).ok_or_else(missing)?;
        if end - start == length.get() {
            Ok(Self { pid, address: start, length })
        } else {
            Err(missing())
        }
    }
}

/// The contiguous range that `/proc/PID/maps` shows for `path`.
fn find_range(maps: &str, path: &str) -> Option<(u64, u64)> {
    let mut range: Option<(u64, u64)> = None;
    for line in maps.lines() {
        let mut fields = line.splitn(6, ' ');
        let (Some(addresses), Some(name)) = (fields.next(), fields.nth(4)) else { continue };
        if name.trim_start() != path {
            continue;
        }
        let (start, end) = addresses.split_once('-')?;
        let start = u64::from_str_radix(start, 16).ok()?;
        let end = u64::from_str_radix(end, 16).ok()?;
        range = match range {
            Some((first, last)) if last == start => Some((first, end)),
            Some(_) => return None,
            None => Some((start, end)),
        };
    }
    range
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
7f0000000000-7f0000001000 rw-p 00000000 00:1 5 /dev/shm/other
7f1000000000-7f1010000000 rw-p 00000000 00:1 7 /dev/shm/ram
7f1010000000-7f1020000000 rw-p 10000000 00:1 7 /dev/shm/ram
7f2000000000-7f2000001000 rw-p 00000000 00:1 5 /dev/shm/split
7f3000000000-7f3000001000 rw-p 00000000 00:1 5 /dev/shm/split
";

    #[test]
    fn adjacent_parts_of_one_file_are_one_range() {
        let want = Some((0x7f10_0000_0000, 0x7f10_2000_0000));
        assert_eq!(find_range(MAPS, "/dev/shm/ram"), want);
    }

    #[test]
    fn a_name_that_only_ends_alike_is_another() {
        assert_eq!(find_range(MAPS, "/ram"), None);
    }

    #[test]
    fn an_absent_or_torn_mapping_is_not_found() {
        assert_eq!(find_range(MAPS, "/dev/shm/absent"), None);
        assert_eq!(find_range(MAPS, "/dev/shm/split"), None);
    }
}
