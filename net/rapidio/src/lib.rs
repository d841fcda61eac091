//! RapidIO networks over a master port ([`drivers::rapidio::MasterPort`]), compatible with Linux.
//!
//! ```text
//!    MasterPort (messages, doorbells, windows)
//!         │
//!      end_point ──► tap (capture)
//!         ├──► rionet ──► hal::Port ──► net, rdma (as any Ethernet port)
//!         ├──► rio_cm ──► channels ──► rules, echo
//!         └──► rapidio_enumeration (one host of the network assigns ids and routes)
//! ```
//!
//! Invariants:
//!
//! * A message with credit is never dropped.
//! * A channel's memory is reserved before its peer may use it.
//!
//! Tests: `tests/enumeration.rs`, `tests/rio_cm.rs`, unit tests, `tests/metal/suites/rapidio.rs`, the suite `rapidio`
//! (stock rionet and rio_cm).
//!
//! * [`rionet`]: Ethernet over messages, as a [`drivers::hal::Port`].
//! * [`rio_cm`]: channels over messages.
//! * [`end_point`]: both at one port, with an echo service and enumeration ([`rapidio_enumeration`]). A loop polls it
//!   as one object in each round, before it receives frames.
//! * [`tap`]: copies messages for a capture. Disabled, it costs a test per message.
//!
//! All are engines without I/O: port and time are arguments. The head of each lists its differences from Linux, and the
//! reasons.
//!
//! # Channels
//!
//! `rio_cm` has a file for each event of a channel. A response that only returns the data is sent from the buffer in
//! which the request arrived: one copy, and no event for the user (`Engine::send_back`).
//!
//! `rio_cm::flow` adds credits to channels between two appliances: counters only, without retransmission, because
//! RapidIO links retransmit. A credit is reserved memory (`rio_cm::memory`): a fixed part for each channel, and an
//! equal part of the rest for busy ones. So a message with credit is never dropped. Each such channel has a tick per
//! second. All ticks have the same interval, so their list stays sorted.
//!
//! # In the gateway
//!
//! `appliance/src/gateway/rapidio` owns end points. The Ethernet port of an end point is a port of the first core's
//! plane. Through it the plane flushes the device, enables interrupts, and checks the device before a halt. In addition
//! the plane polls the end point, and asks it for its deadline.
//!
//! The MAC address of `rionet` contains the RapidIO id, which a host may assign at any time. With the link check, once
//! a second and after each change of the network, planes and interfaces update their address (`Interface::set_mac`,
//! `Roce::set_mac`).
//!
//! Ports that can move to another core are `Send`. This one is not; planes make a `PlanePort` of each port on their own
//! core.
//!
//! # Not supported
//!
//! Priorities, routing tables per port, ports on cores other than the first.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod end_point;
pub mod rio_cm;
pub mod rionet;
pub mod tap;

pub use rapidio_enumeration as enumeration;
