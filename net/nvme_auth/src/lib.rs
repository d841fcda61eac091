//! In-band authentication of NVMe over Fabrics (DH-HMAC-CHAP; NVM Express Base Specification 2.1 section 8.3.4.5),
//! as target and as host, and the keys of NVMe/TCP's TLS (NVMe/TCP Transport Specification 1.1 section 3.6). No I/O.
//!
//! | part | contents |
//! |---|---|
//! | [`Target`] | one queue's authentication at the controller, with re-authentication and secure concatenation |
//! | [`Host`] | one queue's authentication at the host |
//! | [`DhchapSecret`] | a secret in the text form `DHHC-1:hh:base64:`, and its transformation with an NQN |
//! | [`ConfiguredPsk`], [`GeneratedPsk`], [`Identity`] | TLS keys: `NVMeTLSkey-1:hh:base64:`, both derivations, identities of version 0 and 1 |
//! | [`Pending`] | a bound on unfinished authentications, by host and in all |
//!
//! NQNs are arguments: the host's is that of its Connect, which the caller has checked against its allow list. Nothing
//! here reads a clock, draws randomness by itself, or prints a secret.
//!
//! # Messages
//!
//! The host sends its messages with Authentication Send, and fetches the controller's with Authentication Receive.
//!
//! ```text
//!        host                                        controller ([`Target`])
//!                                                      IDLE  <-------- deadline, from any state
//!   AUTH_Negotiate  --- hashes, groups, sc_c --->       |
//!                                                      EXPONENT      work(): g^x, in slices
//!                                                       |
//!   <--- C1, S1, g^x ----------  Challenge             CHALLENGE
//!                                                       | fetched
//!   Reply  ---------- R1, [C2, S2], g^y -------->      REPLY
//!                                                       |
//!                                                      SECRET        work(): (g^y)^x, in slices
//!                                                       |   \
//!                                                       |    wrong -> FAILURE1 -- fetched --> FAILED
//!   <--- [R2] ----------------   Success1              SUCCESS1
//!                                                       | fetched        \ no C2, or S2 = 0
//!   Success2 or Failure2  ---------------------->      SUCCESS2           \
//!                                                       |                  \
//!                                                      AUTHENTICATED <-----+     Negotiate: begins anew
//! ```
//!
//! [`Host`] is the mirror image: it fetches Challenge, works, sends Reply, fetches Success1, and sends Success2 if it
//! has challenged the controller.
//!
//! A challenge is used once: a Reply consumes it, right or wrong. Responses are compared in constant time. A message
//! in the wrong state, with another transaction id or with wrong lengths ends the transaction with Failure1. A failed
//! queue takes no message: its owner completes the command that fetched Failure1, and closes the connection after the
//! host did, or after a while. (Linux waits for its command's completion for 60 seconds if the connection closes
//! earlier.)
//!
//! # Secure concatenation
//!
//! With `sc_c` 2 or 3 the authentication also makes a TLS key: [`Target::take_generated`] has it before Success1 is
//! fetched, because the host's next connection may use it at once. It requires a group other than NULL, SHA-256 or
//! SHA-384, and a C2. S2 = 0 says that the C2 is not to be answered. `sc_c` 2 is for a queue in clear, 3 for one under
//! TLS, and both for the admin queue only.
//!
//! # Cost
//!
//! An authentication with a group takes two exponentiations at each end. Exponents are as long as RFC 7919 appendix A
//! recommends, so ffdhe3072 takes about 440 multiplications of 3,072-bit numbers per exponentiation.
//! [`Target::work`] and [`Host::work`] perform a given number of multiplications at a time. All arithmetic on secrets
//! is `crypto-bigint`'s, in constant time. Groups above ffdhe3072 are used only if they are configured.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
#[cfg(test)]
extern crate std;

mod base64;
mod dh;
mod generated;
mod host;
mod ids;
mod message;
mod pending;
mod primes;
mod psk;
mod response;
mod secret;
mod target;

pub use generated::GeneratedPsk;
pub use host::{Host, HostConfig};
pub use ids::{Concatenation, DhGroup, Explanation};
pub use pending::Pending;
pub use psk::{ConfiguredPsk, Derivation, Identity, PskError, Version};
pub use secret::{DhchapSecret, SecretError};
pub use target::{Answer, Channel, Policy, Sequence, Target, TargetConfig, TargetKeys};
pub use tls_psk::hash::Hash;

/// Fills memory with bytes from a cryptographic generator.
pub type Random<'a> = &'a mut dyn FnMut(&mut [u8]);

/// Maximum number of bytes of an NQN.
pub const NQN: usize = 223;

/// Outcome of an authentication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The host is authenticated.
    Authenticated {
        /// The controller is, too.
        mutually: bool,
    },
    /// It failed.
    Failed {
        /// The explanation that was sent to the peer, or that the peer sent.
        explanation: Explanation,
        /// Reason and remedy, for the operator.
        why: &'static str,
    },
    /// The peer did not continue before the deadline.
    Slow,
}

#[cfg(test)]
mod tests;
