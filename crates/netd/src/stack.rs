//! TCP towards the guest: a stack that has every address, with one set of sockets for each
//! connection. The stack alone would look at all sockets for each segment.

use std::cell::RefCell;
use std::time::Instant;

use forkd_types::network::{
    GATEWAY_IPV4, GATEWAY_IPV6, LINK_MTU, LINK_PREFIX_IPV4, LINK_PREFIX_IPV6,
};
use smoltcp::iface::{Config, Interface, PollResult, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant as StackInstant;
use smoltcp::wire::{HardwareAddress, IpCidr};

use crate::port::Port;
use crate::wire::{ETHERNET_BYTES, checksums, write_ethernet};

/// The stack of one link.
pub(crate) struct Stack {
    interface: Interface,
    start: Instant,
}

impl Stack {
    pub(crate) fn new() -> Self {
        let start = Instant::now();
        let mut config = Config::new(HardwareAddress::Ip);
        let mut seed = [0; 8];
        // Sequence numbers must not be guessed; the guest alone could, and it may reset itself.
        if getrandom::fill(&mut seed).is_ok() {
            config.random_seed = u64::from_ne_bytes(seed);
        }
        let mut interface = Interface::new(config, &mut Capabilities, StackInstant::ZERO);
        interface.update_ip_addrs(|addresses| {
            let own = [
                IpCidr::new(GATEWAY_IPV4.into(), LINK_PREFIX_IPV4),
                IpCidr::new(GATEWAY_IPV6.into(), LINK_PREFIX_IPV6),
            ];
            addresses.extend(own);
        });
        // All others as well: a route by an own address makes them the stack's.
        let routes = interface.routes_mut();
        routes.add_default_ipv4_route(GATEWAY_IPV4).ok();
        routes.add_default_ipv6_route(GATEWAY_IPV6).ok();
        interface.set_any_ip(true);
        Self { interface, start }
    }

    fn now(&self) -> StackInstant {
        let micros = self.start.elapsed().as_micros();
        StackInstant::from_micros(i64::try_from(micros).unwrap_or(i64::MAX))
    }

    /// Gives a segment of the guest to the connection whose set this is. A set that does not know
    /// the segment resets it.
    pub(crate) fn ingest(&mut self, port: &mut Port, packet: &[u8], sockets: &mut SocketSet<'_>) {
        let now = self.now();
        let mut link = Link { packet: Some(packet), port };
        self.interface.poll_ingress_single(now, &mut link, sockets);
    }

    /// Sends a segment that the connection has ready; whether there was one.
    pub(crate) fn egress(&mut self, port: &mut Port, sockets: &mut SocketSet<'_>) -> bool {
        let now = self.now();
        let mut link = Link { packet: None, port };
        self.interface.poll_egress(now, &mut link, sockets) == PollResult::SocketStateChanged
    }

    /// When the connection has something to send if nothing comes before.
    pub(crate) fn next(&mut self, sockets: &SocketSet<'_>) -> Option<Instant> {
        let at = self.interface.poll_at(self.now(), sockets)?;
        Some(
            self.start
                + std::time::Duration::from_micros(at.total_micros().try_into().unwrap_or(0)),
        )
    }

    /// What a connection to the guest needs to begin.
    pub(crate) fn interface(&mut self) -> &mut Interface {
        &mut self.interface
    }
}

/// The link as the stack sees it during one call.
struct Link<'a> {
    packet: Option<&'a [u8]>,
    port: &'a mut Port,
}

fn capabilities() -> DeviceCapabilities {
    let mut capabilities = DeviceCapabilities::default();
    capabilities.medium = Medium::Ip;
    capabilities.max_transmission_unit = LINK_MTU;
    capabilities.checksum = checksums();
    capabilities
}

impl Device for Link<'_> {
    type RxToken<'a>
        = Received<'a>
    where
        Self: 'a;
    type TxToken<'a>
        = Sending<'a>
    where
        Self: 'a;

    fn receive(&mut self, _: StackInstant) -> Option<(Received<'_>, Sending<'_>)> {
        let packet = self.packet.take()?;
        Some((Received(packet), Sending(self.port)))
    }

    fn transmit(&mut self, _: StackInstant) -> Option<Sending<'_>> {
        self.port.is_free().then_some(Sending(self.port))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        capabilities()
    }
}

/// A segment of the guest.
struct Received<'a>(&'a [u8]);

impl RxToken for Received<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(self.0)
    }
}

/// A segment to the guest.
struct Sending<'a>(&'a mut Port);

thread_local! {
    /// Where frames are made: one for all links of a thread, so that idle ones cost little.
    static FRAME: RefCell<Vec<u8>> = RefCell::new(vec![0; ETHERNET_BYTES + LINK_MTU]);
}

impl TxToken for Sending<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, bytes: usize, f: F) -> R {
        FRAME.with_borrow_mut(|frame| {
            let frame = &mut frame[..ETHERNET_BYTES + bytes];
            let result = f(&mut frame[ETHERNET_BYTES..]);
            write_ethernet(frame);
            self.0.send(frame);
            result
        })
    }
}

/// A device that is only asked what it can do.
struct Capabilities;

impl Device for Capabilities {
    type RxToken<'a> = Received<'a>;
    type TxToken<'a> = Sending<'a>;

    fn receive(&mut self, _: StackInstant) -> Option<(Received<'_>, Sending<'_>)> {
        None
    }

    fn transmit(&mut self, _: StackInstant) -> Option<Sending<'_>> {
        None
    }

    fn capabilities(&self) -> DeviceCapabilities {
        capabilities()
    }
}
