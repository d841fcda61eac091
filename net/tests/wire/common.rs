//! Interfaces on one wire, with virtual time.

use drivers::hal::Instant;
use net::{Addressing, Interface};
use netsim::Collector;
use std::time::Duration;

/// A wire that carries every frame to all other nodes at once.
pub struct Wire {
    pub now: Instant,
    pub nodes: Vec<Interface>,
    /// Every frame on the wire: index of the sender, and bytes.
    pub log: Vec<(usize, Vec<u8>)>,
    /// Bytes of the longest frame that the wire carries; longer ones are lost.
    pub longest: usize,
}

impl Wire {
    /// A wire with nodes 1, 2, … with these configurations.
    pub fn new(nodes: impl IntoIterator<Item = Addressing>) -> Self {
        let now = Instant::from_nanos(1_000_000_000);
        let nodes = nodes.into_iter().zip(1..).map(|(addressing, n)| {
            let mut interface = Interface::new(mac(n), 1500, [n; 32], now);
            interface.set_addressing(addressing, now).unwrap();
            interface
        });
        Wire { now, nodes: nodes.collect(), log: Vec::new(), longest: usize::MAX }
    }

    /// Carries frames until no node has more to send at this time.
    pub fn settle(&mut self) {
        for _ in 0..1000 {
            let mut sent = Vec::new();
            for (n, node) in self.nodes.iter_mut().enumerate() {
                node.poll(self.now);
                let mut port = Collector::new(64);
                node.transmit(&mut port, |_| ());
                sent.extend(port.frames.into_iter().map(|frame| (n, frame)));
            }
            if sent.is_empty() {
                return;
            }
            for (from, frame) in sent {
                if frame.len() > self.longest {
                    continue;
                }
                for (n, node) in self.nodes.iter_mut().enumerate() {
                    if n != from {
                        node.handle_frame(&frame, self.now);
                    }
                }
                self.log.push((from, frame));
            }
        }
        panic!("the nodes send without end");
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

/// A configuration with one address only.
pub fn fixed(address: &str) -> Addressing {
    Addressing { addresses: vec![address.parse().unwrap()], ..Addressing::default() }
}
