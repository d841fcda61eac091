//! The default routers of a link (RFC 4861 section 6.3.6), with their preferences (RFC 4191 section 3.2).
//!
//! A router that answers neighbour solicitations is preferred to one that does not, whatever their preferences. If
//! there are several, each is probed when it appears, and an unreachable one again periodically.

use alloc::vec::Vec;
use core::net::Ipv6Addr;
use core::time::Duration;
use drivers::hal::Instant;

/// Maximum number of routers. A further one replaces only an unreachable one, so that a station with many forged
/// routers cannot evict working ones.
const MOST: usize = 8;
/// Time after which an unreachable router is probed again.
const PROBE_AGAIN: Duration = Duration::from_secs(60);

/// Preference of a router (RFC 4191 section 2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Preference {
    Low,
    Medium,
    High,
}

impl Preference {
    /// Parses the flags of an advertisement.
    pub fn of(flags: u8) -> Self {
        match flags >> 3 & 3 {
            1 => Preference::High,
            3 => Preference::Low,
            // The fourth value is reserved and treated as medium.
            _ => Preference::Medium,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Router {
    ip: Ipv6Addr,
    until: Instant,
    preference: Preference,
    unreachable: bool,
    /// When its reachability is probed.
    probe_at: Option<Instant>,
}

/// Table of default routers.
#[derive(Debug, Default)]
pub struct Routers {
    routers: Vec<Router>,
    best: Option<Ipv6Addr>,
}

impl Routers {
    /// The selected default router.
    pub fn best(&self) -> Option<Ipv6Addr> {
        self.best
    }

    /// Handles an advertisement of a router. A zero lifetime removes it. True if the default router changes.
    pub fn advertised(
        &mut self,
        ip: Ipv6Addr,
        lifetime: Duration,
        preference: Preference,
        now: Instant,
    ) -> bool {
        let until = now + lifetime;
        let place = self.routers.iter().position(|router| router.ip == ip);
        match place {
            Some(place) if lifetime.is_zero() => drop(self.routers.remove(place)),
            Some(place) => {
                let router = &mut self.routers[place];
                (router.until, router.preference) = (until, preference);
            }
            None if lifetime.is_zero() => {}
            None => {
                let router =
                    Router { ip, until, preference, unreachable: false, probe_at: Some(now) };
                if self.routers.len() < MOST {
                    self.routers.push(router);
                } else if let Some(unreachable) =
                    self.routers.iter_mut().find(|router| router.unreachable)
                {
                    *unreachable = router;
                }
            }
        }
        self.choose()
    }

    /// Records whether a station answers. True if the default router changes.
    pub fn set_reachable(&mut self, ip: Ipv6Addr, answers: bool, now: Instant) -> bool {
        let Some(router) = self.routers.iter_mut().find(|router| router.ip == ip) else {
            return false;
        };
        router.unreachable = !answers;
        router.probe_at = (!answers).then(|| now + PROBE_AGAIN);
        self.choose()
    }

    /// A router whose reachability must be probed.
    pub fn next_to_probe(&mut self, now: Instant) -> Option<Ipv6Addr> {
        if self.routers.len() < 2 {
            return None;
        }
        let due = |router: &&mut Router| router.probe_at.is_some_and(|at| at <= now);
        let router = self.routers.iter_mut().find(due)?;
        router.probe_at = Some(now + PROBE_AGAIN);
        Some(router.ip)
    }

    /// Removes expired routers. True if the default router changes.
    pub fn expire(&mut self, now: Instant) -> bool {
        self.routers.retain(|router| now < router.until);
        self.choose()
    }

    /// When [`Routers::expire`] or [`Routers::next_to_probe`] is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let several = self.routers.len() > 1;
        let probe_at = self.routers.iter().filter_map(|router| router.probe_at).filter(|_| several);
        self.routers.iter().map(|router| router.until).chain(probe_at).min()
    }

    fn choose(&mut self) -> bool {
        let before = self.best;
        let rank = |router: &Router| (!router.unreachable, router.preference);
        let mut best: Option<Router> = None;
        for router in &self.routers {
            let current = before == Some(router.ip);
            // Among equals the router in use is kept, also if all are unreachable.
            let better = best.is_none_or(|best| {
                rank(router) > rank(&best) || (rank(router) == rank(&best) && current)
            });
            if better {
                best = Some(*router);
            }
        }
        self.best = best.map(|router| router.ip);
        self.best != before
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Preference::{High, Low, Medium};

    const HOUR: Duration = Duration::from_secs(3600);

    fn ip(n: u16) -> Ipv6Addr {
        Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, n)
    }

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn preferred_router_is_selected_and_kept_among_equals() {
        assert_eq!(
            [0x00, 0x08, 0x10, 0x18, 0xc8].map(Preference::of),
            [Medium, High, Medium, Low, High]
        );
        let mut routers = Routers::default();
        for (n, preference, best) in [(1, Low, 1), (2, Medium, 2), (3, Medium, 2), (4, High, 4)] {
            routers.advertised(ip(n), HOUR, preference, at(0));
            assert_eq!(routers.best(), Some(ip(best)));
        }
        assert!(routers.advertised(ip(4), Duration::ZERO, High, at(1)), "withdrawn");
        assert_eq!(routers.best(), Some(ip(2)));
        assert!(routers.advertised(ip(2), HOUR, Low, at(1)));
        assert_eq!(routers.best(), Some(ip(3)));
        assert!(routers.expire(at(3600)) && routers.best() == Some(ip(2)));
    }

    #[test]
    fn reachable_router_is_preferred() {
        let mut routers = Routers::default();
        routers.advertised(ip(1), HOUR, High, at(0));
        assert_eq!(routers.next_to_probe(at(0)), None, "a single router is not probed");
        routers.advertised(ip(2), HOUR, Low, at(0));
        assert_eq!(
            [routers.next_to_probe(at(0)), routers.next_to_probe(at(0))],
            [Some(ip(1)), Some(ip(2))]
        );
        assert_eq!(routers.next_to_probe(at(0)), None);
        assert!(routers.set_reachable(ip(1), false, at(3)) && routers.best() == Some(ip(2)));
        assert!(!routers.set_reachable(ip(2), true, at(3)));
        routers.advertised(ip(1), HOUR, High, at(4));
        assert_eq!(routers.best(), Some(ip(2)), "an advertisement does not prove reachability");
        assert_eq!(routers.poll_timeout(), Some(at(63)));
        assert_eq!(routers.next_to_probe(at(63)), Some(ip(1)));
        assert!(routers.set_reachable(ip(1), true, at(63)) && routers.best() == Some(ip(1)));
        routers.set_reachable(ip(1), false, at(64));
        routers.set_reachable(ip(2), false, at(64));
        assert_eq!(routers.best(), Some(ip(1)), "all are unreachable: the preferred one");
    }

    #[test]
    fn flood_of_routers_does_not_evict_a_reachable_one() {
        let mut routers = Routers::default();
        routers.advertised(ip(1), HOUR, Medium, at(0));
        routers.set_reachable(ip(1), true, at(0));
        for n in 2..5000 {
            routers.advertised(ip(n), HOUR, Medium, at(1));
        }
        assert_eq!(routers.routers.len(), MOST);
        for n in 2..5000 {
            routers.set_reachable(ip(n), false, at(4));
        }
        assert_eq!(routers.best(), Some(ip(1)));
        // A further honest router finds a place.
        routers.advertised(ip(6000), HOUR, High, at(5));
        assert_eq!(routers.best(), Some(ip(6000)));
    }
}
