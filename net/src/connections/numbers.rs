//! Tracks the sequence numbers of a connection, and judges segments that are out of sequence (RFC 9293 section
//! 3.10.7.4, RFC 5961). The numbers are derived from segments sent and accepted, because smoltcp does not expose its
//! own.

use super::*;

/// Treatment of a received segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// smoltcp processes it.
    Take,
    /// It may be forged: it is dropped and answered with a challenge ACK (RFC 5961).
    Challenge,
    /// It is dropped.
    Drop,
}

/// Sequence numbers of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Numbers {
    /// Oldest number that the peer has not acknowledged (SND.UNA).
    pub unacknowledged: u32,
    /// One after the highest number sent (SND.NXT).
    pub sent: u32,
    /// Next number expected from the peer (RCV.NXT).
    pub next: u32,
}

impl Numbers {
    /// Numbers of a connection that sends a SYN with this number.
    pub fn opening(number: u32) -> Self {
        Numbers { unacknowledged: number, sent: number, next: 0 }
    }

    /// Numbers of an established connection whose SYNs had the numbers `ours` and `theirs`.
    pub fn opened(ours: u32, theirs: u32) -> Self {
        let first = ours.wrapping_add(1);
        Numbers { unacknowledged: first, sent: first, next: theirs.wrapping_add(1) }
    }

    /// Bytes and flags sent and not acknowledged.
    pub fn in_flight(&self) -> u32 {
        self.sent.wrapping_sub(self.unacknowledged)
    }

    /// Whether a segment with this number is under way.
    pub fn is_under_way(&self, number: u32) -> bool {
        number.wrapping_sub(self.unacknowledged) < self.in_flight()
    }

    /// Whether a segment's acknowledgement is between SND.UNA and SND.NXT.
    pub fn acknowledges(&self, segment: &Segment<'_>) -> bool {
        segment.flags & ACK != 0
            && segment.acknowledged.wrapping_sub(self.unacknowledged) <= self.in_flight()
    }

    /// Records a sent segment.
    pub fn record_sent(&mut self, first: u32, length: u32) {
        let end = first.wrapping_add(length);
        if (end.wrapping_sub(self.sent) as i32) > 0 {
            self.sent = end;
        }
    }

    /// Records a segment that smoltcp has processed. Returns the bytes that it acknowledged.
    pub fn record_processed(&mut self, segment: &Segment<'_>, before: &Seen, after: &Seen) -> u32 {
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
            // It acknowledges our SYN. For connections opened by a peer that was counted before.
            self.unacknowledged = segment.acknowledged;
            return 0;
        }
        let ended = matches!((was, is), (FinWait1, FinWait2 | TimeWait) | (Closing, TimeWait));
        let acknowledged = waited.saturating_sub(*waits) as u32 + u32::from(ended);
        self.unacknowledged = self.unacknowledged.wrapping_add(acknowledged);
        acknowledged
    }

    /// Judges a segment of a connection in `state` with `window` bytes of free receive buffer.
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

    /// Writes a segment from the peer that repeats an acknowledged byte. smoltcp answers it with an ACK of the present
    /// numbers and takes nothing from it.
    pub fn stale_segment(&self, ends: Ends, packet: &mut [u8; 100]) -> usize {
        let before = self.next.wrapping_sub(1);
        packets::build_stale_byte(ends, before, self.unacknowledged, packet)
    }
}

/// Rate limit of challenge ACKs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Challenges {
    second: u64,
    given: u32,
}

impl Challenges {
    /// Whether another may be sent in this second, of at most `most`.
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

    /// Numbers that wrap around, with 50 bytes in flight.
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
        assert_eq!(opening, Verdict::Take, "smoltcp checks its acknowledgement");
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
    fn ack_of_unsent_data_is_challenged() {
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
    fn retransmitted_segments_change_nothing() {
        let mut numbers = numbers();
        numbers.record_sent(u32::MAX - 9, 20);
        assert_eq!(numbers.sent, 40);
        numbers.record_sent(40, FIN.into());
        assert_eq!(numbers.sent, 41);
    }
}
