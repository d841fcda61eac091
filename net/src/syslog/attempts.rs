//! Pauses between connections to a server, and which of their ends are reported.

use core::time::Duration;
use drivers::hal::Instant;

/// First and last pause before a new connection; it doubles each time.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LAST_PAUSE: Duration = Duration::from_secs(60);
/// Least time between two reports, unless a connection has lasted.
const SILENCE: Duration = Duration::from_secs(600);
/// Age at which a connection has proven that the server works.
const PROVEN: Duration = Duration::from_secs(60);

/// The attempts to reach a server.
///
/// A server may accept each connection and end it at once, for example because it expects TLS. Its connections must not
/// end the pauses, and must not be reported each: the reports are messages themselves, and would displace others. So
/// failures are forgotten only with a connection that lasts a minute.
#[derive(Clone, Copy, Debug, Default)]
pub struct Attempts {
    failures: u32,
    open_since: Option<Instant>,
    /// A failure was reported, and no connection since.
    is_told: bool,
    /// When a failure was last reported.
    told_at: Option<Instant>,
}

impl Attempts {
    /// Connections that failed in a row.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Notes a connection that failed or ended. Returns when to try again, and whether to report it.
    pub fn failed(&mut self, now: Instant) -> (Instant, bool) {
        if self.open_since.take().is_some_and(|since| now.since(since) >= PROVEN) {
            self.failures = 0;
        }
        let is_silent = self.told_at.is_none_or(|at| now.since(at) >= SILENCE);
        let is_news = self.failures == 0 || !self.is_told && is_silent;
        if is_news {
            (self.is_told, self.told_at) = (true, Some(now));
        }
        let pause = FIRST_PAUSE.saturating_mul(1 << self.failures.min(6)).min(LAST_PAUSE);
        self.failures = self.failures.saturating_add(1);
        (now + pause, is_news)
    }

    /// Notes that the connection is open. Returns whether to report it, after a failure that was reported.
    pub fn opened(&mut self, now: Instant) -> bool {
        self.open_since.get_or_insert(now);
        core::mem::take(&mut self.is_told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    /// Seconds until the next attempt, and whether the failure is reported.
    fn fail(attempts: &mut Attempts, second: u64) -> (u64, bool) {
        let now = Instant::ZERO + Duration::from_secs(second);
        let (at, is_told) = attempts.failed(now);
        (at.since(now).as_secs(), is_told)
    }

    fn open(attempts: &mut Attempts, second: u64) -> bool {
        attempts.opened(Instant::ZERO + Duration::from_secs(second))
    }

    #[test]
    fn silent_server_is_tried_ever_less_and_reported_once() {
        let mut attempts = Attempts::default();
        let pauses: Vec<_> = (0..8).map(|n| fail(&mut attempts, n * 100)).collect();
        assert_eq!(pauses[0], (1, true));
        let later = [2, 4, 8, 16, 32, 60, 60].map(|pause| (pause, false));
        assert_eq!(pauses[1..], later);
        assert!(open(&mut attempts, 1000) && !open(&mut attempts, 1001));
        // It has worked for long, then it fails again.
        assert_eq!(fail(&mut attempts, 2000), (1, true));
        assert!(open(&mut attempts, 2001));
    }

    #[test]
    fn server_that_ends_each_connection_is_reported_seldom() {
        let mut attempts = Attempts::default();
        let (mut second, mut reports) = (0, 0);
        for _ in 0..50 {
            reports += u32::from(open(&mut attempts, second));
            let (pause, is_told) = fail(&mut attempts, second);
            reports += u32::from(is_told);
            second += pause;
        }
        assert!(second > 40 * 60, "{second}");
        assert!(reports <= 2 * (1 + second as u32 / 600), "{reports} in {second} s");
    }

    #[test]
    fn server_that_was_never_reported_is_not_reported_as_reached() {
        assert!(!open(&mut Attempts::default(), 0));
    }
}
