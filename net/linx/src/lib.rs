//! LINX: endpoints that find each other by name and exchange signals, over RapidIO messages or TCP.
//!
//! ```text
//!    RapidIO messages ──► riocm ──┐                    ┌──► Event, Signal ──► rules, echo
//!                                 ├──► rlnh ──► Node ──┤
//!    TCP stream ────────► tcpcm ──┘                    └◄── open, hunt, send, send_windows
//! ```
//!
//! Invariants:
//!
//! * A link reconnects only after its users have received `Gone` for every peer, so a `PeerId` never means another
//!   peer.
//! * No link can use the memory that is reserved for another link.
//!
//! Tests: `src/**/tests` (events in every state, hostile peers), `tests/linx` (recordings of LINX for Linux 2.5.1 and
//! 2.6.9, a peer in Python), the suites `linx`, `linx_tcp`, `rapidio`.
//!
//! [`Node`] implements endpoints, links, hunts and signals, without I/O. Below it are two connection managers:
//! [`riocm`] over RapidIO messages, which can be used by itself, and [`tcpcm`] over TCP. RLNH runs over both: two nodes
//! exchange names by it. [`wire`] has the formats.
//!
//! # How to use a node
//!
//! A node has **links** ([`Node::add_link`]), each to one configured peer, over a RapidIO port ([`Transport::Riocm`])
//! or a TCP connection ([`Transport::Tcp`]). A link connects whenever its peer is reachable, and again after each end.
//! [`Event::Link`] reports a change. [`Node::link`] returns the status, with the cause of the last end.
//!
//! An **endpoint** ([`Node::open`]) is a local name. Peers hunt for it and send signals to its inbox:
//! [`Event::Signals`], then [`Node::next_signal`] until it is empty. A **signal** has a number, bytes and a sender,
//! which is the address for a reply. An endpoint hunts for a peer's name ([`Node::hunt`]) until [`Event::Found`] names
//! the peer. [`Node::send`] copies. [`Node::send_windows`] sends memory in place, which is free again at
//! [`Event::Sent`].
//!
//! The owner of the devices feeds the node. RapidIO: [`Node::receive`] for each message of the mailbox,
//! [`Node::poll_transmit`] until it is empty. TCP: [`Node::next_stream_order`] opens and closes streams,
//! [`Node::stream_receive`] and [`Node::stream_transmit`] carry bytes. [`Node::poll`] at [`Node::deadline`], and
//! [`Node::next_event`] until it is empty. Each event is reported once.
//!
//! # How a rule joins a name and a TCP service
//!
//! * A published name is an endpoint. Each [`PeerId`] from which signals come is a conversation with a TCP connection
//!   of its own. Bytes from that connection go to the peer, from the same endpoint.
//! * A TCP client that connects to a board's endpoint gets an endpoint of its own, which hunts. The client's data waits
//!   until `Found`. Signals to that endpoint belong to the client.
//! * **Back pressure towards the board**: after [`SendError::Full`] the rule stops reading from TCP until
//!   [`Event::Room`] for the link. Each link has its own memory for sending.
//! * **Back pressure from the board**: a [`Signal`] holds the link's memory until it is released, for as long as TCP
//!   has no room. [`Node::windows`] shows its bytes in place. Over TCP this stops the peer. RIOCM has no flow control:
//!   [`Node::is_congested`] advises to leave RapidIO messages in the mailbox, which makes RapidIO stop their senders. A
//!   link that runs out of memory nevertheless is reset, and reports it. An inbox that its user does not empty drops
//!   signals beyond [`Config::inbox_bytes`], so that it does not exhaust the link's memory ([`Event::Dropped`]).
//! * **Ends**: [`Event::Gone`] for each peer that the user knows, when its endpoint or its link ends. Earlier signals
//!   of the peer may still be in inboxes. [`LinkStatus::unsent`] counts unsent signals, and each window gets its
//!   `Sent`. A link reconnects only after all of its `Gone` were reported, so a `PeerId` never means another peer.
//!
//! # Limits
//!
//! All memory is given at construction and reserved per link as it is added. Signals allocate nothing. Names, hunts and
//! link addresses are bounded per link: 65,536 addresses of the peer, 2 MiB of its names. Excess is counted
//! ([`LinkCounters`]); a name beyond is not kept, and its address works without it. A name lookup costs the logarithm
//! of their number. Sending costs the same for any number.
//!
//! # How it works
//!
//! * [`pool`] is the memory of all layers: chains of pieces of 1 KiB, with an account per link that other links cannot
//!   use up. A message takes pieces as its packets arrive, not as its header announces.
//! * RIOCM has no flow control and no retransmission. An error in one packet resets the connection, and RLNH connects
//!   again at once. The table of the state machine is at the head of `riocm/establish.rs`.
//!   `tests/linx/data/machine.txt` is the record of an independent peer.
//! * Data packets name a connection by an id that may have a new owner. So sender and port are compared before anything
//!   else. A first packet may overtake the CONN_ACK that opens the connection. It is kept until the ACK comes, and
//!   dropped if the peer starts again.
//! * A patched message is one whose sender wrote headers over its bytes and sends these bytes behind it
//!   (`riocm/assembly.rs`). It is received in place: the chain has holes of one piece each, which are linked, and
//!   patches fill them. A message is delivered only without holes and when every byte was written.
//! * A signal of one packet takes a fast path. `Node::send` looks up link, endpoint and connection once each, and
//!   copies the bytes into one piece. A packet is a header of two words and a reference to the piece. A received one is
//!   copied into a piece and queued in the inbox without an event of RIOCM. Waiting signals are found by the number of
//!   their first piece. All other cases (another kind of packet, an early packet, an unpublished endpoint) take the
//!   general path. Adjacent pieces are written at once. A connection leaves the send list with its last packet.
//! * A local link address is reused after the peer's UNPUBLISH_ACK. A peer's is released when the user has received its
//!   `Gone`. Messages about names wait in one queue in front of signals. The queue is bounded, because each entry
//!   belongs to a link address or a hunt.
//!
//! # In the gateway
//!
//! `appliance/src/gateway/linx` has one node for all links. `streams` carries links over TCP, by listeners and
//! connectors of the interfaces. `mailbox` carries links over RapidIO: a port belongs to RIOCM while its network is
//! known; otherwise its connections have no transport. `echo` returns signals. The peers of all links find a service's
//! names.
//!
//! # Differences between descriptions
//!
//! The facts are from LINX for Linux 2.5.1 and 2.6.9 (recordings in `tests/linx/data/original`), and from the
//! protocol's document.
//!
//! * No connection has id 0, as RIOCM's own description says. LINX for Linux begins at 0.
//! * LINX for Linux puts an old packet, and one that is 64 or more ahead, into its reorder queue, and delivers it as
//!   another one later. Here both end the connection.
//! * LINX for Linux has no timer for lost packets, nor for RLNH's handshake (`node/watch.rs`).
//! * The length in the first four bytes of a RIOCM packet excludes these four bytes, and is ignored on receipt.
//! * Generations begin with a random number, so those of two boots of a board differ.
//!
//! Not supported: out-of-band connections beside a link's first, LINX's Ethernet connection manager. The peer's features
//! are reported ([`LinkStatus::features`]); ours are empty, because none are defined.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
#[cfg(test)]
extern crate std;

mod node;
pub mod pool;
pub mod riocm;
mod rng;
pub mod tcpcm;
pub mod wire;

pub use node::*;
pub use pool::PIECE;
pub use riocm::{BadConfig, Down, Fault, SendError};
pub use tcpcm::{StreamId, StreamOrder, TcpConfig};
