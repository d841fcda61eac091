//! Paths to peers that pass smaller packets than the port sends. Path MTU discovery finds some; others are suspected,
//! because large packets over them were lost.

use super::MAX_SMALL_PATHS;
use alloc::collections::VecDeque;
use core::net::IpAddr;
use drivers::hal::Instant;
use verbs::PathMtu;

/// A path.
#[derive(Clone, Copy, Debug)]
struct SmallPath {
    to: IpAddr,
    mtu: PathMtu,
    /// When the entry expires.
    until: Instant,
    /// Whether it is known, not only suspected.
    is_known: bool,
}

/// All paths, the oldest entry first.
#[derive(Debug, Default)]
pub(super) struct SmallPaths(VecDeque<SmallPath>);

impl SmallPaths {
    /// Enters what path MTU discovery has found: the path passes packets of `mtu` bytes (layer 3).
    pub fn limit(&mut self, to: IpAddr, mtu: usize, until: Instant) {
        let mtu = PathMtu::for_ethernet(mtu).unwrap_or(PathMtu::Mtu256);
        self.enter(SmallPath { to, mtu, until, is_known: true });
    }

    /// Enters a suspicion. Returns whether the path was not limited to `mtu` before.
    pub fn suspect(&mut self, to: IpAddr, mtu: PathMtu, now: Instant, until: Instant) -> bool {
        let is_new = self.passes(to, PathMtu::Mtu4096, now) > mtu;
        self.enter(SmallPath { to, mtu, until, is_known: false });
        is_new
    }

    fn enter(&mut self, path: SmallPath) {
        self.0.retain(|other| (other.to, other.is_known) != (path.to, path.is_known));
        if self.0.len() == MAX_SMALL_PATHS {
            self.0.pop_front();
        }
        self.0.push_back(path);
    }

    /// The path MTU for connections that this node offers: at most `most`, and what is known or suspected.
    pub fn passes(&self, to: IpAddr, most: PathMtu, now: Instant) -> PathMtu {
        self.least(to, most, now, |_| true)
    }

    /// The path MTU for connections that a peer requests: at most `most`, and what is known. A suspicion refuses
    /// nobody, because the peer may only have been down.
    pub fn surely_passes(&self, to: IpAddr, most: PathMtu, now: Instant) -> PathMtu {
        self.least(to, most, now, |path| path.is_known)
    }

    fn least(
        &self,
        to: IpAddr,
        most: PathMtu,
        now: Instant,
        counts: impl Fn(&SmallPath) -> bool,
    ) -> PathMtu {
        let paths = self.0.iter().filter(|path| path.to == to && now < path.until && counts(path));
        paths.map(|path| path.mtu).fold(most, PathMtu::min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;

    const LARGE: PathMtu = PathMtu::Mtu4096;
    const TO: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(10, 0, 0, 2));

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn suspicion_limits_offers_and_refuses_nobody() {
        let mut paths = SmallPaths::default();
        assert!(paths.suspect(TO, PathMtu::Mtu1024, at(0), at(600)));
        assert!(!paths.suspect(TO, PathMtu::Mtu1024, at(1), at(601)));
        assert_eq!(paths.passes(TO, LARGE, at(600)), PathMtu::Mtu1024);
        assert_eq!(paths.surely_passes(TO, LARGE, at(600)), LARGE);
        assert_eq!(paths.passes(TO, LARGE, at(601)), LARGE, "it expires");
        assert!(paths.suspect(TO, PathMtu::Mtu1024, at(700), at(1300)));
    }

    #[test]
    fn known_limit_stays_beside_a_suspicion() {
        let mut paths = SmallPaths::default();
        paths.limit(TO, 3000, at(600));
        assert!(paths.suspect(TO, PathMtu::Mtu1024, at(0), at(300)));
        assert_eq!(paths.surely_passes(TO, LARGE, at(0)), PathMtu::Mtu2048);
        assert_eq!(paths.passes(TO, LARGE, at(0)), PathMtu::Mtu1024);
        assert_eq!(paths.passes(TO, LARGE, at(300)), PathMtu::Mtu2048);
        // What is found later replaces what was found before.
        paths.limit(TO, 9000, at(600));
        assert_eq!(paths.surely_passes(TO, LARGE, at(0)), LARGE);
        assert_eq!(paths.passes(TO, PathMtu::Mtu512, at(0)), PathMtu::Mtu512);
    }

    #[test]
    fn paths_are_bounded_and_the_oldest_is_dropped() {
        let mut paths = SmallPaths::default();
        for n in 0..=MAX_SMALL_PATHS {
            paths.limit([10, 0, (n >> 8) as u8, n as u8].into(), 700, at(600));
        }
        assert_eq!(paths.0.len(), MAX_SMALL_PATHS);
        assert_eq!(paths.passes([10, 0, 0, 0].into(), LARGE, at(0)), LARGE);
    }
}
