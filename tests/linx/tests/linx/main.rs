//! `./isthmus test linx`: the LINX engine against an independent peer, against itself over a bad network, and what
//! tshark makes of what it says.

mod peer;
mod rlnh;
mod sim;
mod snapshot;
mod tshark;
