//! The LINX engine against others: a peer written apart from it, in Python ([`peer`], [`session`]), recordings of the
//! original ([`recording`]), and itself over a network that loses and reorders ([`fabric`]).

pub mod fabric;
pub mod pattern;
pub mod pcap;
pub mod peer;
pub mod recording;
pub mod session;
