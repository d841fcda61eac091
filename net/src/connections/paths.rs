//! Limits segments to the path MTU. A connection over a smaller path sends by an interface with that MTU
//! ([`NarrowStacks`]), and data sent in larger segments is retransmitted, as after a loss.
//!
//! If no router reports the path MTU, connections probe for it (RFC 4821, RFC 8899): after the second timeout of a
//! segment a smaller one is tried. If the peer acknowledges it, its size is stored for the destination.

use super::*;
use crate::packet_too_big::PacketTooBig;
use crate::path_mtu::{reported, step_below};

/// A timer that expires sooner is no retransmission, or one that needs no help.
const SOON: Duration = Duration::from_millis(200);
/// smoltcp retransmits no sooner, except a fast retransmission.
const TIMEOUT: Duration = Duration::from_millis(900);

/// An acknowledgement within this time after a smaller packet acknowledges that packet.
const ANSWER: Duration = Duration::from_millis(300);

/// A smaller packet size that is being tried.
#[derive(Clone, Copy, Debug)]
struct Tried {
    /// Largest packet.
    mtu: usize,
    /// Oldest unacknowledged number when the trial began.
    from: u32,
    /// Length of the smaller packet in which it was last sent, and the time; None until then.
    sent: Option<(usize, Instant)>,
}

/// Path MTU probing of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Probe {
    /// Since when no sent data was acknowledged.
    since: Instant,
    tried: Option<Tried>,
    /// Data in flight is to be retransmitted.
    pub again: bool,
}

impl Probe {
    pub fn new(now: Instant) -> Self {
        Probe { since: now, tried: None, again: false }
    }

    /// Largest packet to send at present, if the known path MTU is `mtu`.
    pub fn limit(&self, mtu: usize) -> usize {
        self.tried.map_or(mtu, |tried| tried.mtu.min(mtu))
    }

    /// Records a sent segment that begins with the number `first`, in a packet of `length` bytes.
    fn record_sent(
        &mut self,
        first: u32,
        length: usize,
        numbers: &Numbers,
        remote: IpAddr,
        now: Instant,
    ) {
        if numbers.in_flight() == 0 {
            self.since = now;
        } else if first == numbers.unacknowledged && now.since(self.since) >= TIMEOUT {
            let is_tried = self.tried.is_some_and(|tried| tried.mtu == length);
            let sent = is_tried.then_some((length, now));
            match (step_below(remote, length), &mut self.tried) {
                (Some(mtu), tried) => *tried = Some(Tried { mtu, from: first, sent }),
                (None, Some(tried)) if is_tried => tried.sent = sent,
                (None, _) => {}
            }
        }
    }

    /// Records an acknowledgement up to `number`. Returns the packet size that has passed where larger ones were lost,
    /// if the acknowledgement shows one: the peer acknowledges whole segments.
    fn acknowledged(&mut self, number: u32, headers: usize, now: Instant) -> Option<usize> {
        self.since = now;
        let Tried { mtu, from, sent } = self.tried.take()?;
        let passed = number.wrapping_sub(from) as usize;
        let whole = |mtu: usize| passed.is_multiple_of(mtu - headers);
        match sent {
            Some((sent, at)) if whole(sent) || now.since(at) < ANSWER => Some(sent),
            _ => whole(mtu).then_some(mtu),
        }
    }
}

impl Connection {
    /// Records the frame that smoltcp has just queued.
    #[inline]
    pub(super) fn has_sent(&mut self, frame: Option<&[u8]>, now: Instant) {
        let Some((first, length, packet)) = frame.and_then(segment::extent) else { return };
        if length > 0 {
            self.silence.probed(now);
            self.probe.record_sent(first, packet, &self.numbers, self.ends.remote, now);
            self.numbers.record_sent(first, length);
        }
    }

    /// Records an acknowledgement, and stores the path MTU that it shows.
    pub(super) fn has_acknowledged(&mut self, paths: &mut PathMtus, now: Instant) {
        let remote = self.ends.remote;
        let headers = if remote.is_ipv4() { 40 } else { 60 };
        let number = self.numbers.unacknowledged;
        if let Some(mtu) = self.probe.acknowledged(number, headers, now) {
            paths.learn(remote, mtu, now);
        }
    }
}

impl Connections {
    /// Handles a router's report that a packet of a connection was too big.
    pub fn packet_too_big(&mut self, report: &PacketTooBig, ctx: &mut Ctx<'_>) {
        let (remote, now) = (report.ends.remote, ctx.now);
        let known = ctx.mtu_to(remote);
        let Some(key) = self.find(report.ends) else { return };
        let Some(connection) = self.connections.get_mut(key) else { return };
        if !connection.numbers.is_under_way(report.sequence) {
            return;
        }
        if let Some(mtu) = reported(remote, report.mtu, report.length).filter(|&mtu| mtu < known) {
            ctx.paths.learn(remote, mtu, now);
            connection.probe.again = true;
            self.schedule(key);
        }
    }

    /// Lets smoltcp send one frame of a connection, in packets of up to `mtu` bytes. Returns when to call again; at
    /// once if that is now or before.
    pub(super) fn send(
        &mut self,
        key: usize,
        (mac, mtu): (MacAddress, usize),
        ctx: &mut Ctx<'_>,
    ) -> Option<Instant> {
        let now = ctx.now;
        let connection = self.connections.get_mut(key)?;
        let framing = Framing::Ip { from: ctx.local.mac, to: mac, smc: connection.smc };
        let mtu = connection.probe.limit(mtu);
        let stack = match mtu < ctx.mtu {
            true => self.narrow.of(mtu, ctx.routes, now),
            false => &mut *ctx.stack,
        };
        let mut link = Link { received: None, queue: &mut *ctx.queue, mtu, framing };
        let at = to_smoltcp(now);
        let mut sent = stack.poll_egress(at, &mut link, &mut connection.sockets);
        let mut due = stack.poll_at(at, &connection.sockets);
        if sent == PollResult::None
            && connection.probe.again
            && let Some(timer) = due.filter(|&due| from_smoltcp(due) > now + SOON)
        {
            connection.probe.again = false;
            if connection.socket().send_queue() > 0 {
                // As if the retransmission timer had expired.
                sent = stack.poll_egress(timer, &mut link, &mut connection.sockets);
                due = Some(at);
            }
        }
        if sent != PollResult::None {
            connection.has_sent(ctx.queue.back(), now);
        }
        match due? {
            due if due > at => Some(from_smoltcp(due)),
            _ if sent != PollResult::None => Some(now),
            _ => Some(now + STALL_RETRY),
        }
    }
}
