//! Refusals of connections and sessions: the error for the client, the reason for counters, and the advice for the log.

use super::{Server, SessionId};
use crate::Errno;
use alloc::string::String;
use core::net::IpAddr;
use net::refusal::Refusal;

/// A refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Error for the client.
    pub errno: Errno,
    /// Label of the counter.
    pub reason: &'static str,
    /// Cause and remedy, for the log.
    pub advice: &'static str,
}

/// Admission check of the user for a host that requests a connection, with the session if it exists.
pub type Door<'a> = &'a dyn Fn(IpAddr, Option<SessionId>) -> Result<(), Refused>;

impl Server {
    /// Records a refusal.
    pub fn refuse(&mut self, who: IpAddr, what: &'static str, asked: String, why: Refused) {
        let Refused { reason, advice, .. } = why;
        let advice = advice.into();
        self.refusals.push(Refusal { who: Some(who), what, asked, reason, advice });
    }
}
