//! Who is refused, and why: for the client, the log and the counters.

use super::{Server, SessionId};
use crate::Errno;
use alloc::string::String;
use core::net::IpAddr;
use net::refusal::Refusal;

/// Why something is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// For the client.
    pub errno: Errno,
    /// A label that names a counter.
    pub reason: &'static str,
    /// For people: why, and what to do about it.
    pub advice: &'static str,
}

/// The user's word on a host that wants a connection, of a session if it is known already.
pub type Door<'a> = &'a dyn Fn(IpAddr, Option<SessionId>) -> Result<(), Refused>;

impl Server {
    /// Notes that something was refused to a host.
    pub fn refuse(&mut self, who: IpAddr, what: &'static str, asked: String, why: Refused) {
        let Refused { reason, advice, .. } = why;
        let advice = advice.into();
        self.refusals.push(Refusal { who: Some(who), what, asked, reason, advice });
    }
}
