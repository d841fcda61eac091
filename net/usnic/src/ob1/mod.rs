//! `ob1`, what Open MPI 4's messages are made of above the BTL: its headers ([`header`]), and a rank that sends every
//! message back ([`Mirror`]). Neither does I/O, and neither reads more of a message than its header.

pub mod header;
mod limits;
mod mirror;
mod order;
mod rank;
mod rendezvous;
#[cfg(test)]
mod tests;

pub use limits::{Budget, Counters, Limits, Refused, Turn};
pub use mirror::{Mark, Mirror, Out};
pub use rank::{LONGEST, MEMORY, Rank, budget, endpoint};
