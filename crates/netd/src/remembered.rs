//! Keeps a file of the connections that the guest believes in, for whoever comes after this process
//! if it dies: they end then.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;

use forkd_netd_protocol::{ConnectionFile, TcpFlow};

use crate::flow::FlowKey;

/// The file of one link. It is made with the first connection.
#[derive(Debug)]
pub(crate) struct Remembered {
    folder: PathBuf,
    file: Option<ConnectionFile>,
    slots: HashMap<FlowKey, Slot>,
    free: Vec<usize>,
    /// It cannot be written. A guest decides how often that would be tried.
    failed: bool,
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    number: usize,
    /// The guest has not told yet what it expects.
    is_new: bool,
}

impl Remembered {
    /// For the guest with this folder. What an earlier process has left there stays until
    /// [`Self::begun`].
    pub(crate) fn new(folder: PathBuf) -> Self {
        Self { folder, file: None, slots: HashMap::new(), free: Vec::new(), failed: false }
    }

    /// Forgets what an earlier process has left. Who reads meanwhile misses nothing: connections
    /// that were there and are noted again, in the same order, have got a slot before the one that
    /// they had.
    pub(crate) fn begun(&mut self) {
        let left = forkd_netd_protocol::read_connections(&self.folder);
        if left.is_ok_and(|left| left.len() > self.slots.len()) {
            let slots = self.slots.len();
            self.change(|file| file.truncate(slots));
        }
    }

    /// Notes a connection that the guest is about to learn of.
    pub(crate) fn begin(&mut self, key: FlowKey, flow: &TcpFlow) {
        self.note(key, flow, true);
    }

    /// Notes a connection, if it was not.
    pub(crate) fn add(&mut self, key: FlowKey, flow: &TcpFlow) {
        if self.slots.get(&key).is_none_or(|slot| slot.is_new) {
            self.note(key, flow, false);
        }
    }

    fn note(&mut self, key: FlowKey, flow: &TcpFlow, is_new: bool) {
        let next = || self.free.pop().unwrap_or(self.slots.len());
        let number = self.slots.get(&key).map_or_else(next, |slot| slot.number);
        self.slots.insert(key, Slot { number, is_new });
        self.change(|file| file.put(number, Some(flow)));
    }

    /// Forgets a connection, if it was noted.
    pub(crate) fn remove(&mut self, key: FlowKey) {
        if let Some(Slot { number, .. }) = self.slots.remove(&key) {
            self.free.push(number);
            self.change(|file| file.put(number, None));
        }
    }

    fn change(&mut self, change: impl FnOnce(&ConnectionFile) -> io::Result<()>) {
        if self.failed {
            return;
        }
        let file = match self.file.take() {
            Some(file) => Ok(file),
            None => ConnectionFile::open(&self.folder),
        };
        match file.and_then(|file| change(&file).map(|()| file)) {
            Ok(file) => self.file = Some(file),
            Err(error) => {
                self.failed = true;
                tracing::warn!(%error, "connections would outlive this process");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use forkd_netd_protocol::read_connections;

    use super::*;

    fn connection(guest_port: u16) -> (FlowKey, TcpFlow) {
        let remote = SocketAddr::from(([203, 0, 113, 7], 80));
        let (ip, remote_port) = (remote.ip(), remote.port());
        let flow = TcpFlow { guest_port, remote: ip, remote_port, expected: 5, sent: 7 };
        (FlowKey { guest_port, remote }, flow)
    }

    #[test]
    fn who_reads_while_the_next_gateway_begins_misses_no_connection() {
        let folder = tempfile::tempdir().unwrap();
        let read = || {
            let mut ports: Vec<_> = read_connections(folder.path()).unwrap();
            ports.dedup();
            ports.iter().map(|flow| flow.guest_port).collect::<std::collections::BTreeSet<_>>()
        };
        let [(first, gone), (second, left), (third, last)] = [1, 2, 3].map(connection);
        let mut former = Remembered::new(folder.path().to_owned());
        for (key, flow) in [(first, gone), (second, left), (third, last)] {
            former.begin(key, &flow);
        }
        former.remove(first);
        let known = read();
        assert_eq!(known, [2, 3].into());
        let mut next = Remembered::new(folder.path().to_owned());
        assert_eq!(read(), known);
        next.add(second, &left);
        assert_eq!(read(), known);
        next.add(third, &last);
        assert_eq!(read(), known);
        next.begun();
        assert_eq!(read_connections(folder.path()).unwrap(), [left, last]);
        next.remove(second);
        assert_eq!(read(), [3].into());
        // Of a gateway without any.
        Remembered::new(folder.path().to_owned()).begun();
        assert!(read().is_empty());
    }
}
