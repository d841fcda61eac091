//! The fixture that a kind of device needs for the tests.

use core::net::IpAddr;
use drivers::hal::{Instant, Window};
use verbs::{AddressVector, RdmaDevice};

/// Optional features of a provider. All others are required.
#[derive(Clone, Copy, Debug)]
pub struct Offers {
    /// Unreliable datagrams.
    pub datagrams: bool,
    /// A limit of RNR retries, after which a queue pair fails. (Without it, a sender waits for a receiver as long as
    /// the connection exists.)
    pub rnr_retries: bool,
}

/// Two connected devices of one kind, nodes 0 and 1.
pub trait Fixture {
    /// Optional features of the devices.
    fn offers(&self) -> Offers;
    /// The device of a node.
    fn device(&mut self, node: usize) -> &mut dyn RdmaDevice;
    /// The IP address of a node's device.
    fn address(&self, node: usize) -> IpAddr;
    /// The address vector from a node to the other.
    fn way(&self, node: usize) -> AddressVector;
    /// Allocates exactly `len` bytes of a node's memory.
    fn memory(&mut self, node: usize, len: usize) -> Window;
    /// The current time.
    fn now(&self) -> Instant;
    /// Advances to the next event, at most to `until`.
    fn step(&mut self, until: Instant);
    /// Drops all packets of both nodes from now on.
    fn cut(&mut self);
}
