//! What a kind of device has to come with to be tested.

use core::net::IpAddr;
use drivers::hal::{Instant, Window};
use verbs::{AddressVector, RdmaDevice};

/// What not every provider has. All else is expected of each.
#[derive(Clone, Copy, Debug)]
pub struct Offers {
    /// Unreliable datagrams.
    pub datagrams: bool,
    /// A number of retries after RNR NAKs, after which a queue pair fails. (Without it, a receiver that is
    /// not ready is waited for as long as the connection stands.)
    pub rnr_retries: bool,
}

/// Two devices of one kind, nodes 0 and 1, that reach each other.
pub trait Fixture {
    /// What they have beside what each has.
    fn offers(&self) -> Offers;
    /// The device of a node.
    fn device(&mut self, node: usize) -> &mut dyn RdmaDevice;
    /// The address by which a node's device is known.
    fn address(&self, node: usize) -> IpAddr;
    /// The way from a node to the other.
    fn way(&self, node: usize) -> AddressVector;
    /// Memory of a node, exactly `len` bytes.
    fn memory(&mut self, node: usize, len: usize) -> Window;
    /// The present.
    fn now(&self) -> Instant;
    /// Lets the next things happen, but none later than `until`.
    fn step(&mut self, until: Instant);
    /// From now on nothing of what either sends arrives.
    fn cut(&mut self);
}
