//! The interface of a machine on the network.

use drivers::hal::{Instant, Packet};

/// A machine: engines with one or more ports, and their users.
pub trait Node {
    /// Handles a frame that has arrived at a port. It starts with the destination MAC address.
    fn handle_frame(&mut self, port: usize, frame: &[u8], now: Instant);
    /// The next frame to send through a port, if there is one.
    fn poll_transmit(&mut self, port: usize, now: Instant) -> Option<Vec<u8>>;
    /// The time at which `work` must be called if no frame arrives before.
    fn poll_timeout(&self) -> Option<Instant>;
    /// Runs the timers that are due, and the users of the engines. Called after every event of the network.
    fn work(&mut self, now: Instant);
}

/// The bytes of an engine's packet.
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
