//! Reports of stations that use the IP address of another host.

use crate::refusal::{Refusal, Refusals};
use alloc::collections::VecDeque;
use alloc::format;
use alloc::string::String;
use core::fmt;
use core::net::IpAddr;
use core::time::Duration;
use drivers::hal::Instant;

/// Time between two reports about a host, and most hosts for which it is remembered.
const INTERVAL: Duration = Duration::from_secs(60);
const MOST: usize = 64;

/// The hosts that were reported in the last minute, each with the index of its port.
#[derive(Debug, Default)]
pub struct Reported(VecDeque<((usize, IpAddr), Instant)>);

impl Reported {
    /// Whether to report something about a host now. It counts as reported.
    pub fn should_report(&mut self, host: (usize, IpAddr), now: Instant) -> bool {
        self.0.retain(|&(_, at)| now.since(at) < INTERVAL);
        if self.0.len() == MOST || self.0.iter().any(|(one, _)| *one == host) {
            return false;
        }
        self.0.push_back((host, now));
        true
    }
}

/// A frame with the source address of a host, from another station.
#[derive(Clone, Debug)]
pub struct ForeignFrame {
    /// Label of what the frame asked for, as [`Refusal::what`].
    pub what: &'static str,
    /// What the frame asked for.
    pub asked: String,
    /// Index of the port, and the source address.
    pub host: (usize, IpAddr),
    /// MAC address of the frame.
    pub is: [u8; 6],
    /// MAC address of the host, by the neighbour table.
    pub says: [u8; 6],
}

impl ForeignFrame {
    /// Adds it to `refusals` as `wrong_mac`, or counts it there if the host was reported in the last minute.
    pub fn note(self, refusals: &mut Refusals, reported: &mut Reported, now: Instant) {
        let ForeignFrame { what, asked, host, is, says } = self;
        let reason = "wrong_mac";
        if !reported.should_report(host, now) {
            return refusals.count(what, reason, 1);
        }
        let (is, says) = (Mac(is), Mac(says));
        let advice = format!(
            "the frame came from MAC address {is}, but ARP or neighbour discovery finds {says} for its address: find the \
             second station with this address; if it is a second card of the same host, let each card answer ARP for its \
             own addresses only (Linux: arp_ignore=1, arp_announce=2)"
        );
        refusals.push(Refusal { who: Some(host.1), what, asked, reason, advice: advice.into() });
    }
}

/// A MAC address in text.
struct Mac([u8; 6]);

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    fn host(n: u8) -> (usize, IpAddr) {
        (0, [10, 0, 0, n].into())
    }

    #[test]
    fn host_is_reported_once_a_minute_and_hosts_are_bounded() {
        let mut reported = Reported::default();
        let reports =
            [0, 1, 59_999, 60_000].map(|millis| reported.should_report(host(1), at(millis)));
        assert_eq!(reports, [true, false, false, true]);
        let more = (2..=200).filter(|n| reported.should_report(host(*n), at(60_000)));
        assert_eq!(more.count(), MOST - 1);
        assert!(!reported.should_report((1, host(1).1), at(60_000)), "another port");
        assert!(reported.should_report((1, host(1).1), at(120_000)));
    }

    #[test]
    fn frames_within_a_minute_are_counted() {
        let (mut refusals, mut reported) = (Refusals::default(), Reported::default());
        for millis in [0, 1000, 2000] {
            let frame = ForeignFrame {
                what: "tcp_connection",
                asked: "port 80".into(),
                host: host(1),
                is: [2, 9, 9, 9, 9, 9],
                says: [2, 0, 0, 0, 0, 1],
            };
            frame.note(&mut refusals, &mut reported, at(millis));
        }
        let refusal = refusals.pop().unwrap();
        assert_eq!((refusal.who, refusal.reason), (Some(host(1).1), "wrong_mac"));
        for mac in ["02:09:09:09:09:09", "02:00:00:00:00:01"] {
            assert!(refusal.advice.contains(mac), "{}", refusal.advice);
        }
        assert!(refusals.is_empty());
        assert!(refusals.take_more().eq([("tcp_connection", "wrong_mac", 2)]));
    }
}
