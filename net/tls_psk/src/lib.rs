//! TLS 1.3 with an external pre-shared key (RFC 8446), for NVMe/TCP: server and client, without I/O.
//!
//! rustls knows PSKs only as its own session tickets, and NVMe/TCP has nothing but external ones. This engine
//! negotiates one thing: a PSK that both ends have, with a key exchange (`psk_dhe_ke`). There are no certificates, no
//! tickets, no early data, no resumption and no older version. A peer that asks for any of these gets the alert of
//! RFC 8446.
//!
//! | | |
//! |---|---|
//! | cipher suites | `TLS_AES_128_GCM_SHA256`, `TLS_AES_256_GCM_SHA384`: the one with the hash of the PSK |
//! | groups | x25519, secp256r1, secp384r1; HelloRetryRequest in both roles |
//! | after the handshake | application data, KeyUpdate, alerts; a client skips a server's tickets |
//!
//! [`Session`] is one connection without its TCP socket. [`Session::receive`] takes bytes from the peer,
//! [`Session::text`] is decrypted data, [`Session::outgoing`] are records to be sent, [`Session::poll_timeout`] is the
//! deadline of the handshake. Randomness is drawn at construction only.
//!
//! # States
//!
//! ```text
//! server                                             client
//!
//!   START                                              START
//!     | ClientHello                                      | sends ClientHello
//!     v                                                  v
//!   WANTS KEY                                          HELLO SENT
//!     | try_key(): the binder is right                   |          \ HelloRetryRequest
//!     |          \ no share of an own group              |           v
//!     |           v                                      |         RETRIED, sends ClientHello again
//!     |         RETRIED, sends HelloRetryRequest         |          /
//!     |          / ClientHello again, same key           | ServerHello
//!     v         v                                        v
//!   FINISHED, sends ServerHello,                       EXTENSIONS
//!     |       EncryptedExtensions, Finished              | EncryptedExtensions
//!     |                                                  v
//!     |                                                FINISHED
//!     | Finished                                         | Finished; sends Finished
//!     v                                                  v
//!   OPEN                                               OPEN
//!
//! any state -- violation, refuse(), deadline, alert, early close() --> FAILED
//! OPEN      -- close_notify of the peer --> ENDED: no more text is received
//! OPEN      -- close() --> no more text is sent
//! ```
//!
//! A server that WANTS KEY takes no input. Its caller looks up the offered identities ([`Session::offered`]), and calls
//! [`Session::try_key`] with each key that may belong to one, or [`Session::refuse`]. Several keys for one identity are
//! possible: tools derive NVMe's keys in two ways. The binder is verified before the key exchange: a client without a
//! key costs a few hashes, and no public-key operation. The alert is the same for an unknown identity and a wrong key.
//!
//! The importer of external PSKs (RFC 9258) is not used, because no host of NVMe/TCP does: NVMe's own derivation binds
//! a key to a hash and to both names. As the identity names host and subsystem, a server that looks its keys up by both
//! cannot be made a client's own peer (RFC 9257 section 4.1).
//!
//! # Bounds
//!
//! A session has two buffers, which are allocated at construction: one record from the peer (16,645 bytes), and
//! [`Config::outgoing`] for the peer. Handshake messages are at most 8 KiB and are dropped when the session opens.
//! Records without application data (tickets, KeyUpdates, empty records) are at most 32 in a row. A handshake has a
//! deadline. A decrypted record stays in its buffer until the caller has consumed it, and the rest is not taken.
//!
//! A key encrypts at most [`Config::blocks_per_key`] blocks of 16 bytes (RFC 8446 section 5.5). Then a KeyUpdate is
//! sent if the peer can take one ([`Config::key_updates`]). Linux' nvme-tcp cannot: patches for it were under review in
//! 2026. For such peers a key is used until its hard limit of 2^44 blocks, at which the session fails.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
#[cfg(test)]
extern crate std;

mod alert;
mod cipher;
mod client;
mod client_messages;
mod codec;
mod connection;
mod group;
pub mod hash;
mod hello;
mod record;
mod schedule;
mod server;
mod session;

pub use alert::{Alert, Failure};
pub use client::OfferedPsk;
pub use connection::{Config, Random};
pub use group::Group;
pub use schedule::Psk;
pub use session::Session;

#[cfg(test)]
mod tests;
