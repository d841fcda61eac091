//! `./isthmus test linx`: the LINX engine against an independent peer, against recordings of LINX for Linux, against
//! itself over a bad network, and against tshark's dissectors.

mod original;
mod peer;
mod rlnh;
mod sim;
mod snapshot;
mod tshark;
