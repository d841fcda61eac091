//! What is to be sent now, one datagram at a time: answers to PINGs, PINGs, packets again, new packets, ACKs.

use super::endpoint::{Endpoint, State};
use super::{Channel, Engine, NONE};
use crate::wire::header::{Header, Kind, MAX_HEADER};
use core::net::SocketAddrV4;
use drivers::hal::{Instant, Window};

/// Packets that an endpoint sends before another has its turn.
const TURN: u32 = 32;
/// Of them, packets that are sent again.
pub(super) const RESENDS_PER_TURN: u32 = 16;
/// Nanoseconds that an endpoint may be ahead of the speed of its link.
const AHEAD: u64 = 100_000;

/// A datagram to send: `header`, and behind it the payload.
#[derive(Clone, Copy, Debug)]
pub struct Transmit<'a> {
    /// At which interface.
    pub interface: usize,
    /// From which of its ports.
    pub channel: Channel,
    /// Where to.
    pub to: SocketAddrV4,
    /// Routers must not fragment it: it finds out what the path carries.
    pub dont_fragment: bool,
    /// The first bytes of the UDP payload.
    pub header: &'a [u8],
    /// The rest of it, where it lies: read it before memory that was given to be sent is the user's again.
    pub payload: &'a [Window],
}

impl Transmit<'_> {
    /// Bytes of UDP payload.
    pub fn len(&self) -> usize {
        self.header.len() + self.payload.iter().map(Window::len).sum::<usize>()
    }

    /// Whether it has no bytes, which none is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A datagram while it is made.
#[derive(Debug)]
pub(super) struct Out {
    pub interface: usize,
    pub channel: Channel,
    pub to: SocketAddrV4,
    pub dont_fragment: bool,
    pub header: [u8; MAX_HEADER],
    pub length: usize,
    pub payload: [Window; 2],
    pub windows: usize,
}

impl Out {
    pub fn new() -> Self {
        Out {
            interface: 0,
            channel: Channel::Data,
            to: SocketAddrV4::new(core::net::Ipv4Addr::UNSPECIFIED, 0),
            dont_fragment: false,
            header: [0; MAX_HEADER],
            length: 0,
            payload: [Window::empty(); 2],
            windows: 0,
        }
    }

    /// Takes a payload.
    #[inline]
    pub fn set_payload(&mut self, payload: [Window; 2]) {
        self.windows = match [payload[0].is_empty(), payload[1].is_empty()] {
            [true, _] => 0,
            [_, true] => 1,
            _ => 2,
        };
        self.payload = payload;
    }

    fn transmit(&self) -> Transmit<'_> {
        Transmit {
            interface: self.interface,
            channel: self.channel,
            to: self.to,
            dont_fragment: self.dont_fragment,
            header: self.header.get(..self.length).unwrap_or(&[]),
            payload: self.payload.get(..self.windows).unwrap_or(&[]),
        }
    }
}

impl Engine {
    /// The next datagram to send, if there is one; what is due at `now` is done first. Ask when it can be sent:
    /// what comes out counts as sent.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Transmit<'_>> {
        if self.poll_answer() {
            return Some(self.out.transmit());
        }
        while let Some(timer) = self.wheel.take_due(now) {
            match timer.checked_sub(self.endpoints.len() as u32) {
                Some(agent) => self.agent_is_due(agent, now),
                None => self.endpoint_is_due(timer, now),
            }
        }
        while let Some(&place) = self.ready.front() {
            if let Some(agent) = place.checked_sub(self.endpoints.len() as u32) {
                self.ready.pop_front();
                if self.poll_ping(agent, now) {
                    return Some(self.out.transmit());
                }
                continue;
            }
            if self.poll_endpoint(place, now) {
                let Some(Some(endpoint)) = self.endpoints.get_mut(place as usize) else { continue };
                endpoint.turn += 1;
                endpoint.counters.num_total_sends += 1;
                if endpoint.turn >= TURN || endpoint.resends_in_turn >= RESENDS_PER_TURN {
                    endpoint.turn = 0;
                    endpoint.resends_in_turn = 0;
                    self.ready.rotate_left(1);
                }
                return Some(self.out.transmit());
            }
            self.ready.pop_front();
            if let Some(Some(endpoint)) = self.endpoints.get_mut(place as usize) {
                endpoint.is_ready = false;
            }
            self.schedule(place);
        }
        None
    }

    /// Makes the next packet of an endpoint; false if it has none now.
    fn poll_endpoint(&mut self, place: u32, now: Instant) -> bool {
        let Engine { endpoints, fragments, out, .. } = self;
        let Some(Some(endpoint)) = endpoints.get_mut(place as usize) else { return false };
        if matches!(endpoint.state, State::Failed(_)) {
            return false;
        }
        let is_paced = endpoint.send.pace.nanos_since(now) > AHEAD;
        let again = endpoint.recovery.next < endpoint.recovery.end;
        if again && !is_paced {
            let number = endpoint.recovery.next;
            endpoint.recovery.next += 1;
            if let Some((fragment, segment)) = find(endpoint, fragments, number)
                && let Some(fragment) = fragments.get(fragment as usize)
            {
                endpoint.resends_in_turn += 1;
                endpoint.counters.num_resends += 1;
                if number == endpoint.send.acknowledged + 1 {
                    endpoint.recovery.at = Some(now);
                }
                // What is acknowledged with it has waited for it, or it is not known which of the two has arrived
                // (Karn): neither is timed.
                if endpoint.round_trip.timed.is_some_and(|(timed, _)| timed >= number) {
                    endpoint.round_trip.timed = None;
                }
                pace(endpoint, fragment.range(segment).1, now);
                data(endpoint, fragment, number, segment, None, out);
                return true;
            }
        }
        let limit = u64::from(endpoint.send.limit.min(endpoint.config.timing.in_flight));
        let more = endpoint.send.unsent != NONE && endpoint.on_the_way() < limit;
        if more && !is_paced {
            return new_packet(endpoint, fragments, out, now);
        }
        if more || again {
            let until = endpoint.send.pace.as_nanos() - AHEAD / 2;
            endpoint.send.pace_at = Some(Instant::from_nanos(until));
        }
        if endpoint.ack.now {
            let acknowledged = acknowledge(endpoint, now);
            endpoint.counters.num_ack_sends += 1;
            let header = Header {
                sender: endpoint.sender,
                sequence: 0,
                acknowledged: Some(acknowledged),
                put_address: 0,
                tag: 0,
                kind: Kind::Ack,
            };
            out.length = header.emit(endpoint.layout, 0, &mut out.header);
            out.windows = 0;
            out.interface = endpoint.interface;
            out.channel = Channel::Priority;
            out.to = endpoint.priority;
            out.dont_fragment = false;
            return true;
        }
        false
    }
}

/// The fragment and its packet that have a number.
fn find(
    endpoint: &mut Endpoint,
    fragments: &slab::Slab<super::send::Fragment>,
    number: u64,
) -> Option<(u32, u32)> {
    let mut place = endpoint.recovery.fragment.unwrap_or(endpoint.send.first);
    loop {
        let fragment = fragments.get(place as usize)?;
        let segment = number.checked_sub(fragment.start)?;
        if segment < u64::from(fragment.segments) {
            endpoint.recovery.fragment = Some(place);
            return Some((place, segment as u32));
        }
        place = fragment.next;
    }
}

/// Makes the next packet that was never sent.
fn new_packet(
    endpoint: &mut Endpoint,
    fragments: &mut slab::Slab<super::send::Fragment>,
    out: &mut Out,
    now: Instant,
) -> bool {
    let (place, segment) = (endpoint.send.unsent, endpoint.send.unsent_segment);
    let Some(fragment) = fragments.get_mut(place as usize) else { return false };
    let number = endpoint.send.next;
    if segment == 0 {
        fragment.start = number;
    }
    fragment.sent = now;
    endpoint.send.next += 1;
    endpoint.send.unsent_segment += 1;
    if endpoint.send.unsent_segment == fragment.segments {
        endpoint.send.unsent = fragment.next;
        endpoint.send.unsent_segment = 0;
    }
    let length = fragment.range(segment).1;
    endpoint.send.backlog -= u64::from(length);
    match fragment.segments {
        1 => endpoint.counters.num_frag_sends += 1,
        _ => endpoint.counters.num_chunk_sends += 1,
    }
    let on_the_way = endpoint.on_the_way();
    let counters = &mut endpoint.counters;
    counters.max_sent_window_size = counters.max_sent_window_size.max(on_the_way);
    if endpoint.round_trip.timed.is_none() {
        endpoint.round_trip.timed = Some((number, now));
    }
    if endpoint.recovery.timer.is_none() {
        endpoint.start_timer(None, now);
    }
    pace(endpoint, length, now);
    let acknowledged =
        (endpoint.ack.owed > 0 || endpoint.ack.now).then(|| acknowledge(endpoint, now));
    data(endpoint, fragment, number, segment, acknowledged, out);
    true
}

/// The link is busy with a packet of so many bytes of payload.
fn pace(endpoint: &mut Endpoint, length: u32, now: Instant) {
    if endpoint.byte_time > 0 {
        // Headers of Ethernet, IPv4, UDP and ours, and what lies between frames: about 110 bytes.
        let cost = (u64::from(length) + 110) * endpoint.byte_time / 1024;
        let start = endpoint.send.pace.max(now);
        endpoint.send.pace = Instant::from_nanos(start.as_nanos() + cost);
    }
}

/// Writes a packet of data.
fn data(
    endpoint: &Endpoint,
    fragment: &super::send::Fragment,
    number: u64,
    segment: u32,
    acknowledged: Option<u16>,
    out: &mut Out,
) {
    let (offset, length) = fragment.range(segment);
    let kind = match fragment.segments {
        1 => Kind::Fragment,
        _ => Kind::Chunk { fragment: fragment.id, size: fragment.size, offset },
    };
    let header = Header {
        sender: endpoint.sender,
        sequence: number as u16,
        acknowledged,
        put_address: fragment.put_address,
        tag: fragment.tag,
        kind,
    };
    out.length = header.emit(endpoint.layout, length as u16, &mut out.header);
    out.set_payload(fragment.payload(offset, length));
    out.interface = endpoint.interface;
    out.channel = Channel::Data;
    out.to = endpoint.data;
    out.dont_fragment = false;
}

/// What is acknowledged now; nothing is owed after that.
fn acknowledge(endpoint: &mut Endpoint, now: Instant) -> u16 {
    let number = endpoint.receive.expected - 1;
    let gap = endpoint.has_gap();
    let ack = &mut endpoint.ack;
    if !gap {
        ack.gap_at = None;
    } else if number != ack.sent {
        // The peer learns of the gap when it hears the same once more.
        ack.gap_pause = super::arrival::GAP_PAUSE;
        ack.gap_at = Some(now + super::arrival::GAP_FIRST);
    } else {
        ack.gap_at = Some(Instant::from_nanos(now.as_nanos() + ack.gap_pause));
        ack.gap_pause = (2 * ack.gap_pause).min(super::arrival::GAP_PAUSE_MOST);
    }
    ack.sent = number;
    ack.owed = 0;
    ack.now = false;
    ack.at = None;
    number as u16
}
