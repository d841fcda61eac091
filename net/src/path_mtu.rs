//! Path MTUs below the interface's MTU, by destination (RFC 1191, RFC 8201). They are learnt from routers' ICMP
//! reports, or from smaller segments that passed after larger ones were lost (RFC 4821). Independent of the TCP
//! implementation.
//!
//! An entry expires ten minutes after it was last learnt: then larger packets are tried again.

use alloc::collections::BTreeMap;
use core::net::IpAddr;
use core::time::Duration;
use drivers::hal::Instant;

/// Smallest path MTUs. A smaller report over IPv4 counts as this, over IPv6 it is ignored as false.
const LEAST_V4: usize = 576;
const LEAST_V6: usize = 1280;
/// Smallest MTU that a router may report (RFC 791).
const LEAST_REPORTED: usize = 68;
/// Maximum number of entries.
const PATHS: usize = 1024;
const LIFETIME: Duration = Duration::from_secs(600);
/// Sizes that are tried without a router's report. Above the largest, half the present size is tried.
const STEPS: [usize; 4] = [1500, 1400, LEAST_V6, LEAST_V4];

#[derive(Clone, Copy, Debug)]
struct Entry {
    mtu: u16,
    until: Instant,
}

/// The destinations with a path MTU below the interface's.
#[derive(Debug, Default)]
pub struct PathMtus {
    entries: BTreeMap<IpAddr, Entry>,
    changes: u64,
}

impl PathMtus {
    /// A counter that changes whenever an entry is learnt.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Path MTU to `ip` and its expiry; None without an entry.
    pub fn get(&self, ip: IpAddr, now: Instant) -> Option<(usize, Instant)> {
        let entry = self.entries.get(&ip).filter(|entry| now < entry.until)?;
        Some((entry.mtu.into(), entry.until))
    }

    /// All entries: destination, path MTU, expiry.
    pub fn all(&self) -> impl Iterator<Item = (IpAddr, usize, Instant)> {
        self.entries.iter().map(|(ip, entry)| (*ip, entry.mtu.into(), entry.until))
    }

    /// Learns that the path MTU to `ip` is `mtu`.
    pub fn learn(&mut self, ip: IpAddr, mtu: usize, now: Instant) {
        if self.entries.len() >= PATHS && !self.entries.contains_key(&ip) {
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.until);
            if let Some((&oldest, _)) = oldest {
                self.entries.remove(&oldest);
            }
        }
        let mtu = u16::try_from(mtu).unwrap_or(u16::MAX);
        self.entries.insert(ip, Entry { mtu, until: now + LIFETIME });
        self.changes += 1;
    }
}

/// The path MTU that follows from a router's report of `mtu` for a packet of `length` bytes to `ip`. 0 is a report
/// without an MTU. None if the report is false.
pub fn reported(ip: IpAddr, mtu: usize, length: usize) -> Option<usize> {
    match mtu {
        0 if ip.is_ipv4() => step_below(ip, length),
        _ if mtu >= length => None,
        _ if ip.is_ipv4() => (mtu >= LEAST_REPORTED).then_some(mtu.max(LEAST_V4)),
        _ => (mtu >= LEAST_V6).then_some(mtu),
    }
}

/// The next smaller size to try after packets of `length` bytes to `ip` were lost, if there is one.
pub fn step_below(ip: IpAddr, length: usize) -> Option<usize> {
    let least = if ip.is_ipv4() { LEAST_V4 } else { LEAST_V6 };
    if length / 2 > STEPS[0] {
        return Some(length / 2);
    }
    STEPS.into_iter().find(|&step| step < length).filter(|&step| step >= least)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(n: u32) -> IpAddr {
        core::net::Ipv4Addr::from(0x0a00_0000 + n).into()
    }

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn reported_mtu_is_bounded_below_and_above() {
        let (v4, v6) = (ip(2), "fd07::2".parse().unwrap());
        assert_eq!(reported(v4, 1400, 1500), Some(1400));
        assert_eq!(reported(v4, 100, 1500), Some(576));
        assert_eq!(reported(v4, 68, 1500), Some(576));
        assert_eq!(reported(v4, 67, 1500), None);
        assert_eq!(reported(v4, 1500, 1500), None, "the packet would have passed");
        assert_eq!(reported(v4, 0, 1500), Some(1400), "a report without an MTU");
        assert_eq!(reported(v6, 1400, 1500), Some(1400));
        assert_eq!(reported(v6, 1280, 1500), Some(1280));
        assert_eq!(reported(v6, 1279, 1500), None);
        assert_eq!(reported(v6, 0, 1500), None);
    }

    #[test]
    fn steps_end_at_the_least_size_of_the_family() {
        let sizes = |ip: IpAddr| {
            let next = |length: &usize| step_below(ip, *length);
            core::iter::successors(Some(9000), next).collect::<std::vec::Vec<_>>()
        };
        assert_eq!(sizes(ip(2)), [9000, 4500, 2250, 1500, 1400, 1280, 576]);
        assert_eq!(sizes("fd07::2".parse().unwrap()), [9000, 4500, 2250, 1500, 1400, 1280]);
    }

    #[test]
    fn entry_expires_after_ten_minutes_unless_learned_again() {
        let mut paths = PathMtus::default();
        paths.learn(ip(2), 1400, at(0));
        assert_eq!(paths.get(ip(2), at(599)), Some((1400, at(600))));
        assert_eq!(paths.get(ip(2), at(600)), None);
        assert_eq!(paths.get(ip(3), at(0)), None);
        paths.learn(ip(2), 1300, at(300));
        assert_eq!(paths.get(ip(2), at(899)), Some((1300, at(900))));
        assert_eq!(paths.changes(), 2);
    }

    #[test]
    fn full_table_evicts_the_oldest_entry() {
        let mut paths = PathMtus::default();
        for n in 0..2 * PATHS as u32 {
            paths.learn(ip(n), 1400, at(1) + Duration::from_nanos(n.into()));
        }
        let known = (0..2 * PATHS as u32).filter(|&n| paths.get(ip(n), at(2)).is_some());
        assert!(known.eq(PATHS as u32..2 * PATHS as u32));
    }
}
