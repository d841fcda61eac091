//! TLS 1.3 with pre-shared keys under the connection of a queue ([`tls_psk`]). The client's identity names host and
//! subsystem: a Connect over the connection must have the same.

use crate::fabrics::remedy;
use crate::queue::QueueId;
use crate::target::{Context, Target};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use drivers::hal::Instant;
use net::refusal::Refusal;
use nvme_auth::{Channel, Identity};
use tls_psk::{Config, Failure, Session};

/// First byte of a TLS connection: a record of the handshake. A PDU of NVMe/TCP never begins with it.
pub(crate) const FIRST_BYTE: u8 = 0x16;

/// Names that a client has proven by its key.
#[derive(Debug)]
pub(crate) struct Proven {
    pub host: String,
    pub subsystem: String,
    pub channel: Channel,
}

/// Result of looking up the key of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tried {
    /// Its turn comes in a later round.
    Later,
    /// A key fits.
    Fits,
    /// No key fits.
    Refused,
}

impl Target {
    /// The connection of a queue.
    pub(crate) fn channel_of(&mut self, id: QueueId) -> Channel {
        let queue = self.queue(id);
        queue.and_then(|queue| queue.tls.as_ref()).map_or(Channel::Clear, |tls| tls.channel)
    }

    /// Begins TLS on a connection whose first byte is that of a TLS record. None if it is refused.
    pub(crate) fn begin_tls(&mut self, id: QueueId, ctx: &mut Context<'_>) -> Option<Box<Session>> {
        let host = self.queue(id)?.ends.host;
        let reason = match self.security.keys.may_use_tls() {
            false => Some("tls_not_configured"),
            true => self.security.sources.admit(host, ctx.now).err(),
        };
        if let Some(reason) = reason {
            self.refuse_tls(id, "TLS".into(), reason, remedy(reason).into());
            return None;
        }
        Some(Box::new(Session::server(Config::default(), &mut *ctx.random, ctx.now)))
    }

    /// Looks up the key of a client that has sent its ClientHello.
    pub(crate) fn try_keys(&mut self, id: QueueId, session: &mut Session, now: Instant) -> Tried {
        if self.security.handshakes == 0 {
            let Some(queue) = self.queue(id) else { return Tried::Refused };
            if !core::mem::replace(&mut queue.awaits_turn, true) {
                self.security.handshaking.push_back(id);
            }
            return Tried::Later;
        }
        self.security.handshakes -= 1;
        let offered: Vec<Vec<u8>> = session.offered().map(Vec::from).collect();
        let mut asked = String::from("TLS with an identity that is not one of NVMe/TCP");
        for (index, bytes) in offered.iter().enumerate() {
            let Some(identity) = Identity::parse(bytes) else { continue };
            asked = alloc::format!("TLS: {} for {}", identity.subsystem, identity.host);
            let subsystems = self.subsystems.iter().map(|(_, one)| &one.config);
            let keys = self.security.keys.candidates(&identity, subsystems, now);
            if !keys.iter().any(|psk| session.try_key(index, psk)) {
                continue;
            }
            let channel = match identity.is_generated {
                true => Channel::Generated,
                false => Channel::Tls,
            };
            let (host, subsystem) = (identity.host.into(), identity.subsystem.into());
            if let Some(queue) = self.queue(id) {
                queue.tls = Some(Box::new(Proven { host, subsystem, channel }));
            }
            self.security.counts.handshakes += 1;
            return Tried::Fits;
        }
        // A key may have fitted, and the key exchange failed.
        session.refuse();
        self.tls_failed(id, now);
        self.refuse_tls(id, asked, "tls_key", remedy("tls_key").into());
        Tried::Refused
    }

    /// Counts a failure of TLS.
    fn tls_failed(&mut self, id: QueueId, now: Instant) {
        self.security.counts.handshakes_failed += 1;
        if let Some(host) = self.queue(id).map(|queue| queue.ends.host) {
            self.security.sources.failed(host, now);
        }
    }

    /// Ends a queue whose TLS has failed.
    pub(crate) fn end_tls(&mut self, id: QueueId, failure: &Failure, now: Instant) {
        self.tls_failed(id, now);
        let names = self.queue(id).and_then(|queue| queue.tls.as_ref());
        let asked = match names {
            Some(tls) => alloc::format!("TLS: {} for {}", tls.subsystem, tls.host),
            None => "TLS".into(),
        };
        self.refuse_tls(id, asked, "tls_failed", alloc::format!("{failure}"));
        self.end_queue(id);
    }

    fn refuse_tls(&mut self, id: QueueId, asked: String, reason: &'static str, advice: String) {
        let who = self.queue(id).map(|queue| queue.ends.host);
        let advice = advice.into();
        self.refusals.push(Refusal { who, what: "nvme", asked, reason, advice });
    }
}
