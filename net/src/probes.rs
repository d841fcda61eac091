//! Duplicate address detection: probes an address before it is used (RFC 5227 section 2.1, RFC 4862 section 5.4), and
//! then announces it (RFC 5227 section 2.3, RFC 4861 section 7.2.6).
//!
//! Configured IPv4 addresses are used during their probing, so that the start is not delayed; a conflict is reported,
//! and the address defended. All other addresses are tentative during their probing: they neither send nor answer. A
//! duplicate is not used, and is probed again after a while, because the operator may have changed the other station.
//!
//! The waits are shorter than in RFC 5227 (6 s in all), so that a lease is usable soon. The probes protect against a
//! server that leases an address in use, whose owner answers within milliseconds.

use crate::address_defense;
use crate::link::Queue;
use crate::messages;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::time::Duration;
use drivers::hal::Instant;
use smoltcp::wire::{Icmpv6Repr, NdiscRepr};

/// Probes of an IPv4 address, and the wait after each.
const PROBES_V4: u8 = 3;
const WAIT_V4: Duration = Duration::from_millis(150);
/// Likewise for IPv6: DupAddrDetectTransmits (RFC 4862 section 5.1) and RETRANS_TIMER (RFC 4861 section 10).
const PROBES_V6: u8 = 1;
const WAIT_V6: Duration = Duration::from_secs(1);
/// Interval between the two announcements of an IPv4 address (RFC 5227 section 1.1: ANNOUNCE_INTERVAL).
const ANNOUNCE_AGAIN: Duration = Duration::from_secs(2);
/// Time after which a duplicate address is probed again.
const DUPLICATE: Duration = Duration::from_secs(300);
/// Delay of a retry when the queue is full.
const NO_ROOM: Duration = Duration::from_millis(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Probing {
        sent: u8,
    },
    /// Ours, with a second announcement due.
    Announcing,
    /// Ours.
    Ours,
    /// Used by another station.
    Duplicate,
}

#[derive(Clone, Copy, Debug)]
struct Probe {
    ip: IpAddr,
    /// It is used during its probing.
    at_once: bool,
    state: State,
    /// Time of the next action.
    due: Option<Instant>,
}

/// Probing states of an interface's addresses.
#[derive(Debug, Default)]
pub struct Probes {
    /// Detection is enabled. If not, every address is used at once.
    detects: bool,
    probes: Vec<Probe>,
}

impl Probes {
    /// Enables detection. Existing addresses are probed as well.
    pub fn enable(&mut self) {
        self.detects = true;
        self.probes.clear();
    }

    /// Whether detection is enabled.
    pub fn detects(&self) -> bool {
        self.detects
    }

    /// Resets the states of all addresses.
    pub fn clear(&mut self) {
        self.probes.clear();
    }

    /// Sets the wanted addresses, each with whether it is used during its probing. New ones are probed.
    pub fn want(&mut self, wanted: impl Iterator<Item = (IpAddr, bool)>, now: Instant) {
        let before = core::mem::take(&mut self.probes);
        if !self.detects {
            return;
        }
        for (ip, at_once) in wanted {
            let known = before.iter().find(|probe| probe.ip == ip).copied();
            let new = Probe { ip, at_once, state: State::Probing { sent: 0 }, due: Some(now) };
            self.probes.push(known.unwrap_or(new));
        }
    }

    /// Probes all addresses again, because the link came up. Addresses that are ours stay in use, unless the link was
    /// never up before: then no station could have answered the earlier probes.
    pub fn restart(&mut self, was_never_up: bool, now: Instant) {
        for probe in &mut self.probes {
            let ours = matches!(probe.state, State::Announcing | State::Ours);
            probe.at_once |= ours && !was_never_up;
            (probe.state, probe.due) = (State::Probing { sent: 0 }, Some(now));
        }
    }

    /// Whether an address may be used.
    pub fn may_use(&self, ip: IpAddr) -> bool {
        let probe = self.probes.iter().find(|probe| probe.ip == ip);
        probe.is_none_or(|p| p.at_once || matches!(p.state, State::Announcing | State::Ours))
    }

    /// Whether an address is unusable until its probing ends.
    pub fn is_tentative(&self, ip: IpAddr) -> bool {
        let probe = self.probes.iter().find(|probe| probe.ip == ip);
        probe.is_some_and(|p| !p.at_once && matches!(p.state, State::Probing { .. }))
    }

    /// Records that another station has or probes an address. An address in use stays in use.
    pub fn found(&mut self, ip: IpAddr, now: Instant) {
        let probing = |probe: &Probe| matches!(probe.state, State::Probing { .. });
        for probe in self.probes.iter_mut().filter(|p| p.ip == ip && probing(p)) {
            (probe.state, probe.due) = match probe.at_once {
                true => (State::Ours, None),
                false => (State::Duplicate, Some(now + DUPLICATE)),
            };
        }
    }

    /// Sends probes and announcements that are due. True if an address has become usable.
    pub fn poll(&mut self, mac: [u8; 6], queue: &mut Queue, now: Instant) -> bool {
        let mut changed = false;
        for probe in &mut self.probes {
            if probe.due.is_none_or(|due| now < due) {
                continue;
            }
            if queue.is_full() {
                probe.due = Some(now + NO_ROOM);
                continue;
            }
            let (count, wait) = match probe.ip {
                IpAddr::V4(_) => (PROBES_V4, WAIT_V4),
                IpAddr::V6(_) => (PROBES_V6, WAIT_V6),
            };
            (probe.state, probe.due) = match probe.state {
                State::Probing { sent } if sent < count => {
                    push_probe(probe.ip, mac, queue);
                    (State::Probing { sent: sent + 1 }, Some(now + wait))
                }
                State::Probing { .. } => {
                    changed |= !probe.at_once;
                    address_defense::announce_one(mac, probe.ip, queue);
                    match probe.ip {
                        IpAddr::V4(_) => (State::Announcing, Some(now + ANNOUNCE_AGAIN)),
                        IpAddr::V6(_) => (State::Ours, None),
                    }
                }
                State::Announcing => {
                    address_defense::announce_one(mac, probe.ip, queue);
                    (State::Ours, None)
                }
                State::Ours => (State::Ours, None),
                State::Duplicate => (State::Probing { sent: 0 }, Some(now)),
            };
        }
        changed
    }

    /// When [`Probes::poll`] is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.probes.iter().filter_map(|probe| probe.due).min()
    }
}

/// Queues a probe: a request for an address from the unspecified address.
fn push_probe(ip: IpAddr, mac: [u8; 6], queue: &mut Queue) {
    match ip {
        IpAddr::V4(ip) => messages::push_arp_request(queue, mac, Ipv4Addr::UNSPECIFIED, ip),
        IpAddr::V6(target_addr) => {
            let group = messages::solicited_node(target_addr);
            let solicitation =
                Icmpv6Repr::Ndisc(NdiscRepr::NeighborSolicit { target_addr, lladdr: None });
            messages::push_icmpv6(queue, mac, Ipv6Addr::UNSPECIFIED, group, &solicitation);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::OUR_MAC;

    const V4: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
    const V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1));

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    fn probing(ip: IpAddr, at_once: bool) -> Probes {
        let mut probes = Probes::default();
        probes.enable();
        probes.want([(ip, at_once)].into_iter(), at(0));
        probes
    }

    /// Runs from timer to timer until `end`. Returns when an address became usable, and the number of frames sent.
    fn run(probes: &mut Probes, end: u64) -> (Option<Instant>, usize) {
        let (mut queue, mut usable, mut frames) = (Queue::new(8, 128), None, 0);
        while let Some(now) = probes.poll_timeout().filter(|&now| now <= at(end)) {
            if probes.poll(OUR_MAC, &mut queue, now) {
                usable = Some(now);
            }
            frames += queue.len();
            queue.clear();
        }
        (usable, frames)
    }

    #[test]
    fn lease_address_is_usable_after_three_probes_and_announced_twice() {
        let mut probes = probing(V4, false);
        assert!(!probes.may_use(V4) && probes.is_tentative(V4));
        assert_eq!(run(&mut probes, 10_000), (Some(at(450)), 5));
        assert!(probes.may_use(V4) && !probes.is_tentative(V4));
    }

    #[test]
    fn ipv6_address_is_usable_after_a_second_without_answer() {
        let mut probes = probing(V6, false);
        assert!(!probes.may_use(V6));
        assert_eq!(run(&mut probes, 10_000), (Some(at(1000)), 2));
        assert!(probes.may_use(V6));
    }

    #[test]
    fn duplicate_is_not_used_and_probed_again_after_a_while() {
        for ip in [V4, V6] {
            let mut probes = probing(ip, false);
            run(&mut probes, 100);
            probes.found(ip, at(100));
            assert_eq!(run(&mut probes, 300_000).0, None);
            assert!(!probes.may_use(ip) && !probes.is_tentative(ip));
            assert!(run(&mut probes, 310_000).0.is_some(), "the other station is gone");
        }
    }

    #[test]
    fn configured_ipv4_address_is_used_during_its_probing() {
        let mut probes = probing(V4, true);
        assert!(probes.may_use(V4) && !probes.is_tentative(V4));
        run(&mut probes, 100);
        probes.found(V4, at(100));
        assert!(probes.may_use(V4));
        assert_eq!(run(&mut probes, 10_000), (None, 0), "no further probes or announcements");
    }

    #[test]
    fn link_up_probes_addresses_again_while_in_use() {
        let mut probes = probing(V6, false);
        run(&mut probes, 5000);
        probes.restart(false, at(5000));
        assert!(probes.may_use(V6));
        assert_eq!(run(&mut probes, 10_000), (None, 2));
        probes.restart(true, at(10_000));
        probes.want([(V6, false)].into_iter(), at(10_000));
        assert!(probes.may_use(V6), "it was in use while the link was up");
    }

    #[test]
    fn without_detection_every_address_is_used() {
        let mut probes = Probes::default();
        probes.want([(V6, false)].into_iter(), at(0));
        assert!(probes.may_use(V6));
        assert_eq!(run(&mut probes, 10_000), (None, 0));
    }
}
