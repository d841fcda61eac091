//! Who may connect, and how much all connections may take together: the books of all listeners and
//! connectors, over SMC-R and TCP. A listener costs nothing while nobody is connected; the buffers of a
//! connection come out of one pool, and what finds nothing in it, or has enough already, is refused.

use crate::wire::Reason;
use alloc::borrow::Cow;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use core::net::IpAddr;
use net::hosts::{Hosts, accountable};
use net::refusal::{Refusal, Refusals};

/// Who may connect to a listener.
#[derive(Clone, Debug, Default)]
pub struct Gate {
    /// The listener, as its refusals call it.
    pub name: String,
    /// The key of the configuration that says who may connect, for advice.
    pub key: &'static str,
    /// Who may connect.
    pub hosts: Hosts,
    /// Who may speak SMC-R.
    pub smc: Hosts,
    /// Connections that a host may have of this listener; without it what [`Admission`] says of all listeners.
    pub per_host: Option<u32>,
}

/// What one host may have of a number of places where nothing else is said: three quarters, so that none is left without
/// one because of another.
pub fn share_of(places: u32) -> u32 {
    (places - places.div_ceil(4)).max(1)
}

impl Gate {
    /// The key of the configuration that says how many may be connected: beside the one that says who.
    fn places_key(&self) -> String {
        self.beside_key("connections")
    }

    fn beside_key(&self, key: &str) -> String {
        let section = self.key.rsplit_once('.').map_or("smc", |(section, _)| section);
        format!("{section}.{key}")
    }
}

/// What is refused here.
const CONNECTION: &str = "connection";
/// Why, when all places are taken.
const FULL: &str = "connections";

/// What a host holds.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    connections: u32,
    pinned: u32,
    /// Of the buffers.
    bytes: u64,
}

/// The books.
#[derive(Debug)]
pub struct Admission {
    /// Bytes that buffers may still take, and those of one host.
    left: u64,
    bytes_per_host: u64,
    /// Connections that a host may have.
    per_host: u32,
    /// By who is accountable: the connections of a host, and of these those that are over here, and that the host has not
    /// let go of.
    hosts: BTreeMap<IpAddr, Held>,
    /// What was refused.
    pub refusals: Refusals,
}

impl Default for Admission {
    fn default() -> Self {
        Admission::new(u64::MAX, u32::MAX)
    }
}

impl Admission {
    /// For buffers of so many bytes, of which one host may have three quarters, and so many connections of one host.
    pub fn new(bytes: u64, per_host: u32) -> Self {
        let (hosts, refusals) = (BTreeMap::new(), Refusals::default());
        let bytes_per_host = bytes - bytes / 4;
        Admission { left: bytes, bytes_per_host, per_host, hosts, refusals }
    }

    /// Bytes that buffers may still take.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// Lets a connection of a host in that takes so many bytes, and speaks `smc`; false if it may not. It has `here` of the
    /// listener already.
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
                format!("it has {count} connections; limits.connections_per_host allows no more");
            if pinned > 0 {
                let over = format!(", and {pinned} of them are over here and not at its end");
                advice.insert_str(advice.find(';').unwrap_or(advice.len()), &over);
            }
            ("connections_per_host", advice.into())
        } else if let Some(most) = gate.per_host.filter(|most| here >= *most) {
            let advice = format!(
                "it has {here} of this port's places; {} allows no more than {most}",
                gate.beside_key("connections_per_host")
            );
            ("connections_per_host", advice.into())
        } else if taken > 0 && taken + bytes > self.bytes_per_host {
            let advice = "the buffers of its connections take three quarters of what there is for all hosts: smaller \
                          buffer_size, fewer connections of it, or more memory";
            ("memory_per_host", advice.into())
        } else if bytes > self.left {
            let advice = "the buffers of all connections take what there is for them: smaller buffer_size, \
                          fewer connections, or more memory";
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

    /// Notes that a host's connection was refused.
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

    /// A host found all of a listener's places taken.
    pub(super) fn found_no_place(&mut self, host: IpAddr, gate: &Gate) {
        let advice =
            format!("all its places are taken: raise {}, or close some", gate.places_key());
        self.refuse(host, gate, FULL, advice.into());
    }

    /// So many more did, of whom nothing else is known.
    pub(super) fn more_found_no_place(&mut self, count: u64) {
        if count > 0 {
            self.refusals.count(CONNECTION, FULL, count);
        }
    }

    /// What a host's SMC-R connection needs could not be made.
    pub(super) fn has_no_socket(&mut self, host: IpAddr, gate: &Gate) {
        let advice = "there is no memory or no queue pair for another SMC-R connection";
        self.refuse(host, gate, "memory", advice.into());
    }

    /// SMC-R was declined to a host, which goes on over TCP.
    pub(super) fn declined(&mut self, host: IpAddr, reason: Reason) {
        self.refusals.push(Refusal {
            who: Some(host),
            what: "handshake",
            asked: "SMC-R".into(),
            reason: "declined",
            advice: format!("{reason}; the connection goes on over TCP").into(),
        });
    }

    /// A handshake of a host that stalled has made room for others.
    pub(super) fn gave_way(&mut self, host: IpAddr, gate: &Gate) {
        let advice =
            "its SMC-R handshake stalled while others waited for a place; is UDP port 4791 open?";
        self.refuse(host, gate, "stalled", advice.into());
    }

    /// A connection of a host that was let in is over.
    pub(super) fn leave(&mut self, host: IpAddr, bytes: u64) {
        self.give_back(bytes);
        self.forget_one(host, false, bytes);
    }

    /// A connection of a host's is over here, and the host can still write to its buffer, or has not said that it is over:
    /// until [`Admission::unpin`] it counts as one that it has.
    pub(super) fn pin(&mut self, host: IpAddr) {
        let held = self.hosts.entry(accountable(host)).or_default();
        held.connections += 1;
        held.pinned += 1;
    }

    /// The host has let go of such a connection.
    pub(super) fn unpin(&mut self, host: IpAddr) {
        self.forget_one(host, true, 0);
    }

    fn forget_one(&mut self, host: IpAddr, pinned: bool, bytes: u64) {
        let host = accountable(host);
        let Some(held) = self.hosts.get_mut(&host) else { return };
        held.connections = held.connections.saturating_sub(1);
        held.pinned = held.pinned.saturating_sub(u32::from(pinned));
        held.bytes = held.bytes.saturating_sub(bytes);
        if held.connections == 0 {
            self.hosts.remove(&host);
        }
    }

    /// Takes bytes for a connection of ours; false if there are too few.
    pub fn take(&mut self, bytes: u64) -> bool {
        let enough = bytes <= self.left;
        self.left -= if enough { bytes } else { 0 };
        enough
    }

    /// Gives such bytes back.
    pub fn give_back(&mut self, bytes: u64) {
        self.left = self.left.saturating_add(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn each_is_refused_for_its_reason_and_what_leaves_makes_room() {
        let mut books = Admission::new(100, 2);
        let hosts = |text: &str| Hosts::new(Vec::from([text.parse().unwrap()]));
        let (name, key) = ("rule web".into(), "rule.N.hosts");
        let (hosts, smc) = (hosts("10.0.0.0/8"), hosts("10.1.0.0/16"));
        let gate = Gate { name, key, hosts, smc, per_host: None };
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        assert!(!books.admit(ip("192.0.2.1"), &gate, false, 10, 0));
        assert!(!books.admit(ip("10.0.0.1"), &gate, true, 10, 0));
        assert!(books.admit(ip("10.0.0.1"), &gate, false, 10, 0));
        assert!(books.admit(ip("10.1.0.1"), &gate, true, 35, 0));
        assert!(books.admit(ip("10.1.0.1"), &gate, true, 35, 0));
        assert!(!books.admit(ip("10.1.0.1"), &gate, true, 1, 0), "it has two");
        assert!(!books.admit(ip("10.1.0.2"), &gate, true, 21, 0), "there are twenty");
        assert!(books.take(20) && !books.take(1));
        books.leave(ip("10.1.0.1"), 35);
        assert!(books.admit(ip("10.1.0.1"), &gate, true, 35, 0));
        let reasons: Vec<_> =
            core::iter::from_fn(|| books.refusals.pop()).map(|refusal| refusal.reason).collect();
        let host = "host_not_admitted";
        assert_eq!(reasons, [host, host, "connections_per_host", "memory"]);
        books.leave(ip("10.0.0.1"), 10);
        assert_eq!(books.hosts.len(), 1, "who has none is forgotten");
    }

    /// With what is shipped one host has some of everything, and another finds some left.
    #[test]
    fn greedy_host_leaves_places_and_memory_to_others() {
        assert_eq!([1, 2, 3, 4, 64, 128, 4096].map(share_of), [1, 1, 2, 3, 48, 96, 3072]);
        let gate = Gate { per_host: Some(share_of(64)), ..Gate::default() };
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let (greedy, honest) = (ip("10.0.0.1"), ip("10.0.0.2"));
        let mut books = Admission::new(4 << 20, 1024);
        let has = (0..64).filter(|&n| books.admit(greedy, &gate, false, 1, n)).count();
        assert_eq!(has, 48);
        assert!(books.admit(honest, &gate, false, 1, 0));
        // However many listeners there are.
        let mut books = Admission::new(4 << 20, 1024);
        let each = 64 << 10;
        let has = (0..64).filter(|_| books.admit(greedy, &gate, false, each, 0)).count();
        assert_eq!(has, 48);
        let reason = core::iter::from_fn(|| books.refusals.pop()).last().map(|one| one.reason);
        assert_eq!(reason, Some("memory_per_host"));
        assert!((0..16).all(|_| books.admit(honest, &gate, false, each, 0)));
        // One is had in any case.
        let mut books = Admission::new(100, 1024);
        assert!(books.admit(greedy, &gate, false, 100, 0));
        books.leave(greedy, 100);
        assert!(books.hosts.is_empty() && books.left() == 100);
    }

    /// A host with a /64 has as many addresses as it likes, and not more connections for that.
    #[test]
    fn a_64_is_one_host() {
        let mut books = Admission::new(100, 2);
        let gate = Gate::default();
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        assert!(books.admit(ip("2001:db8::1"), &gate, false, 1, 0));
        assert!(books.admit(ip("2001:db8::2"), &gate, false, 1, 0));
        assert!(!books.admit(ip("2001:db8::3:4:5:6"), &gate, false, 1, 0));
        assert!(books.admit(ip("2001:db8:0:1::1"), &gate, false, 1, 0));
        books.leave(ip("2001:db8::1"), 1);
        assert!(books.admit(ip("2001:db8::9"), &gate, false, 1, 0));
        for host in ["2001:db8::2", "2001:db8::9", "2001:db8:0:1::1"] {
            books.leave(ip(host), 1);
        }
        assert!(books.hosts.is_empty());
    }
}
