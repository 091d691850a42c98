//! What the resolver has answered: for which names a sandbox knows an address.
//!
//! An answer is remembered for the life of the sandbox, because programs keep addresses longer than
//! they may. The least used goes first.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use forkd_types::network::DomainName;

use crate::limit::{NAMES_PER_PIN_MAX, PINS_MAX};

/// Addresses and their names.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pins {
    addresses: HashMap<IpAddr, Pin>,
    /// Each address by the time of its last use.
    uses: BTreeMap<u64, IpAddr>,
    clock: u64,
}

#[derive(Debug, Clone, Default)]
struct Pin {
    /// The one asked for last comes last.
    names: Vec<DomainName>,
    used: u64,
}

impl Pins {
    /// Remembers an answer.
    pub(crate) fn add(&mut self, name: &DomainName, address: IpAddr) {
        let used = self.touch(address);
        let pin = self.addresses.entry(address).or_default();
        pin.used = used;
        pin.names.retain(|known| known != name);
        if pin.names.len() == NAMES_PER_PIN_MAX {
            pin.names.remove(0);
        }
        pin.names.push(name.clone());
        if self.addresses.len() > PINS_MAX
            && let Some((_, oldest)) = self.uses.pop_first()
        {
            self.addresses.remove(&oldest);
        }
    }

    /// The names of an address, which counts as a use.
    pub(crate) fn names(&mut self, address: IpAddr) -> &[DomainName] {
        if !self.addresses.contains_key(&address) {
            return &[];
        }
        let used = self.touch(address);
        let pin = self.addresses.entry(address).or_default();
        pin.used = used;
        &pin.names
    }

    /// Whether the resolver gave this address for this name.
    pub(crate) fn has(&self, address: IpAddr, name: &DomainName) -> bool {
        self.addresses.get(&address).is_some_and(|pin| pin.names.contains(name))
    }

    fn touch(&mut self, address: IpAddr) -> u64 {
        if let Some(pin) = self.addresses.get(&address) {
            self.uses.remove(&pin.used);
        }
        self.clock += 1;
        self.uses.insert(self.clock, address);
        self.clock
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn name(text: &str) -> DomainName {
        text.parse().unwrap()
    }

    #[test]
    fn the_least_used_address_goes_first() {
        let mut pins = Pins::default();
        let address = |n: usize| IpAddr::from(Ipv4Addr::from_bits(u32::try_from(n).unwrap()));
        for n in 0..PINS_MAX {
            pins.add(&name("a.example"), address(n));
        }
        assert_eq!(pins.names(address(0)), [name("a.example")]);
        pins.add(&name("a.example"), address(PINS_MAX));
        assert!(pins.has(address(0), &name("a.example")), "it was used");
        assert!(!pins.has(address(1), &name("a.example")));
        assert!(pins.names(address(1)).is_empty());
        assert_eq!((pins.addresses.len(), pins.uses.len()), (PINS_MAX, PINS_MAX));
    }

    #[test]
    fn an_address_keeps_the_names_asked_for_last() {
        let mut pins = Pins::default();
        let address = IpAddr::from(Ipv4Addr::new(203, 0, 113, 7));
        for n in 0..=NAMES_PER_PIN_MAX {
            pins.add(&name(&format!("n{n}.example")), address);
        }
        pins.add(&name("n1.example"), address);
        assert!(!pins.has(address, &name("n0.example")));
        assert!(pins.has(address, &name("n1.example")));
        assert_eq!(pins.names(address).len(), NAMES_PER_PIN_MAX);
    }
}
