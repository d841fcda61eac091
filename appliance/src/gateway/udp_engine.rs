//! What an engine over UDP is to whoever has several ([`super::udp_engines`]).

use super::rendezvous::exchange::Exchange;
use crate::config::Config;
use crate::console::{Managed, Progress};
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
    /// What commands and `show` call it.
    fn name(&self) -> &'static str;
    /// Its UDP ports, each with the place of the plane's port that it has them at.
    fn ports(&self) -> Vec<(usize, u16)>;
    /// Datagrams that come in numbers, and where: a port that can receive them in a queue of their own does.
    fn flows(&self) -> Vec<(usize, UdpFlow)>;
    /// Whom it sends to: places of ports, and addresses.
    fn peers(&self) -> Vec<(usize, Ipv4Addr)>;
    /// A datagram has arrived at the port of a place, whole and with a right checksum.
    fn receive(&mut self, port: usize, datagram: &Datagram<'_>, now: Instant);
    /// What its users have to do; how much was done.
    fn poll(&mut self, now: Instant) -> usize;
    /// The next datagram to send, if there is one. It counts as sent.
    fn poll_transmit(&mut self, now: Instant) -> Option<Outgoing<'_>>;
    /// When there is something to do though nothing arrives.
    fn deadline(&mut self) -> Option<Instant>;
    /// As a transport of rules, if it is one; it says so when it has something to do by that.
    fn rules<'a>(
        &'a mut self,
        _touched: &'a mut bool,
        _now: Instant,
    ) -> Option<UsnicTransport<'a>> {
        None
    }
    /// Heeds what can be changed while it runs.
    fn configure(&mut self, config: &Config, now: Instant);
    /// What it has refused.
    fn refusals(&mut self) -> &mut Refusals;
    /// What is told of it.
    fn status(&self) -> UsnicStatus<'_>;
    /// Carries an order of the console out.
    fn order(&mut self, order: &str, words: &[&str], now: Instant) -> Result<Managed, String>;
    /// News of an order that takes a while.
    fn progress(&mut self, now: Instant) -> Option<Progress>;
    /// Ends that order.
    fn cancel(&mut self);
    /// What it does with records of `rendezvous`, if there is anything of the kind.
    fn exchange(&mut self) -> Option<&mut dyn Exchange> {
        None
    }
}

/// A datagram that is to be sent.
pub(super) struct Outgoing<'a> {
    /// Place of the port.
    pub port: usize,
    pub from: SocketAddrV4,
    pub to: SocketAddrV4,
    /// Its first bytes, at most [`MOST_HEAD`].
    pub head: &'a [u8],
    /// The rest, where it lies.
    pub tail: &'a [Window],
}
