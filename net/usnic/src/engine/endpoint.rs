//! What is known of a peer.

use super::config::EndpointConfig;
#[cfg(doc)]
use super::config::Timing;
use super::counters::Counters;
use super::shared::Shared;
use super::{EndpointId, Failure, NO_MESSAGE, NONE};
use crate::wire::header::Layout;
use core::net::SocketAddrV4;
use core::time::Duration;
use drivers::hal::{Instant, Window};

/// What can be done with an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Everything.
    Open,
    /// What was given to be sent is still sent, nothing more is taken.
    Closing,
    /// Everything was sent and acknowledged. What the peer sends again is still acknowledged.
    Closed,
    /// Nothing.
    Failed(Failure),
}

/// A region of ours that the peer may PUT into.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grant {
    pub base: u64,
    pub memory: Window,
}

/// The sending side of the sliding window. Sequence numbers are counted in 64 bits; the wire has the lower 16.
#[derive(Debug)]
pub(super) struct SendWindow {
    /// Number of the next packet.
    pub next: u64,
    /// Everything up to this was acknowledged.
    pub acknowledged: u64,
    /// Fragments: the first that is not wholly acknowledged, and the last.
    pub first: u32,
    pub last: u32,
    /// The first that is not wholly sent, and how many of its bytes were.
    pub unsent: u32,
    pub unsent_offset: u32,
    /// How many fragments there are, and bytes of theirs that were copied.
    pub fragments: usize,
    pub copied: usize,
    /// Bytes of payload that were not yet sent.
    pub backlog: u64,
    /// Name of the next fragment that takes several packets.
    pub fragment_id: u32,
    /// Packets that may be on the way now.
    pub limit: u32,
    /// The next packet may be sent at this moment in nanoseconds, by the speed of the link.
    pub pace: u64,
    pub pace_at: Option<Instant>,
}

/// Sending again.
#[derive(Debug, Default)]
pub(super) struct Recovery {
    /// These packets are to be sent again, from `next` up to, and without, `end`.
    pub next: u64,
    pub end: u64,
    /// The fragment in which `next` is, if it is known.
    pub fragment: Option<u32>,
    /// What was sent before this may be lost; none if nothing seems to be.
    pub until: Option<u64>,
    /// When the first that is missing was last sent again, if it was.
    pub at: Option<Instant>,
    /// When time has passed without an ACK.
    pub timer: Option<Instant>,
    /// How many packets were last sent again at a time.
    pub count: u64,
    /// Times that the timer has expired since the last ACK that told of something new.
    pub backed_off: u32,
    /// Of them, those that had waited for `Timing::retransmit` at least.
    pub expired: u32,
    /// Times that it was doubled since a round trip was last measured (Karn).
    pub doubled: u32,
}

/// How long packets and their ACKs take (RFC 6298, in nanoseconds).
#[derive(Debug)]
pub(super) struct RoundTrip {
    pub smoothed: Option<u64>,
    pub variation: u64,
    /// The shortest of a packet that was sent once.
    pub least: u64,
    /// The packet that is timed, which is never one that was sent twice.
    pub timed: Option<(u64, Instant)>,
}

/// The receiving side of the sliding window.
#[derive(Debug)]
pub(super) struct ReceiveWindow {
    /// The first that has not arrived.
    pub expected: u64,
    /// With a window: the last that has arrived, and one more.
    pub end: u64,
    /// What has arrived of the packets behind the first that has not: place of a window in the pool.
    pub window: Option<u16>,
}

/// What is owed to the peer.
#[derive(Debug, Default)]
pub(super) struct AckState {
    /// Packets since the last ACK.
    pub owed: u32,
    /// An ACK is to be sent in this turn: one is owed.
    pub now: bool,
    /// When it is to be sent at the latest; and whether the endpoint stands in [`Shared::acks`].
    pub at: Option<Instant>,
    pub is_queued: bool,
    /// What was last acknowledged.
    pub sent: u64,
    /// The ACK that tells of the same gap once more: when at the earliest, and after how long again.
    pub gap_at: Option<Instant>,
    pub gap_pause: u64,
}

/// An endpoint.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub id: EndpointId,
    pub state: State,
    pub interface: usize,
    pub layout: Layout,
    pub sender: u64,
    pub peer_sender: u64,
    /// Where the peer receives.
    pub data: SocketAddrV4,
    pub priority: SocketAddrV4,
    pub max_fragment: u32,
    pub max_chunk: u32,
    pub agent: Option<u32>,
    pub send: SendWindow,
    pub recovery: Recovery,
    pub round_trip: RoundTrip,
    pub receive: ReceiveWindow,
    pub ack: AckState,
    /// Messages that wait to be taken: first and last.
    pub inbox: (u16, u16),
    /// Messages that are arriving: the first of them all, and the one that the last part was of, by the name of its
    /// fragment.
    pub arriving: u16,
    pub current: (u32, u16),
    pub messages: usize,
    pub held: usize,
    /// Fragments whose end is to be told: first and last.
    pub completed: (u32, u32),
    /// Where the peer lets us PUT: first address and length.
    pub permitted: Option<(u64, u64)>,
    /// The last region that the peer put something into.
    pub last_grant: Option<Grant>,
    /// When it is looked whether half messages are to be given up, and when the last part of one came.
    pub silence_at: Option<Instant>,
    pub part_at: Instant,
    /// It stands among those with something to send.
    pub is_ready: bool,
    /// Packets of its turn, of which one that is sent again counts twice; or [`DONE`].
    pub turn: u32,
    /// Its user has news, or was refused room.
    pub has_news: bool,
    pub wants_room: bool,
    /// Nanoseconds that a byte takes on the link, times 1024.
    pub byte_time: u64,
    pub config: Limits,
    pub counters: Counters,
}

/// What of the configuration is used while it runs. Times in nanoseconds; see [`Timing`].
#[derive(Debug)]
pub(super) struct Limits {
    pub in_order: bool,
    pub tag: Option<u8>,
    pub messages: usize,
    pub receive_bytes: usize,
    pub sends: usize,
    pub send_bytes: usize,
    pub leaves_room: bool,
    pub retransmit: u64,
    pub retransmit_most: u64,
    pub retries: u32,
    pub probe: u64,
    pub ack_delay: u64,
    pub ack_every: u32,
    pub in_flight: u32,
    pub silence: u64,
}

impl Endpoint {
    pub fn new(
        id: EndpointId,
        config: &EndpointConfig,
        isn: u16,
        speed: u32,
        now: Instant,
    ) -> Self {
        let (modex, timing) = (&config.modex, &config.timing);
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        // Numbers begin in the second round, so that the one before the first is not below 0.
        let [ours, peers] = [isn, modex.isn].map(|isn| (1 << 16) + u64::from(isn));
        let speed = match [speed, modex.link_speed].map(u64::from) {
            [0, speed] | [speed, 0] => speed,
            [ours, peers] => ours.min(peers),
        };
        let to = |port| SocketAddrV4::new(modex.address, port);
        Endpoint {
            id,
            state: State::Open,
            interface: config.interface,
            layout: config.layout,
            sender: config.sender,
            peer_sender: config.peer_sender,
            data: to(modex.data_port),
            priority: to(modex.priority_port),
            max_fragment: modex.max_fragment(config.layout).into(),
            max_chunk: modex.max_chunk(config.layout).into(),
            agent: None,
            send: SendWindow {
                next: ours,
                acknowledged: ours - 1,
                first: NONE,
                last: NONE,
                unsent: NONE,
                unsent_offset: 0,
                fragments: 0,
                copied: 0,
                backlog: 0,
                fragment_id: 1,
                limit: INITIAL_LIMIT.min(timing.in_flight),
                pace: now.as_nanos(),
                pace_at: None,
            },
            recovery: Recovery::default(),
            round_trip: RoundTrip {
                smoothed: None,
                variation: 0,
                least: u64::MAX / 4,
                timed: None,
            },
            receive: ReceiveWindow { expected: peers, end: peers, window: None },
            ack: AckState { sent: peers - 1, ..AckState::default() },
            inbox: (NO_MESSAGE, NO_MESSAGE),
            arriving: NO_MESSAGE,
            current: (0, NO_MESSAGE),
            messages: 0,
            held: 0,
            completed: (NONE, NONE),
            permitted: None,
            last_grant: None,
            silence_at: None,
            part_at: now,
            is_ready: false,
            turn: 0,
            has_news: false,
            wants_room: false,
            // 8 bits, 1000 nanoseconds in a microsecond.
            byte_time: (8000u64 * 1024).checked_div(speed).unwrap_or(0),
            config: Limits {
                in_order: config.delivery == super::config::Delivery::InOrder,
                tag: config.tag,
                messages: config.messages,
                receive_bytes: config.receive_bytes,
                sends: config.sends,
                send_bytes: config.send_bytes,
                leaves_room: config.leaves_room,
                retransmit: nanos(timing.retransmit),
                retransmit_most: nanos(timing.retransmit_most),
                retries: timing.retries,
                probe: nanos(timing.probe),
                ack_delay: nanos(timing.ack_delay),
                ack_every: timing.ack_every,
                in_flight: timing.in_flight,
                silence: nanos(timing.silence),
            },
            counters: Counters::default(),
        }
    }

    /// Gives back everything that it has, and stops its timers.
    pub fn release_all(&mut self, shared: &mut Shared) {
        self.abandon_fragments(shared);
        self.drop_messages(shared);
        self.drop_window(shared);
        self.revoke_all(shared);
        self.recovery.timer = None;
        self.recovery.end = self.recovery.next;
        self.send.pace_at = None;
        self.silence_at = None;
        self.ack =
            AckState { sent: self.ack.sent, is_queued: self.ack.is_queued, ..Default::default() };
    }

    /// Packets that were sent and not acknowledged.
    #[inline]
    pub fn on_the_way(&self) -> u64 {
        self.send.next - 1 - self.send.acknowledged
    }

    /// Whether packets were taken in behind one that is missing.
    #[inline]
    pub fn has_gap(&self) -> bool {
        self.receive.window.is_some() && self.receive.end > self.receive.expected
    }

    /// When something has to be done, if nothing comes, but for what stands in a queue of its own.
    #[inline]
    pub fn deadline(&self) -> Option<Instant> {
        let ack = &self.ack;
        let ack_at = ack.at.filter(|_| !ack.is_queued);
        let moments = [ack_at, ack.gap_at, self.recovery.timer, self.send.pace_at, self.silence_at];
        Instant::first(moments)
    }

    /// Whether it sends and receives.
    #[inline]
    pub fn is_alive(&self) -> bool {
        !matches!(self.state, State::Failed(_))
    }
}

/// A turn that ends because there is nothing more to send.
pub(super) const DONE: u32 = u32::MAX / 2;
/// Packets that may be on the way before the peer has acknowledged any.
pub(super) const INITIAL_LIMIT: u32 = 64;
/// Fewest packets that the loss of some reduces this to.
pub(super) const LOSSY_LIMIT: u32 = 256;
/// Fewest packets that silence reduces this to.
pub(super) const LEAST_LIMIT: u32 = 16;

/// The 64-bit number nearest to `near` whose lower bits are `number`.
#[inline]
pub(super) fn extend(near: u64, number: u16) -> u64 {
    let distance = number.wrapping_sub(near as u16) as i16;
    near.wrapping_add_signed(distance.into())
}
