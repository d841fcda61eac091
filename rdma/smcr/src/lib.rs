//! SMC-R: TCP sockets whose bytes travel by RDMA (RFC 7609; versions 2 and 2.1 as Linux 6.12 implements them in
//! net/smc).
//!
//! ```text
//!    TCP listener ──► acceptor ──┐                       ┌──► connections (bytes, events) ──► echo, rules
//!                                ├──► engine ── CLC, LLC, CDC
//!    TCP connector ◄─ connector ─┘        │
//!                                         ▼
//!                               verbs::Provider (links = queue pairs, receive buffers = regions)
//! ```
//!
//! Invariants:
//!
//! * A receive buffer that was offered stays registered until the peer has closed, or its group ends.
//! * A link group belongs to one TCP address; no other address joins it.
//! * A reader never gets bytes that its peer did not write.
//!
//! Tests: `src/tests`, `tests/sim`, `tests/fuzz`, the suites `smc*`, `relay`, `messaging` (stock AF_SMC).
//!
//! [`wire`] has the messages. [`engine`] implements both roles over any verbs provider. [`acceptor`] joins a TCP
//! listener and the engine, [`connector`] a TCP connector and the engine: their users see connections, not transports.
//! [`echo`] is one user. The rules of the messaging gateway (`appliance/messaging`) are the other.
//!
//! The gateway runs all of it as a service between data plane and control plane, because it needs both
//! (`appliance/src/gateway/smc`). Without a service or rule that uses SMC-R the engine is absent and costs a round
//! nothing.
//!
//! # Sockets and streams
//!
//! TCP carries the handshake (CLC). After that the engine watches the TCP connection only for a reset. A socket counts
//! the bytes of its stream from the beginning, and derives cursors from the count. A table ([`engine`], `state.rs`)
//! defines how a socket ends; tests walk through it for two peers. A peer with impossible cursors loses its link group.
//!
//! # Link groups
//!
//! A link group belongs to the TCP address that created it. No other address can join it. A host creates one group at a
//! time. When the table (`Config::max_groups`) is full, the group that has been idle longest is evicted.
//!
//! Ports with the same PNET ID are one network. There a group has two links. The engine re-establishes a lost link; of
//! three links the asymmetric one is deleted. DELETE_LINK is repeated until the peer answers.
//!
//! A group uses version 2, whose GIDs are IPv4 addresses, or version 1, whose peers exchange GIDs and MAC addresses
//! (for RoCEv1). For version 1 the engine needs the subnets of the ports.
//!
//! A device is identified by its GID, an IPv4 address. A bridge (NTRDMA) is a device too: [`engine::Device`] also has
//! the provider's address of the device, and `pd_on` places queue pair and receive buffer on the bridge. The engine
//! uses a bridge only for TCP connections over the interface of that bridge, because the bridge reaches no other host.
//!
//! # Receive buffers
//!
//! The handshake announces a receive buffer without memory. The memory comes from a small pool when the provider
//! receives the peer's first WRITE; without free memory the peer gets an RNR NAK. The memory returns to the pool when
//! the user has read all of it and no WRITE has arrived for two seconds. It is zeroed first, so that a peer that claims
//! more bytes than it wrote cannot reveal the data of other peers.
//!
//! # The handshake, and what Linux requires of it
//!
//! * A version 1 server offers a second link even over the port of the first link. Linux waits for an offer, and
//!   rejects this one.
//! * Each boot has a fresh peer ID in its Proposal. With an old one Linux would reuse a dead link group.
//! * A server gives up on a handshake before the client does. Otherwise two Declines cross, and one is read as data.
//! * A client regards a connection as open when its response to CONFIRM_LINK is acknowledged, not when it is sent. A
//!   server that misses the response declines some seconds later, while the client would already use SMC-R.
//! * For the same reason an Accept is not withdrawn when its link fails: the server waits for the client's answer.
//! * No Accept or Confirm is sent while a second link is being set up, so that both sides know all links of the sender.
//!
//! The tests in `tests/silence.rs` lose, delay and decline every message of a handshake, and compare the two sides.
//!
//! Linux's soft-RoCE loses queue pairs by itself. When it retransmits (no answer for 134 ms), it registers memory
//! regions of later requests a second time and fails silently (`rxe_requester`, `rxe_reg_fast_mr`). With two links the
//! streams continue over the other one.
//!
//! The SMC option of SYN segments is added around smoltcp by `net` (`smoltcp_gaps/smc_option.rs`).
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod acceptor;
pub mod admission;
mod connections;
pub mod connector;
pub mod echo;
pub mod engine;
mod tcp;
pub mod wire;

use verbs::{Provider, RegionsOnDemand};

/// A provider that the engine can use.
pub trait SmcDevice: Provider + RegionsOnDemand {}

impl<T: Provider + RegionsOnDemand + ?Sized> SmcDevice for T {}

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
