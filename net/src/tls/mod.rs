//! TLS 1.3 and 1.2 for servers and clients in a poll loop.
//!
//! [`Tls`] is shared by all connections: certificate and key ([`Pair`]), randomness, and a rate limit of handshakes.
//! [`Session`] is one connection without its TCP socket. It stands between the TCP socket and `http::Connection`
//! (`http/open.rs`): records in, text out, no I/O and no thread.
//!
//! rustls implements the protocol (unbuffered interface), RustCrypto the cryptography, without C or assembly.
//! `provider.rs` connects the two: the crate `rustls-rustcrypto` is an alpha and takes randomness from the operating
//! system, while here every secret comes from the appliance's own generator.
//!
//! [`Client`] is the other side: a connection to a server whose certificate is known by its fingerprint.
//!
//! Suites: AES-128-GCM and ChaCha20-Poly1305, X25519 and P-256, ECDSA on P-256. A client may prove that it has a certificate,
//! which is then known by its fingerprint (`peer.rs`), or by the names in it if an authority of the operator has issued it
//! (`authorities.rs`; only this needs the time). There are no tickets, so TLS needs no memory of past clients. Public-key
//! operations are counted: a connection whose handshake used three delays the others by 10 ms (`context.rs`).
//!
//! The gateway (`appliance/src/gateway/tls.rs`) selects the certificate at start: the configuration's, whose parts are
//! checked with the document, or one of the appliance's own, which is stored in the configuration's area
//! (`config/kept_pair.rs`).

mod authorities;
mod ciphers;
mod client;
mod context;
mod pair;
mod peer;
mod provider;
mod session;

pub use authorities::{Authorities, ClientCertificate, SubjectName};
pub use client::{Client, Clients};
pub use context::Tls;
pub use pair::{Pair, PairError};
pub use provider::Random;
pub use session::{Failure, Session};

#[cfg(test)]
mod tests;
