//! The LINX engine against an independent peer in Python ([`peer`], [`session`]), against recordings of LINX for Linux
//! ([`recording`]), and against itself over a network with loss and reordering ([`fabric`]).

pub mod fabric;
pub mod pattern;
pub mod pcap;
pub mod peer;
pub mod recording;
pub mod session;
