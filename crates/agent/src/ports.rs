//! Which TCP ports of the guest are listened on, and by whom.
//!
//! It is the kernel's list of sockets, `/proc/net/tcp` and `/proc/net/tcp6`. A line that is not
//! understood is left out: a later kernel may write others. The process that holds a socket is
//! found by its descriptors, and left out where it cannot be.

use std::collections::HashMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use forkd_protocol::Reply;

use crate::active::Active;

/// The kernel's word for a socket that listens.
const LISTENING: &str = "0A";

/// Descriptors that are looked at, so that a guest full of them is answered all the same.
const DESCRIPTORS_MAX: usize = 65_536;

/// A socket that listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Listener {
    address: SocketAddr,
    inode: u64,
}

/// Who holds a socket.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Holder {
    pid: u32,
    program: String,
}

/// Sends every port that is listened on, then the end.
pub(crate) fn list(active: &Active) {
    let mut listeners = Vec::new();
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        // A kernel without IPv6 has only one of them.
        listeners.extend(parse(&fs::read_to_string(table).unwrap_or_default()));
    }
    listeners.sort_unstable();
    let holders = holders(Path::new("/proc"), &listeners);
    for listener in &listeners {
        let holder = holders.get(&listener.inode);
        let reply = Reply::Port {
            address: listener.address.ip().to_string(),
            port: listener.address.port(),
            pid: holder.map(|holder| holder.pid),
            program: holder.map(|holder| holder.program.clone()),
        };
        if !active.send_when_allowed(&reply) {
            return;
        }
    }
    active.send(&Reply::Done {}, || {});
}

/// The listening sockets of a table of the kernel.
fn parse(table: &str) -> impl Iterator<Item = Listener> {
    table.lines().filter_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let local = fields.nth(1)?;
        let state = fields.nth(1)?;
        let inode = fields.nth(5)?.parse().ok()?;
        (state == LISTENING).then_some(())?;
        Some(Listener { address: address(local)?, inode })
    })
}

/// An address as the kernel writes it: words of 32 bits in the order of the machine's bytes, and a
/// port that reads as it is.
fn address(text: &str) -> Option<SocketAddr> {
    let (host, port) = text.split_once(':')?;
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !digits(host) || !digits(port) || port.len() != 4 {
        return None;
    }
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| {
        let word = u32::from_str_radix(host.get(at..at + 8)?, 16).ok()?;
        Some(word.to_ne_bytes())
    };
    let ip = match host.len() {
        8 => IpAddr::from(Ipv4Addr::from(word(0)?)),
        32 => {
            let mut bytes = [0; 16];
            for (at, part) in bytes.chunks_exact_mut(4).enumerate() {
                part.copy_from_slice(&word(at * 8)?);
            }
            IpAddr::from(Ipv6Addr::from(bytes))
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

/// The processes that hold these sockets, by the sockets' numbers. Of several that share one, the
/// one with the lowest number: its children have it from there.
fn holders(proc: &Path, listeners: &[Listener]) -> HashMap<u64, Holder> {
    let mut holders = HashMap::new();
    let mut missing: Vec<u64> = listeners.iter().map(|listener| listener.inode).collect();
    missing.sort_unstable();
    missing.dedup();
    let mut left = DESCRIPTORS_MAX;
    for pid in processes(proc) {
        if missing.is_empty() || left == 0 {
            break;
        }
        let directory = proc.join(pid.to_string());
        let descriptors = fs::read_dir(directory.join("fd")).into_iter().flatten().flatten();
        for descriptor in descriptors.take(left) {
            left -= 1;
            let Some(inode) = socket_of(&descriptor.path()) else { continue };
            let Ok(at) = missing.binary_search(&inode) else { continue };
            missing.remove(at);
            let program = fs::read_to_string(directory.join("comm")).unwrap_or_default();
            holders.insert(inode, Holder { pid, program: program.trim_end().to_owned() });
        }
    }
    holders
}

/// All processes, the oldest numbers first.
fn processes(proc: &Path) -> Vec<u32> {
    let entries = fs::read_dir(proc).into_iter().flatten().flatten();
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    let mut pids: Vec<u32> = entries.filter_map(number).collect();
    pids.sort_unstable();
    pids
}

/// The number of the socket that a descriptor is, if it is one.
fn socket_of(descriptor: &Path) -> Option<u64> {
    let target = fs::read_link(descriptor).ok()?;
    target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    const HEAD: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt\
           uid  timeout inode\n";

    fn parsed(table: &str) -> Vec<(String, u64)> {
        parse(table).map(|found| (found.address.to_string(), found.inode)).collect()
    }

    #[cfg(target_endian = "little")]
    #[test]
    fn only_listening_sockets_are_listed_with_their_addresses() {
        let rest = "00000000:00000000 00:00000000 00000000  1000        0";
        let table = format!(
            "{HEAD}\
             \x20  0: 0100007F:1F90 00000000:0000 0A {rest} 4711 1 ffff 100 0 0 10 0\n\
             \x20  1: 00000000:0050 00000000:0000 0A {rest} 4712\n\
             \x20  2: 0100007F:1F90 0100007F:A001 01 {rest} 4713 1\n\
             \x20  3: 0200 2A0A:0016 00000000:0000 0A {rest} 4714\n\
             \x20  4: 00000000000000000000000001000000:1389 \
             00000000000000000000000000000000:0000 0A {rest} 4715\n\
             \x20  5: 646B66FD00000000000000000200000:1389 0:0 0A {rest} 4716\n"
        );
        let expected = [
            ("127.0.0.1:8080".to_owned(), 4711),
            ("0.0.0.0:80".to_owned(), 4712),
            ("[::1]:5001".to_owned(), 4715),
        ];
        assert_eq!(parsed(&table), expected);
    }

    #[test]
    fn a_line_that_is_no_socket_is_left_out_whatever_it_is() {
        let rest = "0:0 0A 0:0 0:0 0 0 0";
        for local in [
            "",
            ":",
            "0100007F",
            "0100007F:",
            "0100007F:1F900",
            "0100007F:+F90",
            "+100007F:1F90",
            "0100007:1F90",
            "0100007FF:1F90",
            "zz00007F:1F90",
            "00é0007F:1F90",
            "0100007F0100007F:1F90",
        ] {
            assert_eq!(parsed(&format!("0: {local} {rest} 1\n")), [], "{local:?}");
        }
        for line in ["", "\0", "0: 0100007F:1F90", "0: 0100007F:1F90 0:0 0A 0:0 0:0 0 0 0 -1"] {
            assert_eq!(parsed(line), [], "{line:?}");
        }
        assert_eq!(parsed(&format!("0: 0100007F:1F90 {rest} 1")).len(), 1);
    }

    #[test]
    fn a_socket_of_this_process_is_found_with_its_holder() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(socket) = TcpListener::bind(address) else {
                assert!(!Path::new("/proc/net/tcp6").exists(), "it has IPv6, but not {address}");
                continue;
            };
            let own = socket.local_addr().unwrap();
            let table = if own.is_ipv4() { "/proc/net/tcp" } else { "/proc/net/tcp6" };
            let table = fs::read_to_string(table).unwrap();
            let found: Vec<_> = parse(&table).filter(|found| found.address == own).collect();
            assert_eq!(found.len(), 1, "{own}");
            let holder = &holders(Path::new("/proc"), &found)[&found[0].inode];
            let name = fs::read_to_string("/proc/self/comm").unwrap();
            assert_eq!(holder.pid, std::process::id());
            assert_eq!(holder.program, name.trim_end());
        }
    }
}
