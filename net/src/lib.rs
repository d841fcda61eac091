//! The control plane of a port: addresses, neighbours, ping, and the services that operators use.
//!
//! ```text
//!    frames of a port (neither RoCE nor UDP echo)          queued frames to the port
//!         │                                                       ▲
//!         ▼                                                       │
//!    vlan ► filter ► fragments ► neighbour | dhcp, slaac, probes | smoltcp (ICMP, UDP, TCP)
//!                                                                 │
//!                         Listener, Connector (bytes, events)     │ Interface
//!                                 │               │               │
//!                         http, tls        smcr, messaging,    ping, syslog
//!                                          linx, usnic exchange
//! ```
//!
//! Invariants:
//!
//! * One event, one frame or one timer costs the same for any number of connections.
//! * A claimed address counts only by the neighbour table: a SYN-ACK goes to the MAC address of its entry.
//! * Memory of connections, listeners, fragments and outgoing packets is bounded, with a share for each host.
//!
//! Tests: unit tests beside the parts, `net/tests/wire` (an interface against a client in the test), `tests/fuzz`, the
//! suites `net`, `tls`, `config`.
//!
//! Every part is an engine: frames and time are arguments, frames leave through a bounded queue
//! ([`Interface::transmit`]), and no code reads a clock or waits. RDMA traffic does not pass through: the loop
//! classifies each frame once ([`classify()`]), and passes the interface only frames that are neither RoCE nor UDP
//! echo.
//!
//! Services ([`http`], [`ping`], [`path_probe`], [`syslog`]) are engines on an [`Interface`]; [`dns`] and [`sntp`] are engines without
//! any. [`metrics`] only writes text. [`tcp`] listens and [`connector`] connects, for protocols that are engines of
//! their own.
//!
//! # smoltcp, and what surrounds it
//!
//! smoltcp implements TCP, UDP and ICMP. It runs with `Medium::Ip`: `link` adds the Ethernet header. `smoltcp_gaps`
//! lists what it lacks, and has the workarounds.
//!
//! * `connections`: each TCP connection has its own socket set. A segment finds its connection by both ends, in an
//!   ordered map, which a client's choice of ports cannot slow down. Timers are in an ordered set; a postponed one
//!   stays in its place and fires early once. A connection is polled only after a segment, its timer or a call of its
//!   user. One call sends one frame, then the next connection has its turn. The cost of a connection does not depend on
//!   their number.
//! * **Events.** When a connection changes for its user (bytes, room, state), it is queued once on its owner's list:
//!   [`tcp::Listener::next_news`], [`connector::Connector::next_news`]. [`Interface::ready`] names the listeners and
//!   connectors with events, and [`Interface::activity`] changes with each. Events report changes: a user that reads
//!   and writes until nothing moves misses none. Every owner must take its events, or they accumulate.
//! * `listen_table`, `isn`: a SYN is answered with a cookie. The connection, its memory and its place in the listener
//!   exist from the cookie's return. In addition the last 64 SYNs are stored, so a lost SYN-ACK is repeated by a timer,
//!   and the SYN's options are known exactly. Beyond 64, in a flood, MSS and window scale are rounded down to eight
//!   classes each (SACK and the SMC option are kept). A lost SYN-ACK is then repeated only when the client repeats its
//!   SYN. If the client's last ACK is lost and it waits for the server's first bytes, the connection never opens. A SYN
//!   costs two hashes and a frame. The SYN-ACK goes only to the MAC address in the neighbour table; without an entry, a
//!   stored SYN waits for the neighbour's resolution. Outgoing connections get numbers of RFC 6528.
//! * `spent_cookies`: a cookie opens one connection. Data right behind a handshake has the same sequence numbers. If
//!   the server refused that connection meanwhile, the data gets a reset and does not count as another refused client.
//!   The table has 1,024 hashes. A client that connects again with the same numbers gets another cookie.
//! * `connections/idle`: the TCP connection of an SMC-R connection carries nothing until its end. Its socket is
//!   replaced by one with minimal buffers (32 KiB less), once data under way is delivered.
//! * Payload is copied from the frame into the socket's buffer, and from there into the queued frame.
//! * `path_mtu`, `connections/paths`: the path MTU of a destination. Routers report it, or connections find it by
//!   trying smaller segments after two timeouts.
//! * `connections/numbers`: RFC 5961. A reset needs the exact sequence number. SYNs and acknowledgements out of
//!   sequence get a challenge ACK, a few a second. smoltcp sees none of these segments.
//! * `connections/silence`: a connection is reset when its peer has sent nothing for a minute and has left two probes
//!   unanswered. Time in which the machine was stopped does not count.
//! * `neighbour`: one table for RDMA and TCP. Any number of neighbours is resolved at a time, each by three requests
//!   one second apart. Connections wait on the neighbour's entry, other packets (four each) in `outbox`. Hosts that we
//!   resolve and hosts that resolve us get an entry; others do not. Entries that only a peer requested are evicted
//!   first, and never replace a wanted one. An old address stays in use while it is verified. A connecting TCP
//!   connection fails after three seconds if its neighbour does not answer.
//!
//! # Around IP
//!
//! * `filter` drops impossible frames before smoltcp sees them.
//! * `fragments` reassembles IP packets, within 256 KiB.
//! * `vlan` selects frames by their tag, before any other parser.
//! * `probes` detects duplicate addresses before they are used. `notices` queues log lines for the operator.
//!   `interface/addresses` combines leases (`dhcp`), router advertisements (`slaac`) and probes: which addresses are in
//!   use, and the resulting routes and MTU.
//! * `delayed_replies`, `address_defense` and `mld` answer address requests, announce and defend addresses, and send
//!   listener reports. Without reports, switches with MLD snooping (Linux bridges with a querier) forward no IPv6
//!   multicast to us.
//!
//! # Not supported
//!
//! IPv6 extension headers other than that of fragments, several VLANs on a port, privacy addresses.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
#[cfg(test)]
extern crate std;

mod address_defense;
mod addressing;
pub mod answer;
pub mod capture;
mod checksum;
mod classify;
mod connections;
pub mod connector;
pub mod datagram;
mod delayed_replies;
mod dhcp;
pub mod dns;
pub mod echo;
mod filter;
pub mod foreign;
mod fragments;
pub mod hosts;
pub mod http;
mod interface;
mod isn;
mod link;
mod listen_table;
mod messages;
pub mod metrics;
mod mld;
mod neighbour;
mod neighbours;
mod notices;
mod outbox;
mod packet_too_big;
mod path_mtu;
pub mod path_probe;
pub mod ping;
mod port_addresses;
mod probes;
pub mod randomness;
pub mod refusal;
mod routes;
mod seeds;
mod segment;
mod slaac;
mod smoltcp_gaps;
pub mod sntp;
mod spent_cookies;
pub mod syslog;
pub mod tcp;
#[cfg(test)]
mod testing;
pub mod tls;
pub mod udp;
pub mod vlan;

pub use addressing::{Addressing, AddressingError};
pub use classify::{Class, classify};
pub use interface::{Counters, Interface, MtuOrigin};
pub use neighbour::Resolution;
pub use neighbours::Neighbours;
pub use notices::Notice;
pub use port_addresses::{PortAddresses, is_host, link_local, mac_of_link_local};
pub use smoltcp::wire::IpCidr as Cidr;
