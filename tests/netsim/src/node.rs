//! What runs on the network.

use drivers::hal::{Instant, Packet};

/// A machine: engines with one or more ports, and what uses them.
pub trait Node {
    /// A frame has arrived at a port, from its destination MAC address on.
    fn handle_frame(&mut self, port: usize, frame: &[u8], now: Instant);
    /// The next frame to be sent through a port, if there is one now.
    fn poll_transmit(&mut self, port: usize, now: Instant) -> Option<Vec<u8>>;
    /// When `work` is wanted although nothing arrives, if ever.
    fn poll_timeout(&self) -> Option<Instant>;
    /// Something has happened somewhere: runs the timers that are due, and the users of the engines.
    fn work(&mut self, now: Instant);
}

/// The bytes of a packet that an engine wants to have sent.
pub fn bytes(packet: &Packet<'_>) -> Vec<u8> {
    let mut bytes = packet.header.to_vec();
    for window in packet.payload {
        let at = bytes.len();
        bytes.resize(at + window.len(), 0);
        window.read(0, &mut bytes[at..]).expect("its own length");
    }
    bytes.extend(packet.trailer);
    bytes
}
