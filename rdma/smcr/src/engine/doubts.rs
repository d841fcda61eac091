//! Blocklist of servers whose RoCE path timed out: the handshake passes over TCP, but nothing arrives over RoCE
//! (because a firewall drops UDP port 4791, for example). Linux waits for seconds at each connection. Here SMC-R is not
//! offered for a while after several such handshakes in a row, so that further connections use TCP at once.

use alloc::collections::BTreeMap;
use core::net::IpAddr;
use core::time::Duration;
use drivers::hal::Instant;

/// Timeouts in a row that block a server. A single one may be a lost packet.
const IN_A_ROW: u32 = 3;
/// How long a server is blocked after the last timeout.
const TIME: Duration = Duration::from_secs(30);
/// Most servers in the list.
const SERVERS: usize = 64;

/// Servers with timeouts: the number in a row, and the time of the last.
#[derive(Debug, Default)]
pub(super) struct Blocklist(BTreeMap<IpAddr, (u32, Instant)>);

impl Blocklist {
    /// Records a timeout on a server's RoCE path. Returns the blocking time if the server becomes blocked.
    pub fn record_timeout(&mut self, server: IpAddr, now: Instant) -> Option<Duration> {
        let known = self.blocks(server, now);
        if self.0.len() >= SERVERS && !self.0.contains_key(&server) {
            let oldest = self.0.iter().min_by_key(|(_, (_, last))| *last).map(|(ip, _)| *ip);
            oldest.map(|ip| self.0.remove(&ip));
        }
        let (count, last) = self.0.entry(server).or_insert((0, now));
        *count = count.saturating_add(1);
        *last = now;
        (!known && *count >= IN_A_ROW).then_some(TIME)
    }

    /// Records a successful handshake with a server.
    pub fn record_success(&mut self, server: IpAddr) {
        if !self.0.is_empty() {
            self.0.remove(&server);
        }
    }

    /// Whether a server is blocked. Afterwards one more handshake is tried.
    pub fn blocks(&self, server: IpAddr, now: Instant) -> bool {
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
    fn server_is_blocked_after_timeouts_in_a_row_until_time_or_success() {
        let (mut blocklist, server) = (Blocklist::default(), IpAddr::from([10, 0, 0, 1]));
        for n in 0..2 {
            assert_eq!(blocklist.record_timeout(server, at(n)), None);
            assert!(!blocklist.blocks(server, at(n)));
        }
        assert_eq!(blocklist.record_timeout(server, at(2)), Some(TIME));
        assert_eq!(blocklist.record_timeout(server, at(2)), None, "blocked already");
        assert!(blocklist.blocks(server, at(31)) && !blocklist.blocks(server, at(32)));
        blocklist.record_timeout(server, at(40));
        assert!(blocklist.blocks(server, at(41)), "one more timeout is enough");
        assert!(!blocklist.blocks(IpAddr::from([10, 0, 0, 2]), at(41)));
        blocklist.record_success(server);
        assert!(!blocklist.blocks(server, at(41)));
    }

    #[test]
    fn blocklist_is_bounded() {
        let mut blocklist = Blocklist::default();
        for n in 0..1000u64 {
            blocklist.record_timeout(IpAddr::from((n as u32).to_be_bytes()), at(n));
        }
        assert_eq!(blocklist.0.len(), SERVERS);
    }
}
