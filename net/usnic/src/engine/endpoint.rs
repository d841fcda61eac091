//! State of an endpoint: windows, timers, limits and counters of one peer.

use super::config::EndpointConfig;
#[cfg(doc)]
use super::config::Timing;
use super::counters::Counters;
use super::shared::Shared;
use super::{EndpointId, Failure, NO_MESSAGE, NONE};
use crate::wire::header::Layout;
use crate::wire::modex::Modex;
use core::net::SocketAddrV4;
use core::time::Duration;
use drivers::hal::{Instant, Window};

/// State of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It sends and receives.
    Open,
    /// Queued messages are still sent; new ones are rejected.
    Closing,
    /// All messages were sent and acknowledged. Retransmissions of the peer are still acknowledged.
    Closed,
    /// It has failed, and neither sends nor receives.
    Failed(Failure),
}

/// A local region that the peer may PUT into.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grant {
    pub base: u64,
    pub memory: Window,
}

/// The sending side of the sliding window. Sequence numbers have 64 bits; the wire has the lower 16.
#[derive(Debug)]
pub(super) struct SendWindow {
    /// Number of the next packet.
    pub next: u64,
    /// All packets up to this number are acknowledged.
    pub acknowledged: u64,
    /// The first fragment that is not completely acknowledged.
    pub first: u32,
    /// The last fragment.
    pub last: u32,
    /// The first fragment that is not completely sent.
    pub unsent: u32,
    /// Bytes of it that were sent.
    pub unsent_offset: u32,
    /// Number of fragments.
    pub fragments: usize,
    /// Bytes of fragments that are copies.
    pub copied: usize,
    /// Bytes of payload that are not sent yet.
    pub backlog: u64,
    /// Name of the next fragment that needs several packets.
    pub fragment_id: u32,
    /// Current limit of packets in flight.
    pub limit: u32,
    /// When the link is free for the next packet, in nanoseconds.
    pub pace: u64,
    /// When the endpoint may send again, if it was ahead of the link.
    pub pace_at: Option<Instant>,
}

/// State of loss recovery.
#[derive(Debug, Default)]
pub(super) struct Recovery {
    /// Next packet to retransmit.
    pub next: u64,
    /// End (exclusive) of the packets to retransmit.
    pub end: u64,
    /// The fragment of `next`, if it is known.
    pub fragment: Option<u32>,
    /// Packets before this number may be lost; None outside of a recovery.
    pub until: Option<u64>,
    /// When the first missing packet was last retransmitted, if it was.
    pub at: Option<Instant>,
    /// When the retransmission timer expires.
    pub timer: Option<Instant>,
    /// Number of packets in the last retransmission.
    pub count: u64,
    /// Expiries of the timer since the last ACK of new packets.
    pub backed_off: u32,
    /// Those of them after at least `Timing::retransmit`.
    pub expired: u32,
    /// Doublings of the timer since the last sample of the round trip time (Karn).
    pub doubled: u32,
}

/// Round trip time (RFC 6298), in nanoseconds.
#[derive(Debug)]
pub(super) struct RoundTrip {
    pub smoothed: Option<u64>,
    pub variation: u64,
    /// Shortest round trip of a packet that was sent once.
    pub least: u64,
    /// The packet that is timed, and when it was sent; never a retransmitted one.
    pub timed: Option<(u64, Instant)>,
}

/// The receiving side of the sliding window.
#[derive(Debug)]
pub(super) struct ReceiveWindow {
    /// The first packet that has not arrived.
    pub expected: u64,
    /// With a window: one after the last packet that has arrived.
    pub end: u64,
    /// Index in the pool of the window that marks which later packets have arrived.
    pub window: Option<u16>,
}

/// Acknowledgements owed to the peer.
#[derive(Debug, Default)]
pub(super) struct AckState {
    /// Packets since the last ACK.
    pub owed: u32,
    /// An owed ACK is to be sent in this turn.
    pub now: bool,
    /// When the owed ACK is to be sent at the latest.
    pub at: Option<Instant>,
    /// Whether the endpoint is in [`Shared::acks`].
    pub is_queued: bool,
    /// The number in the last ACK.
    pub sent: u64,
    /// When the ACK of a gap is repeated.
    pub gap_at: Option<Instant>,
    /// Delay until the repetition after that.
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
    /// Address of the peer's data channel.
    pub data: SocketAddrV4,
    /// Address of the peer's priority channel.
    pub priority: SocketAddrV4,
    /// The peer's modex.
    modex: Modex,
    pub max_fragment: u32,
    pub max_chunk: u32,
    pub agent: Option<u32>,
    pub send: SendWindow,
    pub recovery: Recovery,
    pub round_trip: RoundTrip,
    pub receive: ReceiveWindow,
    pub ack: AckState,
    /// First and last message that wait for the user.
    pub inbox: (u16, u16),
    /// First arriving message.
    pub arriving: u16,
    /// Fragment name and message of the last part that arrived.
    pub current: (u32, u16),
    pub messages: usize,
    pub held: usize,
    /// First and last fragment whose completion the user has not polled.
    pub completed: (u32, u32),
    /// Region that the peer permits PUTs to: first address and length.
    pub permitted: Option<(u64, u64)>,
    /// The region of the peer's last PUT.
    pub last_grant: Option<Grant>,
    /// When incomplete messages are checked for a timeout.
    pub silence_at: Option<Instant>,
    /// When the last part of a message arrived.
    pub part_at: Instant,
    /// The endpoint is in the ready queue.
    pub is_ready: bool,
    /// Packets sent in its turn, where a retransmission counts twice; or [`DONE`].
    pub turn: u32,
    /// The endpoint is in the queue of news for its user.
    pub has_news: bool,
    /// A send was refused as full, so the user is notified when there is room.
    pub wants_room: bool,
    /// Nanoseconds of a byte on the link, times 1024.
    pub byte_time: u64,
    pub config: Limits,
    pub counters: Counters,
}

/// Runtime limits from the configuration. Times are in nanoseconds; see [`Timing`].
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

/// The lower of two link speeds, of which 0 is unknown.
fn slower(ours: u64, peers: u64) -> u64 {
    match [ours, peers] {
        [0, speed] | [speed, 0] => speed,
        [ours, peers] => ours.min(peers),
    }
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
        // The upper bits begin at 1, so that the number before the first one is not negative.
        let [ours, peers] = [isn, modex.isn].map(|isn| (1 << 16) + u64::from(isn));
        let speed = slower(speed.into(), modex.link_speed.into());
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
            modex: *modex,
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

    /// Limits packets, as if the peer's modex had this longest message.
    pub fn limit_packets(&mut self, max_message: u16) {
        let max_message = max_message.min(self.modex.max_message);
        let modex = Modex { max_message, ..self.modex };
        self.max_fragment = modex.max_fragment(self.layout).into();
        self.max_chunk = modex.max_chunk(self.layout).into();
    }

    /// Releases all resources, and stops the timers.
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
    pub fn in_flight(&self) -> u64 {
        self.send.next - 1 - self.send.acknowledged
    }

    /// Whether packets after a missing one have arrived.
    #[inline]
    pub fn has_gap(&self) -> bool {
        self.receive.window.is_some() && self.receive.end > self.receive.expected
    }

    /// The next deadline, except that of an ACK in [`Shared::acks`].
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

/// Value of [`Endpoint::turn`] if there is nothing more to send.
pub(super) const DONE: u32 = u32::MAX / 2;
/// Limit of packets in flight before the first ACK.
pub(super) const INITIAL_LIMIT: u32 = 64;
/// Minimum of the limit after losses.
pub(super) const LOSSY_LIMIT: u32 = 256;
/// Minimum of the limit after timeouts.
pub(super) const LEAST_LIMIT: u32 = 16;

/// The 64-bit number nearest to `near` whose lower bits are `number`.
#[inline]
pub(super) fn extend(near: u64, number: u16) -> u64 {
    let distance = number.wrapping_sub(near as u16) as i16;
    near.wrapping_add_signed(distance.into())
}
