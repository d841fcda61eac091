//! A simulated network of Ethernet ports in virtual time, driven by one seed: latency, jitter,
//! bandwidth, loss, duplication, reordering, corruption, one-way cuts, links that go down.
//!
//! The network carries frames and does not parse their payload. A machine on it is a [`Node`]: engines that receive
//! frames, send frames, and return the time of their next timer. A test has a [`Network`] and a vector of nodes, and
//! calls [`Network::step`] or [`Network::run`]:
//!
//! ```
//! use drivers::hal::Instant;
//! use netsim::{Faults, Network, Node};
//! use std::time::Duration;
//!
//! /// Sends received frames back.
//! struct Echo(Vec<Vec<u8>>);
//!
//! impl Node for Echo {
//!     fn handle_frame(&mut self, _port: usize, frame: &[u8], _now: Instant) {
//!         let mut back = frame.to_vec();
//!         back.copy_within(6..12, 0);
//!         back[6..12].copy_from_slice(&frame[..6]);
//!         self.0.push(back);
//!     }
//!     fn poll_transmit(&mut self, _port: usize, _now: Instant) -> Option<Vec<u8>> {
//!         self.0.pop()
//!     }
//!     fn poll_timeout(&self) -> Option<Instant> {
//!         None
//!     }
//!     fn work(&mut self, _now: Instant) {}
//! }
//!
//! let mut network = Network::new(1); // the seed
//! let (a, b) = (network.add_node(&[[2, 0, 0, 0, 0, 1]]), network.add_node(&[[2, 0, 0, 0, 0, 2]]));
//! assert_eq!((a, b), (0, 1)); // nodes are named by their place
//! network.set_faults(Faults { duplication: 10, ..Faults::default() });
//! let first = [[2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1]].concat();
//! let mut nodes = [Echo(vec![first]), Echo(vec![])];
//! network.run(&mut nodes, Duration::from_millis(1), |_, _| false);
//! ```
//!
//! Machines can also be joined by a non-transparent bridge whose writes arrive in any order that PCIe allows:
//! [`BridgeEnd`].
//!
//! A test with many cases names the failing one with [`label!`].
//!
//! A scenario is a function of a seed that panics on an error. [`explore`] runs it with many seeds, and prints how to
//! replay a failing one. Memory for the nodes' arenas comes from [`with_memory`], which reuses the same bytes for each
//! seed. To cut the power of a node, replace it in the vector by a new one; frames in flight to it still arrive.

mod bridge;
mod bytes;
mod collector;
mod label;
mod link;
mod memory;
mod network;
mod node;
mod rng;
mod seeds;
mod slow_port;
mod stream;

pub use bridge::BridgeEnd;
pub use bytes::{contents, hex};
pub use collector::Collector;
pub use label::Label;
pub use link::{Faults, Link};
pub use memory::with_memory;
pub use network::{Event, Fate, Network, Place};
pub use node::{Node, bytes};
pub use rng::Rng;
pub use seeds::{explore, tracing};
pub use slow_port::SlowPort;
