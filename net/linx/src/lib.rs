//! LINX: endpoints that find each other by name and send each other signals, over RapidIO messages or TCP.
//!
//! [`Node`] is all of it, without I/O: endpoints, links, hunts, signals. Beneath it are [`riocm`], LINX's connection
//! manager over RapidIO messages, which can be used by itself, and [`tcpcm`], the one over TCP; above both is RLNH, which
//! is what two nodes tell each other of names. [`wire`] has the formats.
//!
//! # What a user does
//!
//! A node has **links** ([`Node::add_link`]), each to one peer that is configured, over a RapidIO port
//! ([`Transport::Riocm`]) or a TCP connection ([`Transport::Tcp`]). A link is wanted as long as it is there: it comes up
//! when its peer does, and again after each end; [`Event::Link`] tells of a change and [`Node::link`] of all there is to
//! know, the cause of the last end among it.
//!
//! An **endpoint** ([`Node::open`]) is a name of ours. Peers hunt for it and send signals to it, which wait in its inbox:
//! [`Event::Signals`], then [`Node::next_signal`] until there are none. A **signal** has a number, bytes, and where it came
//! from, which is where an answer goes. To find a name of a peer's an endpoint hunts for it ([`Node::hunt`]), until
//! [`Event::Found`] names the peer. [`Node::send`] copies; [`Node::send_windows`] sends memory where it lies, which is out
//! of use at [`Event::Sent`].
//!
//! Whoever owns the devices feeds the node and empties it. RapidIO: [`Node::receive`] for each message that comes to the
//! mailbox, [`Node::poll_transmit`] until there is nothing to send. TCP: [`Node::next_stream_order`] says what to open and
//! to close, [`Node::stream_receive`] and [`Node::stream_transmit`] carry bytes. [`Node::poll`] at [`Node::deadline`], and
//! [`Node::next_event`] until there is none. News are told once.
//!
//! # How a rule joins a name and a TCP service
//!
//! * A name that the appliance publishes is an endpoint. Each [`PeerId`] from which signals come is a conversation with a
//!   TCP connection of its own; what is read from that is sent to the peer, from the same endpoint.
//! * A TCP client that wants an endpoint of a board gets an endpoint of its own, which hunts. What the client sends waits
//!   until `Found`; signals to that endpoint are the client's.
//! * **Back pressure towards the board**: [`SendError::Full`] means that nothing more is to be read from TCP until
//!   [`Event::Room`] for the link. Memory for what is sent is set aside for each link.
//! * **Back pressure from the board**: a [`Signal`] holds the link's memory until it is released, and can be kept for as
//!   long as TCP has no room: [`Node::windows`] shows its bytes where they lie. Over TCP the peer is then held up. RIOCM has
//!   nothing to hold a peer up with: [`Node::is_congested`] says that RapidIO messages are better left in the mailbox,
//!   which RapidIO tells their senders; a link whose memory is used up all the same is reset, and says so. An inbox that
//!   nobody empties drops what is beyond [`Config::inbox_bytes`], so that it does not use up its link
//!   ([`Event::Dropped`]).
//! * **Ends**: [`Event::Gone`] for each peer that the user knows, when its endpoint or its link ends. What the peer sent
//!   before may still wait in inboxes. What was not sent is in [`LinkStatus::unsent`], and each window is told of by `Sent`.
//!   A link begins anew only when all of its `Gone` were told, so that a `PeerId` never comes to mean another.
//!
//! # Limits
//!
//! All memory is given at construction and is set aside for each link as it is added; nothing is allocated for signals.
//! Names, hunts and link addresses are bounded for each link, and what is beyond is counted ([`LinkCounters`]) or, where
//! RLNH has no word for no, ends the link. Looking for a name costs the logarithm of their number, sending costs the same
//! however many there are.
//!
//! # Where others differ
//!
//! Written from facts about LINX for Linux 2.5 and the protocol's document, version 21. A CONN_RESET while connecting
//! ends the attempt, and connection id 0 is given to nobody, as RIOCM's own description says; LINX for Linux stays, and
//! begins at 0. The length in the first four bytes of a RIOCM packet is written without those four and not looked at.
//! Generations begin with a random number, so that those of two lives of a board differ. Not here: out-of-band connections beside a link's first, features (none are defined), LINX's Ethernet connection manager.
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
mod timers;
pub mod wire;

pub use node::*;
pub use pool::PIECE;
pub use riocm::{BadConfig, Down, Fault, SendError};
pub use tcpcm::{StreamId, StreamOrder, TcpConfig};
