//! RoCE counters of the card, and the flow control settings of its port. Both are read by commands that no caller waits
//! for: counters once a second, settings when the card has come up. The layouts are those of `mlx5_ifc.h`.

use super::ConnectX;
use super::commands::Job;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::time::Duration;
use drivers::ethernet::mlx5::Command;
use drivers::ethernet::mlx5::fields::{get, put, word};
use drivers::hal::Instant;

const QUERY_VPORT_COUNTER: Command = Command(0x770, "QUERY_VPORT_COUNTER");
pub const ALLOC_Q_COUNTER: Command = Command(0x771, "ALLOC_Q_COUNTER");
const QUERY_Q_COUNTER: Command = Command(0x773, "QUERY_Q_COUNTER");
const ACCESS_REG: Command = Command(0x805, "ACCESS_REG");
const QUERY_CONG_STATUS: Command = Command(0x822, "QUERY_CONG_STATUS");
const QUERY_CONG_STATISTICS: Command = Command(0x826, "QUERY_CONG_STATISTICS");

/// Registers of the port: flow control, and the source of a packet's priority.
const FLOW_CONTROL: u32 = 0x5007;
const TRUST: u32 = 0x4002;
const EVERY: Duration = Duration::from_secs(1);
const NOT_LOSSLESS: &str = "lossless is not configured: neither priority flow control nor pause is on at the card's port in both \
    directions, so packets that the network drops are retransmitted, slowly; enable it for RoCE's class here and at the \
    switch, or enable ECN (docs/hardware.md)";
const NOT_MARKED: &str = "ECN is not configured: for no priority does the card both notify senders of congestion and slow down when \
    notified, so congestion marks of a switch have no effect; enable it for RoCE's class (docs/hardware.md)";
/// Roles in congestion control (sender, receiver), each for eight priorities.
const NODES: [u8; 2] = [1, 2];
const PRIORITIES: u8 = 8;

/// A value to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// Counters of queue pairs, of the port, of congestion.
    Pairs,
    Port,
    Congestion,
    /// Settings.
    FlowControl,
    Trust,
    /// Whether a role of congestion control is on for a priority.
    Marks(u8, u8),
}

/// Counters of the card since its setup, resets included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CardCounters {
    /// Packets that found no receive posted (RNR NAKs sent).
    pub out_of_buffer: u64,
    /// Packets received out of sequence, because earlier ones were lost.
    pub out_of_sequence: u64,
    /// Duplicate requests received.
    pub duplicate_request: u64,
    /// RNR NAKs received: the peer had no receive posted.
    pub rnr_nak_retry_err: u64,
    /// Sequence NAKs received: packets of ours were lost.
    pub packet_seq_err: u64,
    /// Answers received out of sequence.
    pub implied_nak_seq_err: u64,
    /// ACK timeouts of requests.
    pub local_ack_timeout_err: u64,
    /// Received frames dropped because of an error.
    pub rx_discards: u64,
    /// Congestion notifications sent. 0 without congestion counters in the firmware, like the next three.
    pub cnp_sent: u64,
    /// Congestion notifications handled.
    pub cnp_handled: u64,
    /// Congestion notifications ignored.
    pub cnp_ignored: u64,
    /// Packets received with a congestion mark.
    pub ecn_marked: u64,
}

/// Flow control of the port. None for values that the firmware does not report (to a virtual function, for example).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowControl {
    /// Priority flow control: priorities that the card pauses on request of the other side, and priorities for which it
    /// sends such requests; a bit for each.
    pub priorities: Option<(u8, u8)>,
    /// Global pause, likewise.
    pub pause: Option<(bool, bool)>,
    /// Whether priorities come from DSCP, and not from VLAN tags.
    pub by_dscp: Option<bool>,
    /// Congestion control (ECN): priorities with it on as sender, and as receiver; a bit for each.
    pub marks: Option<[u8; 2]>,
}

impl FlowControl {
    /// Whether any class is lossless. None if unknown.
    pub fn is_lossless(&self) -> Option<bool> {
        let (both, pause) = (self.priorities?, self.pause?);
        Some(both.0 & both.1 != 0 || pause.0 && pause.1)
    }

    /// Text for the operator. None if unknown.
    pub fn in_words(&self) -> Option<String> {
        let ((rx, tx), pause) = (self.priorities?, self.pause?);
        let trust = match self.by_dscp {
            Some(true) => ", by DSCP",
            Some(false) => ", by VLAN priority",
            None => "",
        };
        let list = |of: u8| {
            let on = (0..PRIORITIES).filter(|priority| of >> priority & 1 == 1);
            on.map(|priority| priority.to_string()).collect::<Vec<String>>().join(" ")
        };
        let marks = match self.marks.map(|[sent, received]| sent & received) {
            None => String::new(),
            Some(0) => ", no ECN".into(),
            Some(both) => format!(", ECN on {}", list(both)),
        };
        Some(match (rx & tx, pause) {
            (0, (true, true)) => format!("pause{marks}"),
            (0, _) => format!("off{trust}{marks}"),
            (both, _) => format!("priorities {}{trust}{marks}", list(both)),
        })
    }
}

/// Offsets of the counters of queue pairs in the answer, in the order of [`CardCounters`].
const PAIRS: [usize; 7] = [0x30, 0x38, 0x40, 0x48, 0x50, 0x58, 0x60];

/// Values read so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Readings {
    /// The counter set of all queue pairs.
    pub set: u32,
    /// Whether the firmware has congestion counters.
    pub congestion: bool,
    pub counters: CardCounters,
    pub flow_control: FlowControl,
    /// Last values of the counters of queue pairs, which have 32 bits and wrap.
    last: [u32; PAIRS.len()],
    /// The other counters at the last reset of the card.
    base: CardCounters,
    due: Option<Instant>,
}

impl Readings {
    /// Begins after a reset of the card, with counters at 0.
    pub fn begin(&mut self, set: u32, congestion: bool) {
        (self.set, self.congestion, self.last) = (set, congestion, [0; PAIRS.len()]);
        (self.base, self.due) = (self.counters, None);
    }

    fn take_pairs(&mut self, answer: &[u8]) {
        let counters = &mut self.counters;
        let totals = [
            &mut counters.out_of_buffer,
            &mut counters.out_of_sequence,
            &mut counters.duplicate_request,
            &mut counters.rnr_nak_retry_err,
            &mut counters.packet_seq_err,
            &mut counters.implied_nak_seq_err,
            &mut counters.local_ack_timeout_err,
        ];
        for ((total, last), at) in totals.into_iter().zip(&mut self.last).zip(PAIRS) {
            let now = word(answer, at);
            *total += u64::from(now.wrapping_sub(core::mem::replace(last, now)));
        }
    }

    fn take_congestion(&mut self, answer: &[u8]) {
        let long = |at| u64::from(word(answer, at)) << 32 | u64::from(word(answer, at + 4));
        self.counters.cnp_ignored = self.base.cnp_ignored + long(0x18);
        self.counters.cnp_handled = self.base.cnp_handled + long(0x20);
        self.counters.ecn_marked = self.base.ecn_marked + long(0x54);
        self.counters.cnp_sent = self.base.cnp_sent + long(0x5c);
    }

    fn take_port(&mut self, answer: &[u8]) {
        let errors = u64::from(word(answer, 0x10)) << 32 | u64::from(word(answer, 0x14));
        self.counters.rx_discards = self.base.rx_discards + errors;
    }

    fn take_flow_control(&mut self, answer: &[u8]) {
        let register = answer.get(16..).unwrap_or_default();
        if register.len() < 0x20 {
            return;
        }
        let [sends, receives] = [0x40, 0x60].map(|bit| get(register, bit, 1) == 1);
        let [rx, tx] = [0x68, 0x48].map(|bit| get(register, bit, 8) as u8);
        self.flow_control.priorities = Some((rx, tx));
        self.flow_control.pause = Some((receives, sends));
    }
}

impl ConnectX {
    /// Counters of the card, as read within about the last second.
    pub fn card_counters(&self) -> &CardCounters {
        &self.readings.counters
    }

    /// Flow control settings of the port when the card came up.
    pub fn flow_control(&self) -> &FlowControl {
        &self.readings.flow_control
    }

    /// Schedules the reading of settings.
    pub(super) fn read_settings(&mut self) {
        self.readings.flow_control = FlowControl::default();
        self.jobs.extend([Reading::FlowControl, Reading::Trust].map(Job::Read));
        if self.readings.congestion {
            let all = (0..PRIORITIES).flat_map(|priority| NODES.map(|node| (node, priority)));
            self.jobs.extend(all.map(|(node, priority)| Job::Read(Reading::Marks(node, priority))));
        }
    }

    /// Schedules the reading of counters when it is due.
    #[inline]
    pub(super) fn read_counters(&mut self) {
        if self.readings.due.is_none_or(|due| due <= self.now) && self.is_up() {
            self.schedule_counters();
        }
    }

    #[cold]
    fn schedule_counters(&mut self) {
        self.readings.due = Some(self.now + EVERY);
        self.jobs.extend([Reading::Pairs, Reading::Port].map(Job::Read));
        if self.readings.congestion {
            self.jobs.push_back(Job::Read(Reading::Congestion));
        }
    }

    /// The command for a reading: command, operation, input, and bytes of the answer.
    pub(super) fn reading(&self, reading: Reading) -> (Command, u16, Vec<u8>, usize) {
        let register = |register, bytes: usize| {
            let mut input = alloc::vec![0; 0x10 - 8 + bytes];
            put(&mut input, 0, register);
            // Port 1.
            input[9] = 1;
            (ACCESS_REG, 1, input, 0x10 + bytes)
        };
        match reading {
            Reading::Pairs => {
                let mut input = alloc::vec![0; 0x20 - 8];
                put(&mut input, 0x1c - 8, self.readings.set);
                (QUERY_Q_COUNTER, 0, input, 0x100)
            }
            Reading::Port => (QUERY_VPORT_COUNTER, 0, alloc::vec![0; 0x20 - 8], 0x210),
            Reading::Congestion => (QUERY_CONG_STATISTICS, 0, alloc::vec![0; 8], 0x110),
            Reading::Marks(node, priority) => {
                let mut input = alloc::vec![0; 8];
                input[3] = priority << 4 | node;
                (QUERY_CONG_STATUS, 0, input, 0x10)
            }
            Reading::FlowControl => register(FLOW_CONTROL, 0x20),
            Reading::Trust => register(TRUST, 8),
        }
    }

    /// Handles the answer to a reading.
    pub(super) fn take_reading(&mut self, reading: Reading, answer: &[u8]) {
        let readings = &mut self.readings;
        match reading {
            Reading::Pairs => readings.take_pairs(answer),
            Reading::Port => readings.take_port(answer),
            Reading::Congestion => readings.take_congestion(answer),
            Reading::FlowControl => {
                readings.take_flow_control(answer);
                if readings.flow_control.is_lossless() == Some(false) {
                    self.function.port().advise(NOT_LOSSLESS);
                }
            }
            Reading::Marks(node, priority) => {
                let on = answer.get(12).is_some_and(|flags| flags & 0x80 != 0);
                let marks = readings.flow_control.marks.get_or_insert_default();
                if let Some(of) = marks.get_mut(usize::from(node) - 1) {
                    *of |= u8::from(on) << priority;
                }
                let is_last = [node, priority] == [NODES[1], PRIORITIES - 1];
                if is_last && marks[0] & marks[1] == 0 {
                    self.function.port().advise(NOT_MARKED);
                }
            }
            Reading::Trust => {
                let register = answer.get(16..24).unwrap_or_default();
                if register.len() == 8 {
                    readings.flow_control.by_dscp = Some(get(register, 0x3d, 3) == 2);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_continue_over_resets_and_wraps() {
        let mut readings = Readings::default();
        let mut pairs = [0; 0x100];
        let mut read = |readings: &mut Readings, value: u32| {
            pairs[0x38..0x3c].copy_from_slice(&value.to_be_bytes());
            readings.take_pairs(&pairs);
            readings.counters.out_of_sequence
        };
        assert_eq!(read(&mut readings, 5), 5);
        assert_eq!(read(&mut readings, u32::MAX), u64::from(u32::MAX));
        assert_eq!(read(&mut readings, 2), (1 << 32) + 2);
        readings.begin(1, false);
        assert_eq!(read(&mut readings, 3), (1 << 32) + 5);
        let mut port = [0; 0x210];
        port[0x17] = 4;
        readings.take_port(&port);
        readings.begin(1, false);
        readings.take_port(&port);
        assert_eq!(readings.counters.rx_discards, 8);
    }

    #[test]
    fn flow_control_is_described_in_words() {
        let mut settings = FlowControl { pause: Some((false, false)), ..FlowControl::default() };
        assert_eq!(settings.in_words(), None);
        settings.priorities = Some((8, 12));
        assert_eq!(settings.in_words().as_deref(), Some("priorities 3"));
        (settings.by_dscp, settings.marks) = (Some(true), Some([9, 15]));
        assert_eq!(settings.in_words().as_deref(), Some("priorities 3, by DSCP, ECN on 0 3"));
        (settings.priorities, settings.marks) = (Some((1, 2)), Some([1, 2]));
        assert_eq!(settings.in_words().as_deref(), Some("off, by DSCP, no ECN"));
        settings.pause = Some((true, true));
        assert_eq!(settings.in_words().as_deref(), Some("pause, no ECN"));
    }

    #[test]
    fn lossless_needs_flow_control_in_both_directions() {
        let lossless = |tx: u8, rx: u8, pauses: u8| {
            let mut readings = Readings::default();
            let mut answer = [0; 0x30];
            (answer[0x10 + 9], answer[0x10 + 13]) = (tx, rx);
            (answer[0x10 + 8], answer[0x10 + 12]) = (pauses & 1 << 7, pauses << 7);
            readings.take_flow_control(&answer);
            readings.flow_control.is_lossless()
        };
        assert_eq!(FlowControl::default().is_lossless(), None);
        assert_eq!(lossless(0, 0, 0), Some(false));
        assert_eq!(lossless(8, 8, 0), Some(true));
        assert_eq!(lossless(8, 4, 0), Some(false));
        assert_eq!(lossless(0, 0, 0x81), Some(true));
        assert_eq!(lossless(0, 0, 0x80), Some(false));
    }
}
