//! Log lines about an interface. Other stations cause most of them, so they are rate limited: each subject, and each
//! topic.

use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::net::IpAddr;
use core::time::Duration;
use drivers::hal::{Instant, Severity};

/// Notices that wait for the log. Further ones are dropped.
const WAITING: usize = 16;
/// Subjects stored to suppress repeated reports.
const REMEMBERED: usize = 64;
/// Reports of one topic within a minute.
const OF_A_TOPIC: usize = 4;
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

/// Topic of a notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Topic {
    /// Another station uses an address of ours.
    Duplicate,
    /// A DHCP server refuses an address that it offered or leased.
    Nak,
    /// A lease is rejected.
    Refused,
    /// A lease has no subnet mask.
    NoMask,
    /// The DHCP option of this code has a wrong length or an impossible value.
    Option(u8),
    /// The effective MTU has changed.
    Mtu,
    /// An MTU that a router advertises is impossible.
    RouterMtu,
}

impl Topic {
    /// How long further reports of the same subject are suppressed.
    fn silence(self) -> Duration {
        match self {
            Topic::Duplicate => MINUTE,
            _ => HOUR,
        }
    }
}

/// A line for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Severity in the log.
    pub severity: Severity,
    text: String,
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The notices of one interface.
#[derive(Debug, Default)]
pub(crate) struct Notices {
    waiting: VecDeque<Notice>,
    reported: Vec<(Topic, IpAddr, Instant)>,
}

impl Notices {
    /// Reports an event about `subject`, an address of ours or of a server, unless the rate limits suppress it.
    pub fn report(
        &mut self,
        topic: Topic,
        subject: impl Into<IpAddr>,
        severity: Severity,
        now: Instant,
        text: impl FnOnce() -> String,
    ) {
        let subject = subject.into();
        self.reported.retain(|(topic, _, at)| now.since(*at) < topic.silence());
        let of_topic = self.reported.iter().filter(|(other, ..)| *other == topic);
        let recent = of_topic.clone().filter(|(.., at)| now.since(*at) < MINUTE).count();
        if of_topic.clone().any(|(_, other, _)| *other == subject) || recent >= OF_A_TOPIC {
            return;
        }
        if self.reported.len() >= REMEMBERED {
            self.reported.remove(0);
        }
        self.reported.push((topic, subject, now));
        if self.waiting.len() < WAITING {
            self.waiting.push_back(Notice { severity, text: text() });
        }
    }

    /// Takes the next notice for the log.
    pub fn next(&mut self) -> Option<Notice> {
        self.waiting.pop_front()
    }
}

/// Formats a MAC address as `02:00:00:00:00:01`.
pub(crate) struct Mac(pub [u8; 6]);

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::Ipv4Addr;

    #[test]
    fn notices_repeat_seldom_and_a_flood_of_subjects_is_bounded() {
        let mut notices = Notices::default();
        let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
        let mut count = |topic, subject: u32, now| {
            let report = || String::from("x");
            notices.report(topic, Ipv4Addr::from(subject), Severity::Warning, now, report);
            usize::from(notices.next().is_some())
        };
        assert_eq!((0..100).map(|n| count(Topic::Nak, 1, at(n))).sum::<usize>(), 1);
        assert_eq!(count(Topic::Refused, 1, at(100)), 1, "another topic");
        assert_eq!(count(Topic::Nak, 1, at(3700)), 1);
        assert_eq!((0..3).map(|n| count(Topic::Duplicate, 1, at(4000 + 59 * n))).sum::<usize>(), 2);
        let flood: usize = (0..10_000).map(|n| count(Topic::Duplicate, n, at(5000))).sum();
        assert_eq!(flood, OF_A_TOPIC);
    }
}
