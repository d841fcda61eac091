//! Interfaces on one wire, with virtual time.

use drivers::hal::{Frame, Instant, Packet, Port, PortCounters, TransmitError};
use net::{Addressing, Interface};
use std::time::Duration;

/// A port that collects what is transmitted; takes `room` frames.
pub struct Collector {
    pub frames: Vec<Vec<u8>>,
    pub room: usize,
}

impl Port for Collector {
    fn mac(&self) -> [u8; 6] {
        [0; 6]
    }
    fn mtu(&self) -> usize {
        1500
    }
    fn link_up(&mut self) -> bool {
        true
    }
    fn receive(&mut self) -> Option<Frame> {
        None
    }
    fn bytes(&self, _: &Frame) -> &[u8] {
        &[]
    }
    fn recycle(&mut self, _: Frame) {}
    fn transmit(&mut self, packet: &Packet<'_>) -> Result<(), TransmitError> {
        if self.frames.len() == self.room {
            return Err(TransmitError::Full);
        }
        self.frames.push(packet.header.to_vec());
        Ok(())
    }
    fn flush(&mut self) {}
    fn set_interrupts(&mut self, _: bool) {}
    fn pending(&self) -> bool {
        false
    }
    fn counters(&self) -> PortCounters {
        PortCounters::default()
    }
}

/// A wire that carries every frame to everybody else, at once.
pub struct Wire {
    pub now: Instant,
    pub nodes: Vec<Interface>,
    /// Every frame that was on the wire: who sent it, and its bytes.
    pub log: Vec<(usize, Vec<u8>)>,
}

impl Wire {
    /// Nodes 1, 2, … of these addressings.
    pub fn new(addressings: impl IntoIterator<Item = Addressing>) -> Self {
        let now = Instant::from_nanos(1_000_000_000);
        let nodes = addressings.into_iter().zip(1..).map(|(addressing, n)| {
            let mut interface = Interface::new(mac(n), 1500, n.into(), now);
            interface.set_addressing(addressing, now).unwrap();
            interface
        });
        Wire { now, nodes: nodes.collect(), log: Vec::new() }
    }

    /// Carries frames until nobody has any more to send at this moment.
    pub fn settle(&mut self) {
        for _ in 0..1000 {
            let mut sent = Vec::new();
            for (n, node) in self.nodes.iter_mut().enumerate() {
                node.poll(self.now);
                let mut port = Collector { frames: Vec::new(), room: 64 };
                node.transmit(&mut port, |_| ());
                sent.extend(port.frames.into_iter().map(|frame| (n, frame)));
            }
            if sent.is_empty() {
                return;
            }
            for (from, frame) in sent {
                for (n, node) in self.nodes.iter_mut().enumerate() {
                    if n != from {
                        node.handle_frame(&frame, self.now);
                    }
                }
                self.log.push((from, frame));
            }
        }
        panic!("the nodes never fall silent");
    }

    /// Lets `time` pass in steps of `step`.
    pub fn pass(&mut self, time: Duration, step: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now = self.now + step;
            self.settle();
        }
    }
}

/// MAC address of node `n`.
pub fn mac(n: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, n]
}

/// One IPv4 address, and no more.
pub fn fixed(address: &str) -> Addressing {
    Addressing { addresses: vec![address.parse().unwrap()], ..Addressing::default() }
}
