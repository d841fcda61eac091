//! Peers that are silent. One is given up after a while in which nothing came of it, though it was asked, and after the
//! last question too it had time to answer. Where the machine stood still (its host stopped it, saved it or moved
//! it), the time does not count: what arrived meanwhile is read first, and the peer is asked anew.

use super::*;

/// How often a silent peer is asked whether it is there, at least, and how long it may leave that without an answer.
pub(super) const KEEP_ALIVE: smoltcp::time::Duration = smoltcp::time::Duration::from_secs(20);
const SILENCE: Duration = Duration::from_secs(60);
/// How long a peer may leave our SYN without an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Questions that it is asked in that time at least, and how far they are apart.
const QUESTIONS: u8 = 2;
const APART: Duration = Duration::from_secs(1);
/// How long it has for an answer to the last.
const ANSWER: Duration = Duration::from_secs(3);
/// Timers that run out so much too late show that the machine stood still.
const LATE: Duration = Duration::from_millis(500);

/// What is known of a peer's silence.
#[derive(Clone, Copy, Debug)]
pub(super) struct Silence {
    /// Whether it ends the connection.
    pub counts: bool,
    heard: Instant,
    /// Questions since then, and when the last was asked.
    questions: u8,
    asked: Instant,
}

impl Silence {
    /// Begins now.
    pub fn new(now: Instant) -> Self {
        Silence { counts: true, heard: now, questions: 0, asked: Instant::ZERO }
    }

    /// Something came from the peer.
    pub fn heard(&mut self, now: Instant) {
        self.heard = now;
        self.questions = 0;
    }

    /// Something was sent that has to be answered.
    pub fn asks(&mut self, now: Instant) {
        if self.questions == 0 || now.since(self.asked) >= APART {
            self.questions = self.questions.saturating_add(1);
            self.asked = now;
        }
    }

    /// When the peer is given up unless it is heard before; None while it was not asked often enough. `resumed`:
    /// when the machine went on after it stood still.
    fn ends(&mut self, opening: bool, resumed: Instant) -> Option<Instant> {
        if self.questions > 0 && self.asked < resumed {
            self.questions = 0;
        }
        let patience = if opening { PATIENCE } else { SILENCE };
        let asked = self.counts && self.questions >= QUESTIONS;
        asked.then(|| (self.heard + patience).max(self.asked + ANSWER))
    }
}

impl Connections {
    /// Notes a timer that runs out now, and should have at `at`.
    pub(super) fn note_standstill(&mut self, at: Instant, now: Instant) {
        if now.since(at) >= LATE {
            self.resumed = now;
        }
    }

    /// Resets a connection whose peer has been silent for too long; when to look at it again.
    pub(super) fn end_silence(&mut self, key: usize, now: Instant) -> Option<Instant> {
        let resumed = self.resumed;
        let connection = self.connections.get_mut(key).filter(|c| c.life == Life::Used)?;
        let state = connection.socket().state();
        if matches!(state, State::Closed | State::TimeWait) {
            return None;
        }
        let end = connection.silence.ends(state == State::SynSent, resumed)?;
        if now < end {
            return Some(end);
        }
        connection.socket_mut().abort();
        self.look_after(key);
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
    fn silent_peer_is_given_up_after_a_minute_and_two_questions() {
        let mut silence = Silence::new(at(0));
        silence.asks(at(20));
        silence.asks(at(20));
        assert_eq!(silence.ends(false, at(0)), None);
        silence.asks(at(40));
        assert_eq!(silence.ends(false, at(0)), Some(at(60)));
        silence.asks(at(59));
        assert_eq!(silence.ends(false, at(0)), Some(at(62)), "it has time for an answer");
        silence.heard(at(61));
        assert_eq!(silence.ends(false, at(0)), None);
    }

    #[test]
    fn questions_before_a_standstill_do_not_count() {
        let mut silence = Silence::new(at(0));
        silence.asks(at(20));
        silence.asks(at(40));
        assert_eq!(silence.ends(false, at(120)), None);
        silence.asks(at(120));
        silence.asks(at(140));
        assert_eq!(silence.ends(false, at(120)), Some(at(143)));
    }

    #[test]
    fn unanswered_syn_is_given_up_after_ten_seconds() {
        let mut silence = Silence::new(at(0));
        [0, 1, 3, 7].into_iter().for_each(|second| silence.asks(at(second)));
        assert_eq!(silence.ends(true, at(0)), Some(at(10)));
    }
}
