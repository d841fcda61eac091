//! The time client: the client's part of NTP version 4 (RFC 5905 section 14, RFC 4330), over several servers. An engine
//! without I/O: datagrams, time and the random number generator are arguments.
//!
//! It measures the wall clock against the monotonic clock and disciplines neither: a caller adds [`Estimate::epoch`] to
//! its monotonic time. A machine's clock drifts by seconds a day, so the measurement is repeated, at first each minute,
//! later each 17 minutes.
//!
//! Nothing that a server says is believed because it says so:
//!
//! * A request has a random transmit timestamp, which the answer must repeat, and a random port (RFC 9109). A datagram
//!   that does not is ignored and counted.
//! * A server that is not synchronised (leap alarm, stratum 0 or 16 and above), far from its reference (root delay and
//!   dispersion), slow, or that gives no time is not used. A kiss-o'-death is obeyed (RFC 5905 section 7.4).
//! * Each server gives an interval in which the time is. The time is where the intervals of more than half of the
//!   servers that answer overlap (Marzullo's algorithm, RFC 5905 section 11.2.1). Others are falsetickers. Two servers
//!   that differ have no majority: the clock keeps its time. The servers of one name share one vote.
//!
//! The crate `sntpc` is not used: it drives a socket for one exchange with one server.

mod client;
mod packet;
mod selection;
#[cfg(test)]
mod tests;

pub use client::{Action, Client, Counters, Event, Server, ServerState, ServerStatus};
pub use packet::LENGTH;
pub use selection::{Estimate, choose};

/// UDP port of time servers.
pub const PORT: u16 = 123;
