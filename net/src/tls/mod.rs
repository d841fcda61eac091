//! TLS 1.3 and 1.2 for a server on a polling loop.
//!
//! [`Tls`] is what all connections share: certificate and key ([`Pair`]), randomness, and how much time
//! handshakes may take; [`Session`] is one connection without its TCP socket. The protocol is rustls', the
//! arithmetic RustCrypto's. Certificates are of ECDSA on P-256. Does not ask clients for certificates, and
//! resumes nothing, so that it needs neither a clock nor memory of clients that are gone.

mod ciphers;
mod context;
mod pair;
mod provider;
mod session;

pub use context::Tls;
pub use pair::{Pair, PairError};
pub use provider::Random;
pub use session::{Failure, Session};

#[cfg(test)]
mod tests;
