//! The LINX engine against others: a peer written apart from it, in Python ([`peer`], [`session`]), and itself over a
//! network that loses and reorders ([`fabric`]).

pub mod fabric;
pub mod pattern;
pub mod pcap;
pub mod peer;
pub mod session;
