//! Servers with which SMC-R comes to nothing: its handshake goes through TCP, and what it waits for over RoCE
//! never comes (a firewall that drops UDP port 4791, say). Linux waits for seconds at each connection; here
//! SMC-R is not offered for a while after some such handshakes in a row, so that further connections go over
//! TCP at once.

use alloc::collections::BTreeMap;
use core::net::IpAddr;
use core::time::Duration;
use drivers::hal::Instant;

/// Handshakes in a row that have waited in vain. One alone may be a packet that was lost.
const IN_A_ROW: u32 = 3;
/// How long a server is in doubt after the last.
const TIME: Duration = Duration::from_secs(30);
/// Servers that are remembered.
const SERVERS: usize = 64;

/// What is known of servers, as far as it is bad.
#[derive(Debug, Default)]
pub(super) struct Doubts(BTreeMap<IpAddr, (u32, Instant)>);

impl Doubts {
    /// A handshake with a server has waited in vain for what comes over RoCE; for how long the server is in
    /// doubt, if that is news.
    pub fn waited_in_vain(&mut self, server: IpAddr, now: Instant) -> Option<Duration> {
        let known = self.concern(server, now);
        if self.0.len() >= SERVERS && !self.0.contains_key(&server) {
            let oldest = self.0.iter().min_by_key(|(_, (_, last))| *last).map(|(ip, _)| *ip);
            oldest.map(|ip| self.0.remove(&ip));
        }
        let (count, last) = self.0.entry(server).or_insert((0, now));
        *count = count.saturating_add(1);
        *last = now;
        (!known && *count >= IN_A_ROW).then_some(TIME)
    }

    /// SMC-R works with a server.
    pub fn works(&mut self, server: IpAddr) {
        if !self.0.is_empty() {
            self.0.remove(&server);
        }
    }

    /// Whether a server is in doubt. When that is over one more handshake is tried.
    pub fn concern(&self, server: IpAddr, now: Instant) -> bool {
        let known = self.0.get(&server);
        known.is_some_and(|&(count, last)| count >= IN_A_ROW && now < last + TIME)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn several_in_a_row_are_one_reason_and_time_or_success_ends_it() {
        let (mut doubts, server) = (Doubts::default(), IpAddr::from([10, 0, 0, 1]));
        for n in 0..2 {
            assert_eq!(doubts.waited_in_vain(server, at(n)), None);
            assert!(!doubts.concern(server, at(n)));
        }
        assert_eq!(doubts.waited_in_vain(server, at(2)), Some(TIME));
        assert_eq!(doubts.waited_in_vain(server, at(2)), None, "no news");
        assert!(doubts.concern(server, at(31)) && !doubts.concern(server, at(32)));
        doubts.waited_in_vain(server, at(40));
        assert!(doubts.concern(server, at(41)), "the next one in vain is enough");
        assert!(!doubts.concern(IpAddr::from([10, 0, 0, 2]), at(41)));
        doubts.works(server);
        assert!(!doubts.concern(server, at(41)));
    }

    #[test]
    fn they_are_bounded() {
        let mut doubts = Doubts::default();
        for n in 0..1000u64 {
            doubts.waited_in_vain(IpAddr::from((n as u32).to_be_bytes()), at(n));
        }
        assert_eq!(doubts.0.len(), SERVERS);
    }
}
