//! The DNS client: a stub resolver (RFC 1034 section 5.3.1) with a cache, for names in the configuration and at the
//! console. An engine without I/O: datagrams, streams, time and the random number generator are arguments.
//!
//! [`Resolver`] asks for A and AAAA records, over IPv4 and IPv6. It follows the names that the configuration has: their
//! answers are renewed when their TTL ends, and the last ones are used for a day while no server answers (RFC 8767), so
//! that a failure of the DNS does not become one of its users. Other names are asked for once, and kept for their TTL.
//!
//! A peer on the path can forge any answer. One that is not has to guess ([RFC 5452](https://www.rfc-editor.org/rfc/rfc5452)):
//! each query has a random ID, a random port, and letters of random case; an answer must come from the server's address
//! and port and repeat the question. After several answers that do not fit, the query is repeated over TCP. DNSSEC is
//! not verified: names prove nothing, so lists of admitted hosts take addresses alone.
//!
//! smoltcp parses the records (its feature `proto-dns`): it does not allocate, and the image has it already. Names are
//! expanded here, with a bound on the pointers in one. smoltcp's resolver is not used: it has no TCP, no TTL and no
//! check of ports, and resolves one family. `hickory-proto` and `domain` would bring parsers of URLs and of dates for
//! records that are not asked for.
//!
//! Limits: 256 names, 8 addresses of each family, 16 queries at a time, 8 aliases, 16 KiB of an answer over TCP.

mod cache;
mod message;
mod name;
mod query;
mod resolver;
#[cfg(test)]
mod tests;

pub use cache::{Lookup, NameStatus, Problem};
pub use message::Family;
pub use name::{Endpoint, Host, Name};
pub use query::{Action, QueryId};
pub use resolver::{Counters, Event, Resolver, Server, ServerStatus};

/// UDP and TCP port of name servers.
pub const PORT: u16 = 53;
/// Longest datagram that a server may send without EDNS (RFC 1035 section 4.2.1).
pub const LONGEST_DATAGRAM: usize = 512;
/// Names in the cache.
const MOST_NAMES: usize = 256;
/// Addresses of a name that are used, of each family.
const MOST_ADDRESSES: usize = 8;
/// Aliases that are followed.
const MOST_ALIASES: usize = 8;
