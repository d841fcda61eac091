//! Resets connections with silent peers: the peer has sent nothing for a time, was probed, and had time to answer the
//! last probe. Time in which the machine was stopped (its host paused, saved or migrated it) does not count: frames
//! that arrived meanwhile are read first, and the peer is probed again.

use super::*;

/// Shortest keep-alive interval.
pub(super) const KEEP_ALIVE: smoltcp::time::Duration = smoltcp::time::Duration::from_secs(20);
/// How long a peer may be silent.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a peer may leave our SYN unanswered.
const SYN_TIMEOUT: Duration = Duration::from_secs(10);
/// Minimum number of probes in that time (keep-alives, or segments to be acknowledged), and time between them.
const MIN_PROBES: u8 = 2;
const PROBE_SPACING: Duration = Duration::from_secs(1);
/// How long the peer has to answer the last probe.
const ANSWER_TIME: Duration = Duration::from_secs(3);
/// A timer that fires later than this shows that the machine was stopped.
const STANDSTILL: Duration = Duration::from_millis(500);

/// Supervision of a peer's silence.
#[derive(Clone, Copy, Debug)]
pub(super) struct Silence {
    /// Whether silence resets the connection.
    pub is_enabled: bool,
    /// When the peer last sent a valid segment.
    last_received: Instant,
    /// Probes since then.
    probes: u8,
    /// Time of the last probe.
    last_probe: Instant,
}

impl Silence {
    /// Supervision that starts now.
    pub fn new(now: Instant) -> Self {
        Silence { is_enabled: true, last_received: now, probes: 0, last_probe: Instant::ZERO }
    }

    /// The peer has sent a valid segment.
    pub fn received(&mut self, now: Instant) {
        self.last_received = now;
        self.probes = 0;
    }

    /// A segment was sent that the peer must acknowledge.
    pub fn probed(&mut self, now: Instant) {
        if self.probes == 0 || now.since(self.last_probe) >= PROBE_SPACING {
            self.probes = self.probes.saturating_add(1);
            self.last_probe = now;
        }
    }

    /// When the connection is reset unless the peer sends before; None while there were too few probes. `resumed` is
    /// the end of the last time in which the machine was stopped: earlier probes do not count.
    fn deadline(&mut self, opening: bool, resumed: Instant) -> Option<Instant> {
        if self.probes > 0 && self.last_probe < resumed {
            self.probes = 0;
        }
        let patience = if opening { SYN_TIMEOUT } else { SILENCE_TIMEOUT };
        let is_probed = self.is_enabled && self.probes >= MIN_PROBES;
        is_probed.then(|| (self.last_received + patience).max(self.last_probe + ANSWER_TIME))
    }
}

impl Connections {
    /// Checks a timer that fires now and was due at `at`: a large delay is a standstill of the machine.
    pub(super) fn note_standstill(&mut self, at: Instant, now: Instant) {
        if now.since(at) >= STANDSTILL {
            self.resumed = now;
        }
    }

    /// Resets a connection whose peer has been silent for too long. Returns when to check again.
    pub(super) fn end_silence(&mut self, key: usize, now: Instant) -> Option<Instant> {
        let resumed = self.resumed;
        let connection = self.connections.get_mut(key).filter(|c| c.life == Life::InUse)?;
        let state = connection.socket().state();
        if matches!(state, State::Closed | State::TimeWait) {
            return None;
        }
        let end = connection.silence.deadline(state == State::SynSent, resumed)?;
        if now < end {
            return Some(end);
        }
        connection.socket_mut().abort();
        self.schedule(key);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn silent_peer_is_given_up_after_a_minute_and_two_probes() {
        let mut silence = Silence::new(at(0));
        silence.probed(at(20));
        silence.probed(at(20));
        assert_eq!(silence.deadline(false, at(0)), None);
        silence.probed(at(40));
        assert_eq!(silence.deadline(false, at(0)), Some(at(60)));
        silence.probed(at(59));
        assert_eq!(silence.deadline(false, at(0)), Some(at(62)), "the peer has time to answer");
        silence.received(at(61));
        assert_eq!(silence.deadline(false, at(0)), None);
    }

    #[test]
    fn probes_before_a_standstill_do_not_count() {
        let mut silence = Silence::new(at(0));
        silence.probed(at(20));
        silence.probed(at(40));
        assert_eq!(silence.deadline(false, at(120)), None);
        silence.probed(at(120));
        silence.probed(at(140));
        assert_eq!(silence.deadline(false, at(120)), Some(at(143)));
    }

    #[test]
    fn unanswered_syn_is_given_up_after_ten_seconds() {
        let mut silence = Silence::new(at(0));
        [0, 1, 3, 7].into_iter().for_each(|second| silence.probed(at(second)));
        assert_eq!(silence.deadline(true, at(0)), Some(at(10)));
    }
}
