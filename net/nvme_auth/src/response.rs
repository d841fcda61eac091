//! Responses to challenges (Base Specification sections 8.3.4.5.5 to 8.3.4.5.9).

use crate::ids::Concatenation;
use tls_psk::hash::{Hash, Secret};

/// The end that responds to a challenge.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Responder {
    Host,
    Controller,
}

/// Inputs of a response.
pub struct Transaction<'a> {
    pub hash: Hash,
    pub id: u16,
    pub concatenation: Concatenation,
    pub host: &'a str,
    pub subsystem: &'a str,
    /// Hash of the Diffie-Hellman secret; None without a group.
    pub session_key: Option<&'a Secret>,
}

impl Transaction<'_> {
    /// The response with a transformed key to a challenge and its sequence number.
    pub fn response(
        &self,
        responder: Responder,
        key: &Secret,
        challenge: &[u8],
        sequence: u32,
    ) -> Secret {
        let augmented = self.session_key.map(|key| self.hash.hmac(key.as_bytes(), &[challenge]));
        let challenge = augmented.as_ref().map_or(challenge, Secret::as_bytes);
        let (host, subsystem) = (self.host.as_bytes(), self.subsystem.as_bytes());
        let (label, first, second): (&[u8], _, _) = match responder {
            Responder::Host => (b"HostHost", host, subsystem),
            Responder::Controller => (b"Controller", subsystem, host),
        };
        let (sequence, id) = (sequence.to_le_bytes(), self.id.to_le_bytes());
        let concatenation = [self.concatenation as u8];
        let parts: [&[u8]; 8] =
            [challenge, &sequence, &id, &concatenation, label, first, &[0], second];
        self.hash.hmac(key.as_bytes(), &parts)
    }
}
