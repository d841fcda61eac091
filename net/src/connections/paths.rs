//! Segments that are as large as the path to the peer takes. smoltcp cuts what it sends by its interface's MTU, which it
//! keeps for ever. So a connection over a smaller path sends by an interface with that MTU, and what was sent in larger
//! segments is sent anew, as after a lost segment.
//!
//! Where routers report nothing, connections find out (RFC 4821, RFC 8899): after the second time that a segment was
//! lost, a smaller one is tried, and if that is what the peer acknowledges, its size is remembered for the destination.

use super::*;
use crate::packet_too_big::PacketTooBig;
use crate::path_mtu::{reported, step_below};

/// Interfaces with a smaller MTU that are kept. With more sizes in use, they are made again and again.
const NARROW: usize = 8;
/// What is due sooner is no retransmission, or one that needs no help.
const SOON: Duration = Duration::from_millis(200);
/// smoltcp retransmits no sooner, but for a peer that asks for it.
const TIMEOUT: Duration = Duration::from_millis(900);

/// An acknowledgement that comes so soon after a smaller packet is for that one.
const ANSWER: Duration = Duration::from_millis(300);

/// A smaller packet that is tried.
#[derive(Clone, Copy, Debug)]
struct Tried {
    /// Largest packet from now on.
    mtu: usize,
    /// The oldest number that was not acknowledged then.
    from: u32,
    /// The packet in which that was sent last, if that was smaller already, and when.
    sent: Option<(usize, Instant)>,
}

/// How far a connection has come with segments of the full size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Probe {
    /// Since when nothing more was acknowledged of what was sent.
    since: Instant,
    tried: Option<Tried>,
    /// What was sent is to be sent anew.
    pub again: bool,
}

impl Probe {
    pub fn new(now: Instant) -> Self {
        Probe { since: now, tried: None, again: false }
    }

    /// Largest packet for now, on a path that is known to take `mtu`.
    pub fn limit(&self, mtu: usize) -> usize {
        self.tried.map_or(mtu, |tried| tried.mtu.min(mtu))
    }

    /// A segment is sent that begins with this number, in a packet of `length` bytes.
    fn sends(
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

    /// More was acknowledged, up to this number. Returns the size of packet that this shows to pass, after larger
    /// ones were lost: the peer acknowledges whole segments.
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

/// smoltcp's interfaces with an MTU below that of the port.
#[derive(Default)]
pub(super) struct NarrowStacks {
    stacks: Vec<(usize, u64, Interface)>,
    next: usize,
}

impl NarrowStacks {
    /// The one with this MTU.
    pub fn of(&mut self, mtu: usize, routes: &Routes, now: Instant) -> &mut Interface {
        let wanted = (mtu, routes.generation);
        let found = self.stacks.iter().position(|(mtu, routes, _)| (*mtu, *routes) == wanted);
        let at = found.unwrap_or_else(|| {
            let made = (mtu, routes.generation, narrow(mtu, routes, now));
            if self.stacks.len() < NARROW {
                self.stacks.push(made);
                return self.stacks.len() - 1;
            }
            self.next = (self.next + 1) % NARROW;
            self.stacks[self.next] = made;
            self.next
        });
        &mut self.stacks[at].2
    }
}

#[cold]
fn narrow(mtu: usize, routes: &Routes, now: Instant) -> Interface {
    let framing = Framing::Ip { from: [0; 6], to: [0; 6], smc: false };
    let mut queue = Queue::new(1, 1);
    let mut link = Link { received: None, queue: &mut queue, mtu, framing };
    let config = Config::new(HardwareAddress::Ip);
    let mut stack = Interface::new(config, &mut link, to_smoltcp(now));
    stack.update_ip_addrs(|list| list.extend(routes.addresses.iter().copied()));
    stack
}

impl Connection {
    /// Notes the frame that smoltcp has just queued.
    #[inline]
    pub(super) fn has_sent(&mut self, frame: Option<&[u8]>, now: Instant) {
        let Some((first, length, packet)) = frame.and_then(segment::extent) else { return };
        if length > 0 {
            self.silence.asks(now);
            self.probe.sends(first, packet, &self.numbers, self.ends.remote, now);
            self.numbers.sends(first, length);
        }
    }

    /// Notes that more was acknowledged.
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
    /// Takes in a router's report that a packet of a connection did not pass.
    pub fn packet_too_big(&mut self, report: &PacketTooBig, outside: &mut Outside<'_>) {
        let (remote, now) = (report.ends.remote, outside.now);
        let known = outside.mtu_to(remote);
        let Some(key) = self.find(report.ends) else { return };
        let Some(connection) = self.connections.get_mut(key) else { return };
        if !connection.numbers.is_under_way(report.sequence) {
            return;
        }
        if let Some(mtu) = reported(remote, report.mtu, report.length).filter(|&mtu| mtu < known) {
            outside.paths.learn(remote, mtu, now);
            connection.probe.again = true;
            self.look_after(key);
        }
    }

    /// Has smoltcp send a frame of a connection, in packets of up to `mtu` bytes. When it is to be called again;
    /// at once if that is now or before.
    pub(super) fn send(
        &mut self,
        key: usize,
        (mac, mtu): (MacAddress, usize),
        outside: &mut Outside<'_>,
    ) -> Option<Instant> {
        let now = outside.now;
        let connection = self.connections.get_mut(key)?;
        let framing = Framing::Ip { from: outside.local.mac, to: mac, smc: connection.smc };
        let mtu = connection.probe.limit(mtu);
        let stack = match mtu < outside.mtu {
            true => self.narrow.of(mtu, outside.routes, now),
            false => &mut *outside.stack,
        };
        let mut link = Link { received: None, queue: &mut *outside.queue, mtu, framing };
        let at = to_smoltcp(now);
        let mut sent = stack.poll_egress(at, &mut link, &mut connection.sockets);
        let mut due = stack.poll_at(at, &connection.sockets);
        if sent == PollResult::None
            && connection.probe.again
            && let Some(timer) = due.filter(|&due| from_smoltcp(due) > now + SOON)
        {
            connection.probe.again = false;
            if connection.socket().send_queue() > 0 {
                // As if its timer had run out.
                sent = stack.poll_egress(timer, &mut link, &mut connection.sockets);
                due = Some(at);
            }
        }
        if sent != PollResult::None {
            connection.has_sent(outside.queue.back(), now);
        }
        match due? {
            due if due > at => Some(from_smoltcp(due)),
            _ if sent != PollResult::None => Some(now),
            _ => Some(now + STALLED),
        }
    }
}
