//! `ping`: sends ICMP echo requests (RFC 792, RFC 4443 section 4.1) at an interval, and reports replies.
//!
//! ICMP unreachable messages are ignored: such a request times out.

use crate::Interface;
use alloc::vec;
use core::fmt;
use core::net::IpAddr;
use core::time::Duration;
use drivers::hal::Instant;
use smoltcp::iface::SocketHandle;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::socket::icmp;
use smoltcp::wire::{
    Icmpv4Message, Icmpv4Packet, Icmpv4Repr, Icmpv6Message, Icmpv6Packet, Icmpv6Repr,
};

/// Bytes of an ICMP echo header.
const HEADER: usize = 8;
/// Maximum number of unanswered requests; older ones time out.
const WINDOW: u16 = 8;

/// Options of a ping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Number of requests.
    pub count: u16,
    /// Time between two requests.
    pub interval: Duration,
    /// Time limit for a reply; at most eight intervals.
    pub timeout: Duration,
    /// Bytes of data in each request.
    pub size: u16,
}

impl Default for Options {
    fn default() -> Self {
        let second = Duration::from_secs(1);
        Options { count: 4, interval: second, timeout: second, size: 56 }
    }
}

/// Why a ping cannot start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartError {
    /// No network or gateway of this interface leads to the target.
    NoRoute,
    /// Larger than a packet of this interface.
    TooLarge,
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoRoute => "no route to the address: see `show interfaces`",
            Self::TooLarge => "the packet would exceed the interface's MTU",
        })
    }
}

impl core::error::Error for StartError {}

/// An event of a ping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A request was answered.
    Reply {
        /// Number of the request, from 0.
        sequence: u16,
        /// Round-trip time.
        time: Duration,
    },
    /// A request was not answered in time.
    Timeout {
        /// Number of the request, from 0.
        sequence: u16,
    },
    /// All requests have been answered or have timed out.
    Finished(Summary),
}

/// Totals of a ping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Requests sent.
    pub sent: u16,
    /// Replies received in time.
    pub received: u16,
    /// Shortest round-trip time; valid if there was a reply.
    pub min: Duration,
    /// Longest round-trip time.
    pub max: Duration,
    /// Sum of all round-trip times.
    pub total: Duration,
}

impl Summary {
    /// Mean round-trip time, if there was a reply.
    pub fn mean(&self) -> Option<Duration> {
        self.total.checked_div(self.received.into())
    }
}

/// A running ping.
#[derive(Debug)]
pub struct Ping {
    socket: SocketHandle,
    target: IpAddr,
    identifier: u16,
    options: Options,
    next: Instant,
    /// Send times of the last [`WINDOW`] requests; None for finished ones.
    waiting: [Option<Instant>; WINDOW as usize],
    summary: Summary,
    finished: bool,
}

impl Ping {
    /// Starts to ping `target`. `identifier` distinguishes the replies of this ping from those of others.
    pub fn start(
        interface: &mut Interface,
        target: IpAddr,
        identifier: u16,
        options: Options,
        now: Instant,
    ) -> Result<Self, StartError> {
        interface.next_hop(target).ok_or(StartError::NoRoute)?;
        let ip_header = if target.is_ipv4() { 20 } else { 40 };
        let size = HEADER + usize::from(options.size);
        if ip_header + size > interface.mtu_to(target) {
            return Err(StartError::TooLarge);
        }
        let buffer = |packets: usize| {
            icmp::PacketBuffer::new(
                vec![icmp::PacketMetadata::EMPTY; packets],
                vec![0; packets * size],
            )
        };
        let mut socket = icmp::Socket::new(buffer(4), buffer(1));
        socket.bind(icmp::Endpoint::Ident(identifier)).expect("the socket is new");
        Ok(Ping {
            socket: interface.sockets().add(socket),
            target,
            identifier,
            options,
            next: now,
            waiting: [None; WINDOW as usize],
            summary: Summary::default(),
            finished: false,
        })
    }

    /// Totals so far.
    pub fn summary(&self) -> Summary {
        self.summary
    }

    /// Sends requests that are due, and returns the next event; call until None. `interface` must be the one passed to
    /// `start`. `Finished` is the last event.
    pub fn poll(&mut self, interface: &mut Interface, now: Instant) -> Option<Event> {
        if self.finished {
            return None;
        }
        while let Some(sequence) = self.receive(interface) {
            if let Some(event) = self.answered(sequence, now) {
                return Some(event);
            }
        }
        if let Some(event) = self.expire(now) {
            return Some(event);
        }
        if self.summary.sent < self.options.count && self.next <= now {
            self.send(interface, now);
        }
        if self.summary.sent == self.options.count && self.waiting.iter().all(Option::is_none) {
            self.finished = true;
            return Some(Event::Finished(self.summary));
        }
        None
    }

    /// When [`Ping::poll`] is due without a reply.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let send = (self.summary.sent < self.options.count).then_some(self.next);
        let expire = self.waiting.iter().flatten().map(|&sent| sent + self.options.timeout);
        expire.chain(send).min().filter(|_| !self.finished)
    }

    /// Stops the ping, finished or not, and frees its socket.
    pub fn stop(self, interface: &mut Interface) -> Summary {
        interface.sockets().remove(self.socket);
        self.summary
    }

    fn answered(&mut self, sequence: u16, now: Instant) -> Option<Event> {
        let oldest = self.summary.sent.saturating_sub(WINDOW);
        if !(oldest..self.summary.sent).contains(&sequence) {
            return None;
        }
        let time = now.since(self.waiting[usize::from(sequence % WINDOW)].take()?);
        let summary = &mut self.summary;
        summary.min = if summary.received == 0 { time } else { summary.min.min(time) };
        summary.max = summary.max.max(time);
        summary.total += time;
        summary.received += 1;
        Some(Event::Reply { sequence, time })
    }

    fn expire(&mut self, now: Instant) -> Option<Event> {
        let oldest = self.summary.sent.saturating_sub(WINDOW);
        for sequence in oldest..self.summary.sent {
            let slot = &mut self.waiting[usize::from(sequence % WINDOW)];
            // The next request evicts the oldest one from a full window.
            let pushed = sequence + WINDOW == self.summary.sent
                && self.next <= now
                && self.summary.sent < self.options.count;
            if slot.is_some_and(|sent| pushed || sent + self.options.timeout <= now) {
                *slot = None;
                return Some(Event::Timeout { sequence });
            }
        }
        None
    }

    fn send(&mut self, interface: &mut Interface, now: Instant) {
        let (ident, seq_no, size) = (self.identifier, self.summary.sent, self.options.size);
        let target = self.target;
        let socket = interface.sockets().get_mut::<icmp::Socket>(self.socket);
        // Without room, the previous request still waits for the target's MAC address, and this one is lost.
        if let Ok(buffer) = socket.send(HEADER + usize::from(size), target.into()) {
            let data = vec![0xa5; size.into()];
            let checksums = ChecksumCapabilities::ignored();
            match target {
                IpAddr::V4(_) => Icmpv4Repr::EchoRequest { ident, seq_no, data: &data }
                    .emit(&mut Icmpv4Packet::new_unchecked(buffer), &checksums),
                IpAddr::V6(ip) => Icmpv6Repr::EchoRequest { ident, seq_no, data: &data }.emit(
                    &ip,
                    &ip,
                    &mut Icmpv6Packet::new_unchecked(buffer),
                    &checksums,
                ),
            }
        }
        self.waiting[usize::from(seq_no % WINDOW)] = Some(now);
        self.summary.sent += 1;
        self.next = now + self.options.interval;
    }

    /// The sequence number of the next received reply.
    fn receive(&mut self, interface: &mut Interface) -> Option<u16> {
        let socket = interface.sockets().get_mut::<icmp::Socket>(self.socket);
        while let Ok((message, from)) = socket.recv() {
            if IpAddr::from(from) != self.target {
                continue;
            }
            // The socket accepts only messages with our identifier and a valid checksum.
            match self.target {
                IpAddr::V4(_) => match Icmpv4Packet::new_checked(message) {
                    Ok(m) if m.msg_type() == Icmpv4Message::EchoReply => {
                        return Some(m.echo_seq_no());
                    }
                    _ => continue,
                },
                IpAddr::V6(_) => match Icmpv6Packet::new_checked(message) {
                    Ok(m) if m.msg_type() == Icmpv6Message::EchoReply => {
                        return Some(m.echo_seq_no());
                    }
                    _ => continue,
                },
            }
        }
        None
    }
}
