//! All RDMA devices of a loop as one provider: RoCE in software over its ports, cards that do RoCE (at most two
//! ConnectX), and NTRDMA over bridges. A user listens once, gets the completions of all devices in one queue, and may
//! have connections over all of them. So one server has sessions over all devices, and each protocol is in the image
//! once.
//!
//! ```text
//!    rtrs   smcr   perf_responders
//!       └─────┼──────────┘  verbs::Provider
//!             ▼
//!       provider set ── two bits of a handle ──► roce | connectx 0, 1 | ntrdma
//! ```
//!
//! Invariants:
//!
//! * A handle of one device never reaches another device.
//! * RoCE alone costs one test of a bit per verb.
//!
//! Tests: `tests/conformance` (all providers through the set), the suites `mlx5`, `ntb_netdev`.
//!
//! # Names
//!
//! Queue pairs, regions and connections belong to one device. Two bits of their handles select it (`names`). So there
//! are three devices beside RoCE: three bridges, or in an image with ConnectX two cards and a bridge. Completion queues
//! belong to all devices. A protection domain has RoCE's handle; `pd_on` returns its handle on another device (the one
//! with a given local address), where it is made with its first object.
//!
//! No code of the other devices is inlined into the data path of RoCE; the selection costs a test of a bit per verb.
//!
//! # Cards
//!
//! The function of a ConnectX is shared between its Ethernet port, which the loop uses as any other, and its provider
//! (`connectx::Function`), each for one call at a time. It belongs to one core: the port goes to that core before the
//! provider is made. A card that several cores share does no RoCE: it has one queue pair 1, and one owner of commands,
//! events and doorbells. Further owners (`ethernet::mlx5::split`) have a pair of queues, an event queue for completions
//! only, a doorbell page and a vector, but no commands.
//!
//! The loop polls cards before `serve` (`poll_cards`), rings their doorbells after it (`flush_cards`), and arms their
//! completion queue with the ports' interrupts before a halt.
//!
//! # Neighbours
//!
//! A message of the connection manager waits until the control plane, on request (`next_stranger`; from another core
//! through the port's ring), has resolved the host (`learn_neighbour_at`, `lose_neighbour_at`).
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
#[cfg(test)]
extern crate std;

mod beside;
#[cfg(feature = "connectx")]
mod cards;
mod connections;
mod dispatch;
mod names;
#[cfg(not(feature = "connectx"))]
mod no_cards;
mod provider;

use alloc::vec::Vec;
use beside::SecondaryDevice;
use core::net::IpAddr;
use drivers::hal::{Hold, Instant, TransmitProgress};
use drivers::ntb::Bridge;
use ntrdma::Ntrdma;
use roce::Roce;

/// Owner of the bridge's device, in a build that has one.
#[cfg(feature = "ntrdma")]
type BridgeBox<T> = alloc::boxed::Box<T>;
/// Owner of the bridge's device, in a build that has none.
#[cfg(not(feature = "ntrdma"))]
type BridgeBox<T> = drivers::hal::Absent<T>;

/// All RDMA devices of a loop.
pub struct ProviderSet {
    /// The device of the ports.
    pub roce: Roce,
    bridged: Vec<BridgeBox<SecondaryDevice<Ntrdma>>>,
    #[cfg(feature = "connectx")]
    cards: Vec<cards::Card>,
}

impl ProviderSet {
    /// Most bridges with NTRDMA.
    pub const BRIDGES: usize = names::BRIDGES.len();

    /// A set of the ports' device and at most [`ProviderSet::BRIDGES`] devices of bridges. None has objects yet.
    pub fn new(roce: Roce, ntrdma: impl IntoIterator<Item = Ntrdma>) -> Self {
        let bridged = ntrdma.into_iter().zip(names::BRIDGES);
        ProviderSet {
            roce,
            bridged: bridged
                .filter_map(|(ntrdma, mark)| BridgeBox::hold(|| SecondaryDevice::new(ntrdma, mark)))
                .collect(),
            #[cfg(feature = "connectx")]
            cards: Vec::new(),
        }
    }

    /// The devices of bridges, in the order in which they were given.
    pub fn bridges(&self) -> impl Iterator<Item = &Ntrdma> {
        self.bridged.iter().map(|bridged| &bridged.device)
    }

    /// The device of the bridge with this number.
    pub fn ntrdma(&self, number: usize) -> Option<&Ntrdma> {
        self.bridged.get(number).map(|bridged| &bridged.device)
    }

    /// The device of the bridge with this number, for its Ethernet frames.
    pub fn ntrdma_mut(&mut self, number: usize) -> Option<&mut Ntrdma> {
        self.bridged.get_mut(number).map(|bridged| &mut bridged.device)
    }

    /// From now on memory is reused only when the ports have finished sending from it ([`ProviderSet::note_progress`]):
    /// for ports that read payload in place.
    pub fn wait_for_ports(&mut self) {
        self.roce.wait_for_ports();
    }

    /// Whether any memory waits for a port.
    #[inline]
    pub fn has_retired(&self) -> bool {
        self.roce.has_retired() || self.bridges().any(Ntrdma::has_retired)
    }

    /// Frees the memory that a port has finished sending. Call it for the ports in their order.
    pub fn note_progress(&mut self, port: usize, progress: TransmitProgress) {
        self.roce.note_progress(port, progress);
        for bridged in &mut self.bridged {
            bridged.device.note_progress(port, progress);
        }
    }

    /// Sets the addresses of the port at a place. False if its card has no room for all.
    pub fn set_addresses(&mut self, port: usize, addresses: Vec<IpAddr>) -> bool {
        #[cfg(feature = "connectx")]
        if let Some(card) = self.card_mut(port) {
            return card.set_addresses(&addresses);
        }
        self.roce.set_addresses(port, addresses);
        true
    }

    /// Sets the largest packets of the network of the port at a place in bytes (layer 3), over IPv4 and over IPv6. It
    /// holds for queue pairs that are connected from now on.
    pub fn set_mtus(&mut self, port: usize, mtus: [usize; 2]) {
        #[cfg(feature = "connectx")]
        if let Some(card) = self.card_mut(port) {
            return card.set_mtus(mtus);
        }
        self.roce.set_mtus(port, mtus);
    }

    /// Takes an answer of the neighbour table of the port with the local address `local`, as
    /// [`ProviderSet::learn_neighbour_at`].
    pub fn learn_neighbour(&mut self, local: IpAddr, ip: IpAddr, mac: [u8; 6], routed: bool) {
        #[cfg(feature = "connectx")]
        if let Some(port) = self.card_of(local) {
            return self.learn_neighbour_at(port, ip, mac, routed);
        }
        if let Some(port) = self.roce.port_of(local) {
            self.roce.learn_neighbour(port, ip, mac, routed);
        }
    }

    /// Takes an answer of the neighbour table of the port at a place: the next hop to a host, and whether that is a
    /// router.
    pub fn learn_neighbour_at(&mut self, port: usize, ip: IpAddr, mac: [u8; 6], routed: bool) {
        #[cfg(feature = "connectx")]
        if let Some(card) = self.card_mut(port) {
            return card.learn_neighbour(ip, mac, routed);
        }
        self.roce.learn_neighbour(port, ip, mac, routed);
    }

    /// The neighbour table of the port at a place failed to resolve a host.
    pub fn lose_neighbour_at(&mut self, port: usize, ip: IpAddr, now: Instant) {
        #[cfg(feature = "connectx")]
        if let Some(card) = self.card_mut(port) {
            return card.lose_neighbour(ip);
        }
        self.roce.lose_neighbour(port, ip, now);
    }

    /// The next host that a neighbour table is to resolve, with the place of its port.
    pub fn next_stranger(&mut self) -> Option<(usize, IpAddr)> {
        self.roce.next_stranger().or_else(|| self.next_stranger_of_cards())
    }

    /// Limits the path to `ip` to packets of `mtu` bytes (layer 3), until `until`.
    pub fn limit_path(&mut self, ip: IpAddr, mtu: usize, until: Instant) {
        self.roce.limit_path(ip, mtu, until);
        #[cfg(feature = "connectx")]
        self.cards.iter_mut().for_each(|card| card.secondary.device.limit_path(ip, mtu, until));
    }

    /// Disconnects all connections of the network in order.
    pub fn disconnect_all(&mut self, now: Instant) {
        self.roce.disconnect_all(now);
        #[cfg(feature = "connectx")]
        self.cards_disconnect_all(now);
    }

    /// Whether all peers have answered, or need not answer.
    pub fn is_disconnected(&self) -> bool {
        #[cfg(feature = "connectx")]
        if !self.cards_are_disconnected() {
            return false;
        }
        self.roce.is_disconnected()
    }

    /// From now on bytes that peers write may be forwarded to other peers.
    fn enable_forwarding(&mut self) {
        self.roce.passes_on();
        let ports = self.roce.waits_for();
        for bridged in &mut self.bridged {
            bridged.device.passes_on(ports);
        }
    }

    /// Handles what the machine at the other end of the bridge with this number has written, and writes what is due to
    /// it. Returns whether there is more to do at once.
    pub fn poll_bridge(&mut self, number: usize, bridge: &mut dyn Bridge, now: Instant) -> bool {
        self.bridged.get_mut(number).is_some_and(|bridged| bridged.device.poll(bridge, now))
    }
}
