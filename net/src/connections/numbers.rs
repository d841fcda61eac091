//! The sequence numbers of a connection, as they follow from the segments that it took and sent, and what is to become
//! of a segment whose numbers do not fit (RFC 9293 section 3.10.7.4, RFC 5961). smoltcp has no way to ask for them.

use super::*;

/// What is to become of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// smoltcp takes it in.
    Take,
    /// It may be forged: it is dropped, and its sender is told our numbers.
    Challenge,
    /// It is dropped.
    Drop,
}

/// The numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Numbers {
    /// The oldest that the peer has not acknowledged.
    pub unacknowledged: u32,
    /// One after the highest that was sent.
    pub sent: u32,
    /// The next that is expected of the peer.
    pub next: u32,
}

impl Numbers {
    /// Of a connection that sent a SYN with this number.
    pub fn opening(number: u32) -> Self {
        Numbers { unacknowledged: number, sent: number, next: 0 }
    }

    /// Of a connection whose SYNs had these numbers, ours and the peer's.
    pub fn opened(ours: u32, theirs: u32) -> Self {
        let first = ours.wrapping_add(1);
        Numbers { unacknowledged: first, sent: first, next: theirs.wrapping_add(1) }
    }

    /// Bytes and flags that were sent and not acknowledged.
    pub fn in_flight(&self) -> u32 {
        self.sent.wrapping_sub(self.unacknowledged)
    }

    /// Whether a segment with this number is under way.
    pub fn is_under_way(&self, number: u32) -> bool {
        number.wrapping_sub(self.unacknowledged) < self.in_flight()
    }

    /// Whether a segment acknowledges something that was sent, and nothing that was not.
    pub fn acknowledges(&self, segment: &Segment<'_>) -> bool {
        segment.flags & ACK != 0
            && segment.acknowledged.wrapping_sub(self.unacknowledged) <= self.in_flight()
    }

    /// A segment was sent.
    pub fn sends(&mut self, first: u32, length: u32) {
        let end = first.wrapping_add(length);
        if (end.wrapping_sub(self.sent) as i32) > 0 {
            self.sent = end;
        }
    }

    /// smoltcp took a segment in. Returns how much that acknowledged.
    pub fn takes(&mut self, segment: &Segment<'_>, before: &Seen, after: &Seen) -> u32 {
        use State::*;
        let (Seen(was, had, waited), Seen(is, has, waits)) = (before, after);
        if *was == SynSent {
            if matches!(is, Established | SynReceived) {
                self.next = segment.sequence.wrapping_add(1);
            }
            if *is == Established {
                self.unacknowledged = self.sent;
            }
            return 0;
        }
        let ends = matches!(
            (was, is),
            (Established | SynReceived, CloseWait)
                | (FinWait1, Closing | TimeWait)
                | (FinWait2, TimeWait)
        );
        self.next = self.next.wrapping_add(has.saturating_sub(*had) as u32 + u32::from(ends));
        if *was == SynReceived && *is != SynReceived {
            // Our SYN, if it is not that of a peer's connection, which was acknowledged before.
            self.unacknowledged = segment.acknowledged;
            return 0;
        }
        let ended = matches!((was, is), (FinWait1, FinWait2 | TimeWait) | (Closing, TimeWait));
        let acknowledged = waited.saturating_sub(*waits) as u32 + u32::from(ended);
        self.unacknowledged = self.unacknowledged.wrapping_add(acknowledged);
        acknowledged
    }

    /// What is to become of a segment of a connection in `state`, of which `window` bytes more are taken.
    pub fn judge(&self, segment: &Segment<'_>, state: State, window: usize) -> Verdict {
        if matches!(state, State::SynSent | State::SynReceived | State::Closed | State::Listen) {
            return Verdict::Take;
        }
        if segment.flags & RST != 0 {
            return match segment.sequence.wrapping_sub(self.next) {
                0 => Verdict::Take,
                ahead if (ahead as usize) < window => Verdict::Challenge,
                _ => Verdict::Drop,
            };
        }
        let is_ahead = segment.acknowledged.wrapping_sub(self.sent) as i32 > 0;
        if segment.flags & SYN != 0 || segment.flags & ACK != 0 && is_ahead {
            return Verdict::Challenge;
        }
        Verdict::Take
    }

    /// A segment of the peer's that smoltcp answers with our numbers, and takes nothing of: a byte that it has had.
    pub fn question(&self, ends: Ends, packet: &mut [u8; 100]) -> usize {
        let before = self.next.wrapping_sub(1);
        listen_table::repeated(ends, before, self.unacknowledged, packet)
    }
}

/// A limit on answers to segments that may be forged.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Challenges {
    second: u64,
    given: u32,
}

impl Challenges {
    /// Whether another may be given in this second, of at most `most`.
    pub fn allow(&mut self, now: Instant, most: u32) -> bool {
        let second = now.as_nanos() / 1_000_000_000;
        if self.second != second {
            *self = Challenges { second, given: 0 };
        }
        self.given += 1;
        self.given <= most
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::FIN;

    const ENDS: Ends = Ends {
        local_port: 80,
        remote_port: 4000,
        remote: IpAddr::V4(core::net::Ipv4Addr::new(10, 0, 0, 2)),
        local: IpAddr::V4(core::net::Ipv4Addr::new(10, 0, 0, 1)),
    };

    fn segment(flags: u8, sequence: u32, acknowledged: u32) -> Segment<'static> {
        Segment { ends: ENDS, sequence, acknowledged, flags, options: &[], end: 0 }
    }

    /// Numbers that wrap around: of 100 bytes sent, 50 are acknowledged.
    fn numbers() -> Numbers {
        Numbers { unacknowledged: u32::MAX - 9, sent: 40, next: u32::MAX }
    }

    #[test]
    fn rst_is_taken_with_the_next_number_only() {
        let judge = |sequence| numbers().judge(&segment(RST, sequence, 0), State::Established, 500);
        assert_eq!(judge(u32::MAX), Verdict::Take);
        for sequence in [0, 1, 100, 498] {
            assert_eq!(judge(sequence), Verdict::Challenge, "{sequence}");
        }
        for sequence in [u32::MAX - 1, 499, 5000, 1 << 31] {
            assert_eq!(judge(sequence), Verdict::Drop, "{sequence}");
        }
        let opening = numbers().judge(&segment(RST, 5, 0), State::SynSent, 500);
        assert_eq!(opening, Verdict::Take, "smoltcp compares what it acknowledges");
    }

    #[test]
    fn syn_on_an_open_connection_is_challenged() {
        for state in [State::Established, State::FinWait2, State::CloseWait, State::LastAck] {
            for (flags, sequence) in [(SYN, 7), (SYN, u32::MAX), (SYN | ACK, u32::MAX)] {
                let verdict = numbers().judge(&segment(flags, sequence, 0), state, 500);
                assert_eq!(verdict, Verdict::Challenge);
            }
        }
    }

    #[test]
    fn ack_of_what_was_not_sent_is_challenged() {
        let judge = |acknowledged| {
            numbers().judge(&segment(ACK, u32::MAX, acknowledged), State::Established, 500)
        };
        assert_eq!(judge(40), Verdict::Take);
        assert_eq!(judge(u32::MAX - 9), Verdict::Take);
        assert_eq!(judge(41), Verdict::Challenge);
        assert_eq!(judge(1 << 30), Verdict::Challenge);
    }

    #[test]
    fn only_numbers_in_flight_are_under_way() {
        let numbers = numbers();
        assert_eq!(numbers.in_flight(), 50);
        for (number, is) in [(u32::MAX - 10, false), (u32::MAX - 9, true), (39, true), (40, false)]
        {
            assert_eq!(numbers.is_under_way(number), is, "{number}");
        }
    }

    #[test]
    fn challenges_are_limited_by_the_second() {
        let at = |millis| Instant::ZERO + Duration::from_millis(millis);
        let mut challenges = Challenges::default();
        let given = (0..5000).filter(|&n| challenges.allow(at(n), 3)).count();
        assert_eq!(given, 15);
    }

    #[test]
    fn segments_that_are_sent_again_change_nothing() {
        let mut numbers = numbers();
        numbers.sends(u32::MAX - 9, 20);
        assert_eq!(numbers.sent, 40);
        numbers.sends(40, FIN.into());
        assert_eq!(numbers.sent, 41);
    }
}
