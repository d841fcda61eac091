//! Access control and memory accounting for all listeners and connectors, over SMC-R and TCP. A listener without
//! connections takes no memory. The buffers of all connections come from one budget. A connection beyond the budget, or
//! beyond the share of its host, is refused.

use crate::wire::Reason;
use alloc::borrow::Cow;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use core::net::IpAddr;
use net::hosts::{Hosts, accountable};
use net::refusal::{Refusal, Refusals};

/// Access rules of a listener.
#[derive(Clone, Debug, Default)]
pub struct Gate {
    /// Name of the listener in its refusals.
    pub name: String,
    /// Configuration key that lists the admitted hosts, for the advice in refusals.
    pub key: &'static str,
    /// Hosts that may connect.
    pub hosts: Hosts,
    /// Hosts that may use SMC-R.
    pub smc: Hosts,
    /// Most connections of one host to this listener. None: only the limit of [`Admission`] applies.
    pub per_host: Option<u32>,
}

/// Default share of one host in `places`: three quarters, so that one host cannot take all places.
pub fn share_of(places: u32) -> u32 {
    (places - places.div_ceil(4)).max(1)
}

impl Gate {
    /// Configuration key of the connection limit, in the section of [`Gate::key`].
    fn places_key(&self) -> String {
        self.beside_key("connections")
    }

    fn beside_key(&self, key: &str) -> String {
        let section = self.key.rsplit_once('.').map_or("smc", |(section, _)| section);
        format!("{section}.{key}")
    }
}

/// `what` of these refusals.
const CONNECTION: &str = "connection";
/// Reason when all places of a listener are taken.
const FULL: &str = "connections";

/// Connections and memory of one host.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    connections: u32,
    /// Of these, sockets closed here whose peer has not closed or released the receive buffer.
    pinned: u32,
    /// Buffer bytes.
    bytes: u64,
}

/// Accounts of connections and buffer memory, by host.
#[derive(Debug)]
pub struct Admission {
    /// Free bytes of the budget for buffers.
    left: u64,
    /// Most buffer bytes of one host.
    bytes_per_host: u64,
    /// Most connections of one host.
    per_host: u32,
    /// By [`accountable`] address.
    hosts: BTreeMap<IpAddr, Held>,
    /// Refusals to report.
    pub refusals: Refusals,
}

impl Default for Admission {
    fn default() -> Self {
        Admission::new(u64::MAX, u32::MAX)
    }
}

impl Admission {
    /// Creates accounts with a budget of `bytes` for buffers, of which one host may use three quarters, and `per_host`
    /// connections of one host.
    pub fn new(bytes: u64, per_host: u32) -> Self {
        let (hosts, refusals) = (BTreeMap::new(), Refusals::default());
        let bytes_per_host = bytes - bytes / 4;
        Admission { left: bytes, bytes_per_host, per_host, hosts, refusals }
    }

    /// Free bytes of the budget for buffers.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// Admits a connection of a host and charges `bytes` for its buffers; `smc`: the client offers SMC. `here`:
    /// connections that the host has to this listener. Returns false after recording a refusal.
    pub(super) fn admit(
        &mut self,
        host: IpAddr,
        gate: &Gate,
        smc: bool,
        bytes: u64,
        here: u32,
    ) -> bool {
        let held = self.hosts.get(&accountable(host)).copied().unwrap_or_default();
        let Held { connections: count, pinned, bytes: taken } = held;
        let (reason, advice): (_, Cow<'static, str>) = if !gate.hosts.admits(host) {
            let advice = format!("{} does not list this host", gate.key);
            ("host_not_admitted", advice.into())
        } else if smc && !gate.smc.admits(host) {
            ("host_not_admitted", "smc.hosts does not list this host for SMC-R".into())
        } else if count >= self.per_host {
            let mut advice =
                format!("host has {count} connections; limits.connections_per_host allows no more");
            if pinned > 0 {
                let over = format!(", of which {pinned} are closed here but not by the host");
                advice.insert_str(advice.find(';').unwrap_or(advice.len()), &over);
            }
            ("connections_per_host", advice.into())
        } else if let Some(most) = gate.per_host.filter(|most| here >= *most) {
            let advice = format!(
                "host has {here} connections to this port; {} allows no more than {most}",
                gate.beside_key("connections_per_host")
            );
            ("connections_per_host", advice.into())
        } else if taken > 0 && taken + bytes > self.bytes_per_host {
            let advice = "the host's buffers take three quarters of the memory for all hosts: reduce buffer_size, \
                          or its connections, or add memory";
            ("memory_per_host", advice.into())
        } else if bytes > self.left {
            let advice = "the memory for buffers is exhausted: reduce buffer_size, or the number of connections, \
                          or add memory";
            ("memory", advice.into())
        } else {
            let held = self.hosts.entry(accountable(host)).or_default();
            held.connections += 1;
            held.bytes += bytes;
            self.left -= bytes;
            return true;
        };
        self.refuse(host, gate, reason, advice);
        false
    }

    /// Records a refused connection.
    fn refuse(
        &mut self,
        host: IpAddr,
        gate: &Gate,
        reason: &'static str,
        advice: Cow<'static, str>,
    ) {
        let (who, asked) = (Some(host), gate.name.clone());
        self.refusals.push(Refusal { who, what: CONNECTION, asked, reason, advice });
    }

    /// Records a refusal because all places of the listener are taken.
    pub(super) fn refuse_full(&mut self, host: IpAddr, gate: &Gate) {
        let advice =
            format!("all its connections are in use: raise {}, or close some", gate.places_key());
        self.refuse(host, gate, FULL, advice.into());
    }

    /// Counts further refusals of this kind, of which the listener did not record the host.
    pub(super) fn count_refused_full(&mut self, count: u64) {
        if count > 0 {
            self.refusals.count(CONNECTION, FULL, count);
        }
    }

    /// Records a refusal because the engine has no socket for the connection.
    pub(super) fn refuse_no_socket(&mut self, host: IpAddr, gate: &Gate) {
        let advice = "no memory or no queue pair for another SMC-R connection: reduce connections, or add memory";
        self.refuse(host, gate, "memory", advice.into());
    }

    /// Records that the engine declined SMC-R; TCP carries the host's connection.
    pub(super) fn declined(&mut self, host: IpAddr, reason: Reason) {
        self.refusals.push(Refusal {
            who: Some(host),
            what: "handshake",
            asked: "SMC-R".into(),
            reason: "declined",
            advice: format!("{reason}; TCP carries the connection").into(),
        });
    }

    /// Records that a stalled handshake of the host was evicted.
    pub(super) fn note_evicted(&mut self, host: IpAddr, gate: &Gate) {
        let advice =
            "its stalled SMC-R handshake was evicted for other clients; is UDP port 4791 open?";
        self.refuse(host, gate, "stalled", advice.into());
    }

    /// Releases an admitted connection and its buffer bytes.
    pub(super) fn leave(&mut self, host: IpAddr, bytes: u64) {
        self.give_back(bytes);
        self.release_one(host, false, bytes);
    }

    /// Charges the host for a socket that is closed here while the host can still write to its buffer, or has not
    /// closed. It counts as a connection until [`Admission::unpin`].
    pub(super) fn pin(&mut self, host: IpAddr) {
        let held = self.hosts.entry(accountable(host)).or_default();
        held.connections += 1;
        held.pinned += 1;
    }

    /// Releases a pinned connection: the host has closed, or its buffer is gone.
    pub(super) fn unpin(&mut self, host: IpAddr) {
        self.release_one(host, true, 0);
    }

    fn release_one(&mut self, host: IpAddr, pinned: bool, bytes: u64) {
        let host = accountable(host);
        let Some(held) = self.hosts.get_mut(&host) else { return };
        held.connections = held.connections.saturating_sub(1);
        held.pinned = held.pinned.saturating_sub(u32::from(pinned));
        held.bytes = held.bytes.saturating_sub(bytes);
        if held.connections == 0 {
            self.hosts.remove(&host);
        }
    }

    /// Charges bytes for an outgoing connection. Returns false if too few are free.
    pub fn take(&mut self, bytes: u64) -> bool {
        let enough = bytes <= self.left;
        self.left -= if enough { bytes } else { 0 };
        enough
    }

    /// Returns bytes to the budget.
    pub fn give_back(&mut self, bytes: u64) {
        self.left = self.left.saturating_add(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn refusals_have_their_reason_and_leaving_frees_room() {
        let mut admission = Admission::new(100, 2);
        let hosts = |text: &str| Hosts::new(Vec::from([text.parse().unwrap()]));
        let (name, key) = ("rule web".into(), "rule.N.hosts");
        let (hosts, smc) = (hosts("10.0.0.0/8"), hosts("10.1.0.0/16"));
        let gate = Gate { name, key, hosts, smc, per_host: None };
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        assert!(!admission.admit(ip("192.0.2.1"), &gate, false, 10, 0));
        assert!(!admission.admit(ip("10.0.0.1"), &gate, true, 10, 0));
        assert!(admission.admit(ip("10.0.0.1"), &gate, false, 10, 0));
        assert!(admission.admit(ip("10.1.0.1"), &gate, true, 35, 0));
        assert!(admission.admit(ip("10.1.0.1"), &gate, true, 35, 0));
        assert!(!admission.admit(ip("10.1.0.1"), &gate, true, 1, 0), "limit of two connections");
        assert!(!admission.admit(ip("10.1.0.2"), &gate, true, 21, 0), "only 20 bytes are free");
        assert!(admission.take(20) && !admission.take(1));
        admission.leave(ip("10.1.0.1"), 35);
        assert!(admission.admit(ip("10.1.0.1"), &gate, true, 35, 0));
        let reasons: Vec<_> = core::iter::from_fn(|| admission.refusals.pop())
            .map(|refusal| refusal.reason)
            .collect();
        let host = "host_not_admitted";
        assert_eq!(reasons, [host, host, "connections_per_host", "memory"]);
        admission.leave(ip("10.0.0.1"), 10);
        assert_eq!(admission.hosts.len(), 1, "hosts without connections are removed");
    }

    /// With the shipped limits one host has a share of everything, and another host finds room.
    #[test]
    fn greedy_host_leaves_places_and_memory_to_others() {
        assert_eq!([1, 2, 3, 4, 64, 128, 4096].map(share_of), [1, 1, 2, 3, 48, 96, 3072]);
        let gate = Gate { per_host: Some(share_of(64)), ..Gate::default() };
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let (greedy, honest) = (ip("10.0.0.1"), ip("10.0.0.2"));
        let mut admission = Admission::new(4 << 20, 1024);
        let has = (0..64).filter(|&n| admission.admit(greedy, &gate, false, 1, n)).count();
        assert_eq!(has, 48);
        assert!(admission.admit(honest, &gate, false, 1, 0));
        // The share of memory holds over any number of listeners.
        let mut admission = Admission::new(4 << 20, 1024);
        let each = 64 << 10;
        let has = (0..64).filter(|_| admission.admit(greedy, &gate, false, each, 0)).count();
        assert_eq!(has, 48);
        let reason = core::iter::from_fn(|| admission.refusals.pop()).last().map(|one| one.reason);
        assert_eq!(reason, Some("memory_per_host"));
        assert!((0..16).all(|_| admission.admit(honest, &gate, false, each, 0)));
        // The first connection of a host is admitted regardless of its share.
        let mut admission = Admission::new(100, 1024);
        assert!(admission.admit(greedy, &gate, false, 100, 0));
        admission.leave(greedy, 100);
        assert!(admission.hosts.is_empty() && admission.left() == 100);
    }

    /// A host with a /64 has many addresses, but no more connections for that.
    #[test]
    fn ipv6_64_prefix_is_one_host() {
        let mut admission = Admission::new(100, 2);
        let gate = Gate::default();
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        assert!(admission.admit(ip("2001:db8::1"), &gate, false, 1, 0));
        assert!(admission.admit(ip("2001:db8::2"), &gate, false, 1, 0));
        assert!(!admission.admit(ip("2001:db8::3:4:5:6"), &gate, false, 1, 0));
        assert!(admission.admit(ip("2001:db8:0:1::1"), &gate, false, 1, 0));
        admission.leave(ip("2001:db8::1"), 1);
        assert!(admission.admit(ip("2001:db8::9"), &gate, false, 1, 0));
        for host in ["2001:db8::2", "2001:db8::9", "2001:db8:0:1::1"] {
            admission.leave(ip(host), 1);
        }
        assert!(admission.hosts.is_empty());
    }
}
