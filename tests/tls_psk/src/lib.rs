//! A session of `tls_psk` on a TCP socket of the loopback interface, and programs of OpenSSL and GnuTLS as its peers.

mod link;
mod peer;

pub use link::{Key, Link, listen};
pub use peer::{Peer, openssl_session};
