//! Workarounds for gaps of smoltcp 0.14, and the list of all gaps. Most workarounds depend on smoltcp's internals: its
//! version is pinned, and a change that matters fails the tests of connections.
//!
//! smoltcp cannot, so this module does:
//!
//! * **Choose an initial sequence number.** SYN cookies and RFC 6528 need one; smoltcp's generator is predictable
//!   after a few draws. `initial_numbers` finds the seed from which the generator draws a given number, and a stack is
//!   made with it. Another number ends the connection.
//! * **Open a socket in the middle of a connection**, after a handshake that a cookie has answered. `replay` passes the
//!   SYN to a new socket, in a stack with that seed, and discards its SYN-ACK.
//! * **Resize the buffers of an open socket.** The TCP connection of an SMC-R connection carries nothing until its end,
//!   and would hold 32 KiB. `replay` opens a second socket with minimal buffers at the same sequence numbers.
//! * **Report the sequence numbers of a socket.** `replay` reads them from a keep-alive that the socket is made to
//!   write and that is discarded.
//! * **Send an ACK on request**, which challenges need (RFC 5961). `packets` builds a segment that repeats a byte of the
//!   peer, and smoltcp answers it.
//! * **Send and report TCP options of its user.** `smc_option` inserts the SMC option into segments that smoltcp has
//!   built, and parses it before smoltcp gets a segment.
//! * **Change the MTU of an interface**, which limits its segments. `narrow_stacks` has an interface for each smaller
//!   path MTU. `mss` rewrites the MSS option of SYNs where the link's MTU is smaller than the card's.
//!
//! Other modules replace a part of smoltcp:
//!
//! * [`connections`](crate::connections): smoltcp iterates over every socket of a set, so each has a set of its own
//!   ([`replay::alone`]).
//! * `connections/numbers`: smoltcp accepts any reset in the window. RFC 5961 wants the exact number.
//! * `connections/silence`: smoltcp's timeout counts time in which the machine was stopped.
//! * `connections/paths`: smoltcp cannot be told to retransmit. It is polled with the time of its timer.
//! * `listen_table`: a listening socket of smoltcp becomes the connection, so each SYN takes a socket.
//! * `link`: smoltcp drops a fast retransmission that its device refuses, together with its timer. So the queue takes
//!   every frame.
//! * `segment`, `checksum`: TCP's checksum is verified once, before the lookup, and written once, in wide words.
//! * `neighbour`, `outbox`: smoltcp resolves no neighbours for packets without an Ethernet header.
//! * `filter`: smoltcp answers frames that no honest host sends. Some replies would go to groups or loop.
//! * `dhcp`: smoltcp's client retries without a pause when a server refuses, accepts one router only, ignores the MTU
//!   and options in the `sname` and `file` fields, and does not report why it rejects a lease. `dhcproto` is not used:
//!   it needs `std`.
//! * `slaac`: one advertisement of a multicast prefix, or of a prefix longer than 128 bits, makes smoltcp's router
//!   discovery panic. Its timer is not reported while no socket has one, and stays overdue without a router, so a loop
//!   could not halt.
//! * `mld`: smoltcp parses queries of version 2 only.

pub mod initial_numbers;
pub mod mss;
pub mod narrow_stacks;
pub mod packets;
pub mod replay;
pub mod smc_option;
