//! `./isthmus test linx`: the LINX engine against an independent peer, against recordings of the original, against itself over a bad network, and what
//! tshark makes of what it says.

mod original;
mod peer;
mod rlnh;
mod sim;
mod snapshot;
mod tshark;
