//! `ob1`, Open MPI 4's message protocol above the BTL: its headers ([`header`]), and a rank that returns every
//! message ([`Mirror`]). Neither does I/O, and both read only the header of a message.

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
