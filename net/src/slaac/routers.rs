//! The default routers of a link (RFC 4861 section 6.3.6), with their preferences (RFC 4191 section 3.2).
//!
//! A router that does not answer neighbour solicitations loses to one that does, whatever their preferences. Where
//! there are several, each is asked once when it appears, and a silent one again now and then.

use alloc::vec::Vec;
use core::net::Ipv6Addr;
use core::time::Duration;
use drivers::hal::Instant;

/// Routers that are kept. A further one takes the place of a silent one only, so that a station which pretends to be
/// many does not push those out that work.
const MOST: usize = 8;
/// After which a silent router is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(60);

/// How much the network's operator prefers a router.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Preference {
    Low,
    Medium,
    High,
}

impl Preference {
    /// From the flags of an advertisement.
    pub fn of(flags: u8) -> Self {
        match flags >> 3 & 3 {
            1 => Preference::High,
            3 => Preference::Low,
            // The fourth value is reserved, and counts as medium.
            _ => Preference::Medium,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Router {
    ip: Ipv6Addr,
    until: Instant,
    preference: Preference,
    silent: bool,
    /// When it is asked whether it is there.
    ask: Option<Instant>,
}

/// The table.
#[derive(Debug, Default)]
pub struct Routers {
    routers: Vec<Router>,
    best: Option<Ipv6Addr>,
}

impl Routers {
    /// The router that packets go to.
    pub fn best(&self) -> Option<Ipv6Addr> {
        self.best
    }

    /// A router advertises itself for `lifetime`; none ends it. True if another one is the best now.
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
                let router = Router { ip, until, preference, silent: false, ask: Some(now) };
                if self.routers.len() < MOST {
                    self.routers.push(router);
                } else if let Some(silent) = self.routers.iter_mut().find(|router| router.silent) {
                    *silent = router;
                }
            }
        }
        self.choose()
    }

    /// It became known whether a station answers. True if another one is the best now.
    pub fn heard(&mut self, ip: Ipv6Addr, answers: bool, now: Instant) -> bool {
        let Some(router) = self.routers.iter_mut().find(|router| router.ip == ip) else {
            return false;
        };
        router.silent = !answers;
        router.ask = (!answers).then(|| now + ASK_AGAIN);
        self.choose()
    }

    /// A router that is to be asked whether it is there.
    pub fn next_to_ask(&mut self, now: Instant) -> Option<Ipv6Addr> {
        if self.routers.len() < 2 {
            return None;
        }
        let due = |router: &&mut Router| router.ask.is_some_and(|at| at <= now);
        let router = self.routers.iter_mut().find(due)?;
        router.ask = Some(now + ASK_AGAIN);
        Some(router.ip)
    }

    /// Forgets those whose lifetime is over. True if another one is the best now.
    pub fn expire(&mut self, now: Instant) -> bool {
        self.routers.retain(|router| now < router.until);
        self.choose()
    }

    /// When [`Routers::expire`] or [`Routers::next_to_ask`] has something to do.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let several = self.routers.len() > 1;
        let ask = self.routers.iter().filter_map(|router| router.ask).filter(|_| several);
        self.routers.iter().map(|router| router.until).chain(ask).min()
    }

    fn choose(&mut self) -> bool {
        let before = self.best;
        let rank = |router: &Router| (!router.silent, router.preference);
        let mut best: Option<Router> = None;
        for router in &self.routers {
            let current = before == Some(router.ip);
            // The one in use stays among equals, also among those that are all silent.
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
    fn preferred_router_wins_and_equals_stay() {
        assert_eq!(
            [0x00, 0x08, 0x10, 0x18, 0xc8].map(Preference::of),
            [Medium, High, Medium, Low, High]
        );
        let mut routers = Routers::default();
        for (n, preference, best) in [(1, Low, 1), (2, Medium, 2), (3, Medium, 2), (4, High, 4)] {
            routers.advertised(ip(n), HOUR, preference, at(0));
            assert_eq!(routers.best(), Some(ip(best)));
        }
        assert!(routers.advertised(ip(4), Duration::ZERO, High, at(1)), "it withdraws");
        assert_eq!(routers.best(), Some(ip(2)));
        assert!(routers.advertised(ip(2), HOUR, Low, at(1)));
        assert_eq!(routers.best(), Some(ip(3)));
        assert!(routers.expire(at(3600)) && routers.best() == Some(ip(2)));
    }

    #[test]
    fn silent_router_loses_to_one_that_answers() {
        let mut routers = Routers::default();
        routers.advertised(ip(1), HOUR, High, at(0));
        assert_eq!(routers.next_to_ask(at(0)), None, "a single one is not asked for nothing");
        routers.advertised(ip(2), HOUR, Low, at(0));
        assert_eq!(
            [routers.next_to_ask(at(0)), routers.next_to_ask(at(0))],
            [Some(ip(1)), Some(ip(2))]
        );
        assert_eq!(routers.next_to_ask(at(0)), None);
        assert!(routers.heard(ip(1), false, at(3)) && routers.best() == Some(ip(2)));
        assert!(!routers.heard(ip(2), true, at(3)));
        routers.advertised(ip(1), HOUR, High, at(4));
        assert_eq!(routers.best(), Some(ip(2)), "to advertise is no answer");
        assert_eq!(routers.poll_timeout(), Some(at(63)));
        assert_eq!(routers.next_to_ask(at(63)), Some(ip(1)));
        assert!(routers.heard(ip(1), true, at(63)) && routers.best() == Some(ip(1)));
        routers.heard(ip(1), false, at(64));
        routers.heard(ip(2), false, at(64));
        assert_eq!(routers.best(), Some(ip(1)), "all are silent: the preferred one");
    }

    #[test]
    fn flood_of_routers_does_not_displace_one_that_answers() {
        let mut routers = Routers::default();
        routers.advertised(ip(1), HOUR, Medium, at(0));
        routers.heard(ip(1), true, at(0));
        for n in 2..5000 {
            routers.advertised(ip(n), HOUR, Medium, at(1));
        }
        assert_eq!(routers.routers.len(), MOST);
        for n in 2..5000 {
            routers.heard(ip(n), false, at(4));
        }
        assert_eq!(routers.best(), Some(ip(1)));
        // An honest one finds a place then.
        routers.advertised(ip(6000), HOUR, High, at(5));
        assert_eq!(routers.best(), Some(ip(6000)));
    }
}
