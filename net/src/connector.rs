//! TCP connections to others, for protocols that are engines of their own: bytes in, bytes out.
//!
//! TCP itself is smoltcp's. A connection is named by a [`Link`] from [`Connector::connect`] until
//! its user gives it up. It may offer SMC in its SYN (see [`crate::smc_option`]).

use crate::Interface;
use crate::tcp::{Closed, FAREWELL, LAST_WORDS, room as tcp_room, stop_asking};
use alloc::vec;
use alloc::vec::Vec;
use core::net::SocketAddr;
use drivers::hal::Instant;
use slab::Slab;
use smoltcp::iface::SocketHandle;
use smoltcp::socket::tcp::{self, RecvError, State};

/// Local ports that are used in turn (RFC 6335: the dynamic ones).
const PORTS: core::ops::RangeInclusive<u16> = 49152..=65535;
/// How long a peer may leave our SYN without an answer.
const PATIENCE: smoltcp::time::Duration = smoltcp::time::Duration::from_secs(10);
/// How often a silent peer is asked whether it is there, and how long it may leave that without an
/// answer.
const KEEP_ALIVE: smoltcp::time::Duration = smoltcp::time::Duration::from_secs(10);
const SILENCE: smoltcp::time::Duration = smoltcp::time::Duration::from_secs(30);

/// What a connector may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections at a time.
    pub connections: usize,
    /// Bytes of each that have arrived and were not read.
    pub receive: usize,
    /// Bytes of each that were written and not acknowledged.
    pub transmit: usize,
}

/// Name of a connection of a connector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Link(usize, u16);

/// Where a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The peer has not answered yet.
    Opening,
    /// It is open; whether the peer offers SMC as we did is told once.
    Open {
        /// Both offer SMC.
        smc: bool,
    },
    /// Refused, reset, or without an answer.
    Gone,
}

#[derive(Debug)]
struct Place {
    socket: SocketHandle,
    port: u16,
    peer: SocketAddr,
    smc: bool,
    /// Its user has given it up.
    leaving: bool,
}

/// How far the end of a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaving {
    /// Its user has given it up.
    Told,
    /// It is being closed, since then.
    Since(Instant),
    /// What there is left to say goes out, since then.
    Over(Instant),
}

/// Connections to others.
#[derive(Debug)]
pub struct Connector {
    limits: Limits,
    next: u16,
    places: Slab<Place>,
    /// Those that their users have given up.
    leaving: Vec<(usize, Leaving)>,
}

impl Connector {
    /// Without any connection. `seed` says which local port comes first; it should not be
    /// predictable.
    pub fn new(limits: Limits, seed: u16) -> Self {
        let next = PORTS.start() | seed;
        Connector { limits, next, places: Slab::new(), leaving: Vec::new() }
    }

    /// Begins to connect to `peer`; `smc` offers SMC. None if there is no room or no way.
    pub fn connect(
        &mut self,
        interface: &mut Interface,
        peer: SocketAddr,
        smc: bool,
    ) -> Option<Link> {
        if self.places.len() >= self.limits.connections || peer.port() == 0 {
            return None;
        }
        let port = self.free_port(interface)?;
        let buffer = |size| tcp::SocketBuffer::new(vec![0; size]);
        let mut socket =
            tcp::Socket::new(buffer(self.limits.receive), buffer(self.limits.transmit));
        socket.set_nagle_enabled(false);
        socket.set_timeout(Some(PATIENCE));
        let socket = interface.sockets().add(socket);
        if !interface.open(socket, peer, port) {
            interface.sockets().remove(socket);
            return None;
        }
        if smc {
            interface.smc_option().set_port(port, true);
        }
        let place = Place { socket, port, peer, smc, leaving: false };
        Some(Link(self.places.insert(place), port))
    }

    /// A local port that no socket of the interface has, be it another connector's.
    fn free_port(&mut self, interface: &Interface) -> Option<u16> {
        for _ in PORTS {
            let port = self.next;
            self.next = if port == *PORTS.end() { *PORTS.start() } else { port + 1 };
            if !interface.uses_port(port) {
                return Some(port);
            }
        }
        None
    }

    /// Where a connection stands.
    pub fn progress(&self, interface: &mut Interface, link: Link) -> Progress {
        let Some(place) = self.place(link) else { return Progress::Gone };
        let socket = interface.sockets().get_mut::<tcp::Socket>(place.socket);
        match socket.state() {
            State::SynSent | State::SynReceived => Progress::Opening,
            State::Closed => Progress::Gone,
            _ => {
                socket.set_keep_alive(Some(KEEP_ALIVE));
                socket.set_timeout(Some(SILENCE));
                let smc = match place.peer {
                    SocketAddr::V4(peer) if place.smc => {
                        let option = interface.smc_option();
                        // No further SYN is sent from this port.
                        let offered = option.take_offer(place.port, (*peer.ip(), peer.port()));
                        option.set_port(place.port, false);
                        offered
                    }
                    _ => false,
                };
                Progress::Open { smc }
            }
        }
    }

    /// Our end of a connection.
    pub fn local(&self, interface: &mut Interface, link: Link) -> Option<SocketAddr> {
        let place = self.place(link)?;
        let socket = interface.sockets().get_mut::<tcp::Socket>(place.socket);
        let end = socket.local_endpoint()?;
        Some(SocketAddr::new(end.addr.into(), end.port))
    }

    /// Bytes that a write would take now.
    pub fn room(&self, interface: &mut Interface, link: Link) -> usize {
        let Some(place) = self.place(link) else { return 0 };
        tcp_room(interface.sockets().get_mut(place.socket))
    }

    /// Reads what has arrived; 0 if there is nothing at present.
    pub fn read(
        &self,
        interface: &mut Interface,
        link: Link,
        into: &mut [u8],
    ) -> Result<usize, Closed> {
        let place = self.place(link).ok_or(Closed::Gone)?;
        let socket = interface.sockets().get_mut::<tcp::Socket>(place.socket);
        socket.recv_slice(into).map_err(|error| match error {
            RecvError::Finished => Closed::Finished,
            RecvError::InvalidState => Closed::Gone,
        })
    }

    /// Writes as much as there is room for, and returns how much that was.
    pub fn write(
        &self,
        interface: &mut Interface,
        link: Link,
        bytes: &[u8],
    ) -> Result<usize, Closed> {
        let place = self.place(link).ok_or(Closed::Gone)?;
        let socket = interface.sockets().get_mut::<tcp::Socket>(place.socket);
        let gone = if socket.is_open() { Closed::Finished } else { Closed::Gone };
        socket.send_slice(bytes).map_err(|_| gone)
    }

    /// As [`crate::tcp::Listener::stop_asking`].
    pub fn stop_asking(&self, interface: &mut Interface, link: Link) {
        if let Some(place) = self.place(link) {
            stop_asking(interface.sockets().get_mut::<tcp::Socket>(place.socket));
        }
    }

    /// Ends our side after what was written; reading goes on.
    pub fn finish(&self, interface: &mut Interface, link: Link) {
        if let Some(place) = self.place(link) {
            interface.sockets().get_mut::<tcp::Socket>(place.socket).close();
        }
    }

    /// Gives a connection up: in order, or by a reset.
    pub fn close(&mut self, interface: &mut Interface, link: Link, abort: bool) {
        let Some(place) = self.places.get_mut(link.0).filter(|p| p.is(link)) else { return };
        place.leaving = true;
        self.leaving.push((link.0, Leaving::Told));
        interface.smc_option().set_port(place.port, false);
        let socket = interface.sockets().get_mut::<tcp::Socket>(place.socket);
        socket.set_timeout(Some(SILENCE));
        if abort {
            socket.abort();
        } else {
            socket.close();
        }
    }

    /// Gives back what has ended; to be called after each poll of the interface in which anything
    /// happened, and when [`Connector::poll_timeout`] has come.
    pub fn poll(&mut self, interface: &mut Interface, now: Instant) {
        let Connector { places, leaving, .. } = self;
        leaving.retain_mut(|(key, stage)| {
            let socket = interface.sockets().get_mut::<tcp::Socket>(places[*key].socket);
            // What still arrives is of no interest.
            let _ = socket.recv(|bytes| (bytes.len(), ()));
            let over = matches!(socket.state(), State::Closed | State::TimeWait);
            match *stage {
                // What there was left to say has gone out.
                Leaving::Over(since) if since < now => {
                    interface.sockets().remove(places.remove(*key).socket);
                    return false;
                }
                Leaving::Over(_) => {}
                _ if over => *stage = Leaving::Over(now),
                // A slow peer may take what it takes; that it is there is asked.
                Leaving::Since(_) if socket.send_queue() > 0 => *stage = Leaving::Since(now),
                Leaving::Since(since) if since + FAREWELL <= now => {
                    socket.abort();
                    *stage = Leaving::Over(now);
                }
                Leaving::Since(_) => {}
                Leaving::Told => *stage = Leaving::Since(now),
            }
            true
        });
    }

    /// When [`Connector::poll`] has something to do, if nothing arrives.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let due = |(_, stage): &(usize, Leaving)| match *stage {
            Leaving::Told => Instant::ZERO,
            Leaving::Since(since) => since + FAREWELL,
            Leaving::Over(since) => since + LAST_WORDS,
        };
        self.leaving.iter().map(due).min()
    }

    fn place(&self, link: Link) -> Option<&Place> {
        self.places.get(link.0).filter(|place| place.is(link))
    }
}

impl Place {
    fn is(&self, link: Link) -> bool {
        self.port == link.1 && !self.leaving
    }
}
