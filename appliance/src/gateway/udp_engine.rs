//! The interface of an engine over UDP to its owner ([`super::udp_engines`]).

use super::rendezvous::exchange::Exchange;
use crate::config::Config;
use crate::console::{Managed, Progress, UsnicVerb};
use core::net::{Ipv4Addr, SocketAddrV4};
use drivers::hal::{Instant, UdpFlow, Window};
use management::status::UsnicStatus;
use messaging::usnic::UsnicTransport;
use net::datagram::Datagram;
use net::refusal::Refusals;

/// Most bytes of an engine's own header.
pub(super) const MOST_HEAD: usize = 64;

/// An engine over UDP. It does no I/O, and nothing in it blocks.
pub(super) trait UdpEngine {
    /// Its name in commands and `show`.
    fn name(&self) -> &'static str;
    /// Its UDP ports, each with the index of the plane's port.
    fn ports(&self) -> Vec<(usize, u16)>;
    /// Flows with many datagrams, and the index of their port. A port receives them in a queue of their own if it can.
    fn flows(&self) -> Vec<(usize, UdpFlow)>;
    /// Destinations of its datagrams: indices of ports, and addresses.
    fn peers(&self) -> Vec<(usize, Ipv4Addr)>;
    /// Handles a datagram at the port with index `port`. It is complete, and its checksum is valid.
    fn receive(&mut self, port: usize, datagram: &Datagram<'_>, now: Instant);
    /// Polls its users. Returns the amount of work.
    fn poll(&mut self, now: Instant) -> usize;
    /// The next datagram to send, if there is one. It counts as sent.
    fn poll_transmit(&mut self, now: Instant) -> Option<Outgoing<'_>>;
    /// When the next timer expires.
    fn deadline(&mut self) -> Option<Instant>;
    /// The engine as a transport of rules, if it is one. Sets the flag when rules have used it.
    fn rules<'a>(
        &'a mut self,
        _touched: &'a mut bool,
        _now: Instant,
    ) -> Option<UsnicTransport<'a>> {
        None
    }
    /// Limits the packets that it sends through the port with index `port` to `mtu` bytes (IPv4), from the next message
    /// on: the network passes no more.
    fn limit_packets(&mut self, port: usize, mtu: usize);
    /// Applies settings that can change at run time.
    fn configure(&mut self, config: &Config, now: Instant);
    /// Its refusals.
    fn refusals(&mut self) -> &mut Refusals;
    /// Status for reports.
    fn status(&self) -> UsnicStatus<'_>;
    /// Executes an order of the console.
    fn order(&mut self, verb: UsnicVerb, words: &[&str], now: Instant) -> Result<Managed, String>;
    /// The next progress of a running order.
    fn progress(&mut self, now: Instant) -> Option<Progress>;
    /// Cancels the running order.
    fn cancel(&mut self);
    /// Its handler of `rendezvous` records, if it has one.
    fn exchange(&mut self) -> Option<&mut dyn Exchange> {
        None
    }
}

/// A datagram to send.
pub(super) struct Outgoing<'a> {
    /// Index of the port.
    pub port: usize,
    pub from: SocketAddrV4,
    pub to: SocketAddrV4,
    /// Its first bytes, at most [`MOST_HEAD`].
    pub head: &'a [u8],
    /// The rest, in place.
    pub tail: &'a [Window],
}
