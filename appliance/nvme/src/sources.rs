//! Hosts' addresses that fail to authenticate, or try too often: they are slowed.

use alloc::vec::Vec;
use core::net::IpAddr;
use core::time::Duration;
use drivers::hal::Instant;
use net::hosts::accountable;

/// Addresses that are remembered. The one that tried least recently makes place.
const KEPT: usize = 256;
/// Failures without a delay: of an operator who mistypes a secret.
const FREE: u32 = 5;
/// Longest delay, after ten failures in a row.
const LONGEST: Duration = Duration::from_secs(32);
/// How long failures are remembered.
const MEMORY: Duration = Duration::from_secs(300);
/// Attempts of an address in a window: a host with 16 I/O queues may connect to 60 controllers at once.
const ATTEMPTS: u32 = 1024;
const WINDOW: Duration = Duration::from_secs(10);

#[derive(Debug)]
struct Source {
    host: IpAddr,
    failures: u32,
    /// The last failure.
    failed: Instant,
    attempts: u32,
    /// Begin of the window in which they are counted.
    since: Instant,
    used: Instant,
}

/// Addresses with attempts.
#[derive(Debug, Default)]
pub(crate) struct Sources(Vec<Source>);

impl Sources {
    fn of(&mut self, host: IpAddr, now: Instant) -> &mut Source {
        let host = accountable(host);
        let place = match self.0.iter().position(|one| one.host == host) {
            Some(place) => place,
            None => {
                let new =
                    Source { host, failures: 0, failed: now, attempts: 0, since: now, used: now };
                if self.0.len() < KEPT {
                    self.0.push(new);
                    self.0.len() - 1
                } else {
                    let oldest = self.0.iter().enumerate().min_by_key(|(_, one)| one.used);
                    let place = oldest.map_or(0, |(place, _)| place);
                    self.0[place] = new;
                    place
                }
            }
        };
        let one = &mut self.0[place];
        one.used = now;
        if one.failed + MEMORY <= now {
            one.failures = 0;
        }
        if one.since + WINDOW <= now {
            (one.attempts, one.since) = (0, now);
        }
        one
    }

    /// Counts an attempt of an address; otherwise a label of the reason why it has to wait.
    pub fn admit(&mut self, host: IpAddr, now: Instant) -> Result<(), &'static str> {
        let one = self.of(host, now);
        let over = one.failures.saturating_sub(FREE);
        if over > 0 {
            let delay = Duration::from_secs(1 << (over - 1).min(5)).min(LONGEST);
            if now < one.failed + delay {
                return Err("slowed");
            }
        }
        if one.attempts >= ATTEMPTS {
            return Err("too_often");
        }
        one.attempts += 1;
        Ok(())
    }

    /// Counts a failure.
    pub fn failed(&mut self, host: IpAddr, now: Instant) {
        let one = self.of(host, now);
        one.failures = one.failures.saturating_add(1);
        one.failed = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::Ipv4Addr;

    #[test]
    fn failures_delay_the_address_and_no_other() {
        let (mut sources, mut now) = (Sources::default(), Instant::from_nanos(1));
        let guesser = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 66));
        let other = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
        let mut failures = 0;
        for _ in 0..600 {
            if sources.admit(guesser, now).is_ok() {
                sources.failed(guesser, now);
                failures += 1;
            }
            now = now + Duration::from_secs(1);
            assert_eq!(sources.admit(other, now), Ok(()));
        }
        assert!((20..=30).contains(&failures), "{failures}");
        now = now + MEMORY;
        assert_eq!(sources.admit(guesser, now), Ok(()));
    }

    #[test]
    fn attempts_of_an_address_are_limited_and_the_table_is_bounded() {
        let (mut sources, now) = (Sources::default(), Instant::from_nanos(1));
        let host = |n: u32| IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + n));
        let admitted = (0..5000).filter(|_| sources.admit(host(1), now).is_ok()).count();
        assert_eq!(admitted, ATTEMPTS as usize);
        for n in 0..10_000 {
            let _ = sources.admit(host(n), now + WINDOW);
        }
        assert_eq!(sources.0.len(), KEPT);
    }
}
