//! The TLS key of a secure channel concatenation (Base Specification section 8.3.4.5.9; Linux `nvme_auth_generate_psk`,
//! `nvme_auth_generate_digest`, `nvme_auth_derive_tls_psk`).

use crate::psk::{self, Derivation, Version};
use alloc::string::String;
use tls_psk::Psk;
use tls_psk::hash::{Hash, Secret};

/// A TLS key that an authentication has made.
#[derive(Clone, Debug)]
pub struct GeneratedPsk {
    /// Its identity in TLS: `NVMe1Ghh hostnqn subnqn digest`.
    pub identity: String,
    /// The key.
    pub psk: Psk,
}

impl GeneratedPsk {
    /// From the session key and both challenges. None for SHA-512, which has no cipher suite.
    pub(crate) fn new(
        hash: Hash,
        session_key: &Secret,
        challenges: [&[u8]; 2],
        host: &str,
        subsystem: &str,
    ) -> Option<GeneratedPsk> {
        let generated = hash.hmac(session_key.as_bytes(), &challenges);
        psk::tls_psk(hash, &generated, true, host, subsystem, Version::V1, Derivation::Standard)
            .map(|(identity, psk)| GeneratedPsk { identity, psk })
    }
}
