//! usNIC: reliable datagrams over UDP, compatible with Open MPI's `btl/usnic`.
//!
//! ```text
//!    UDP payload + source ──► receive ──┐          ┌──► next_news ──► users (inbox, mirror, rules)
//!                                       ├─ Engine ─┤
//!    next datagram ◄── poll_transmit ───┘          └◄── send, put, grant
//! ```
//!
//! Invariants:
//!
//! * A packet counts only from one of its peer's ports, with its peer's name, and from its peer's station.
//! * Every endpoint has memory that no other endpoint can use.
//! * No packet is sent that the stock peer cannot survive (list below).
//!
//! Tests: `engine/tests`, `ob1/tests`, `tests/usnic` (Open MPI's `btl/usnic`), the suites `usnic`, `usnic_image`,
//! `usnic_guests`.
//!
//! [`Engine`] has interfaces, endpoints, messages and PUTs, without I/O: `receive` takes a UDP payload with the frame's
//! source address, `poll_transmit` returns header and payload windows of the next datagram, `deadline` returns the next
//! time to poll, `next_news` returns endpoints with events for their users. Messages keep their boundaries. [`wire`]
//! has the formats, [`pairing`] decides which interfaces of two hosts belong together, and [`Stripe`] uses several.
//!
//! The protocol is taken from the sources of Open MPI 4.1.4 and 5.0.8, and from observing 4.1.4. Not supported: GET,
//! which Open MPI does not use either. MPI's own messages are payload ([`ob1`]).
//!
//! # Endpoints and packets
//!
//! * A peer is configured: address, three UDP ports, first sequence number and name, all but the name from its modex,
//!   which is exchanged by other means. The protocol has no connection setup and no teardown. A packet belongs to the
//!   peer if its source is one of the peer's ports and its header has the peer's name. The layouts 4.x and 5.x are
//!   chosen per endpoint; the wire does not distinguish them.
//! * Sequence numbers have 64 bits in the engine, so only the parser handles a wrap. The wire has the lower 16.
//! * The sender has no table of packets: a fragment stores its first sequence number, from which its packets are
//!   computed. Packets that an ACK shows as missing are always in the first fragments.
//! * Recovery (`engine/acknowledge.rs`) has only cumulative ACKs. `engine/tests/goodput.txt` compares it with a model of
//!   the stock sender, `./isthmus bench usnic` with the stock sender itself.
//! * The receiver needs a window of 8 KiB only while a packet is missing. Windows, messages and memory are pools made at
//!   set-up. Each endpoint has a maximum share; half of the memory is reserved for endpoints in equal parts
//!   (`engine/reserve.rs`), so no endpoint starves. A message is one window. A gap before a part is filled with zeros, so
//!   a malicious peer cannot reveal the data of others.
//! * PUTs go only into regions granted to their endpoint. A refused PUT is not acknowledged, so its sender notices.
//! * `engine/shared.rs` has what endpoints share (memory, tables, queues, timers). A method of one endpoint takes it as
//!   an argument, so the endpoint of a packet is looked up once. Tables are made once.
//! * All endpoints use one timing wheel. An idle endpoint is in no list and has no deadline.
//!
//! Some packets make the stock peer crash or drop data, and are never sent: an ACK of a packet that has not arrived, a
//! tag without a handler, a PUT to memory that the peer has not announced, a fragment named 0, a part beyond its
//! fragment.
//!
//! # MPI
//!
//! [`ob1`] parses ob1's headers. A mirror is a rank that returns every message, as a state machine over any message type;
//! `ob1/rank.rs` joins it with the engine. Nothing is copied: a part returns from the memory in which it arrived, with a
//! new header over its own. Memory for a whole message is reserved before its rest is requested. The rest of the pool is
//! left for headers and complete messages, so two long messages never wait for each other's memory.
//!
//! # In the gateway
//!
//! * `gateway/usnic` is the first member of `gateway::udp_engines`: engines over the UDP of a plane's ports, behind the
//!   trait `UdpEngine` (datagram, due time, next to send, deadline, reports, orders). A table of UDP ports per port finds
//!   the engine. `net::datagram` checks datagrams, checksums included, and makes headers. A datagram without room waits
//!   in front of all others of its engine. The payload is copied into the frame, because a port reads lent memory later,
//!   and an ACK or the removal of a peer would reuse the memory before.
//! * The control plane resolves next hops (`gateway/next_hops.rs`). The data plane requests one when it sends to a peer
//!   whose hardware address is unknown or 20 s old, and uses the old one meanwhile. A datagram to an unresolved peer is
//!   lost, and the engine sends it again. Received frames never change an address.
//! * Idle, the engine costs one comparison of a time per round, and its deadline ends a halt.
//! * Peers at several interfaces with one name are one process (`gateway/usnic/process.rs`). The process has what its
//!   messages need (an inbox or an MPI rank, memory for PUTs) and a [`Stripe`] over its endpoints. A sent message knows
//!   its endpoint, so the end of one endpoint returns only its own memory. A rank orders messages by ob1's numbers
//!   (`ob1/order.rs`): memory is assigned in the order of sending, because the peer takes them back in that order.
//! * The engines belong to the first loop, with rules, rendezvous and operator. The loop of another core forwards
//!   datagrams for their UDP ports through a ring, and sends what returns through another ring (`gateway/forwarding.rs`).
//!   The first loop sees this as one more port. It costs one copy in each direction and a wake-up.
//! * `wire/rendezvous.rs` is the modex record. `gateway/rendezvous` has the TCP connections: one record each way
//!   (`Exchange`). `gateway/usnic/exchange.rs` makes endpoints of them; an endpoint ends with its connection.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
#[cfg(test)]
extern crate std;

mod delays;
mod engine;
mod id_map;
pub mod ob1;
pub mod pairing;
mod stripe;
mod table;
mod wheel;
pub mod wire;

pub use engine::*;
pub use stripe::Stripe;
