//! The server's TCP side: a limited number of connections to one port of an interface. Only connections with an event
//! or an expired timer are served.

use super::access::Doors;
use super::open::Open;
use super::{Handler, Limits};
use crate::Interface;
use crate::hosts::accountable;
use crate::refusal::Refusal;
use crate::tcp::{self, Listener};
use crate::tls::Tls;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::time::Duration;
use drivers::hal::Instant;

/// A connection is slow, and may be closed for another client, if its request or a part of its response takes longer.
const SLOW: Duration = Duration::from_secs(1);

/// Receive and transmit buffer of a connection.
const RECEIVE: usize = 4 << 10;
const TRANSMIT: usize = 16 << 10;

/// An HTTP server on one interface.
#[derive(Debug)]
pub struct Server {
    limits: Limits,
    doors: Doors,
    tls: Option<Arc<Tls>>,
    listener: Listener,
    open: Vec<Open>,
    /// Index of the connection that is served first in the next round.
    first: usize,
    /// The admission rules have changed.
    new_doors: bool,
    deadline: Option<Instant>,
    /// Number of times that a connection was served.
    looks: u64,
}

impl Server {
    /// A server on `port` (not 0) of all addresses of the interface. With `tls` it accepts TLS only.
    pub fn new(
        interface: &mut Interface,
        port: u16,
        limits: Limits,
        tls: Option<Arc<Tls>>,
    ) -> Self {
        let connections = limits.connections;
        let of_each = tcp::Limits { connections, receive: RECEIVE, transmit: TRANSMIT };
        let listener = Listener::new(interface, port, of_each);
        let open = Vec::with_capacity(connections);
        let doors = Doors::default();
        let (first, new_doors, deadline, looks) = (0, false, None, 0);
        Server { limits, doors, tls, listener, open, first, new_doors, deadline, looks }
    }

    /// Changes the admission rules. Connections of hosts that are no longer admitted are reset.
    pub fn set_doors(&mut self, doors: Doors) {
        if self.doors != doors {
            self.doors = doors;
            self.new_doors = true;
            self.open.iter_mut().for_each(Open::wake);
        }
    }

    /// Serves connections with events or expired timers; returns at once if there are none. `interface` must be the one
    /// passed to `new`.
    pub fn poll(&mut self, interface: &mut Interface, handler: &mut dyn Handler, now: Instant) {
        let due = self.deadline.is_some_and(|deadline| deadline <= now);
        if !due && !self.new_doors && !interface.is_ready(self.listener.owner()) {
            return;
        }
        let mut awake = due || core::mem::take(&mut self.new_doors);
        awake |= self.accept(interface, handler, now);
        while let Some(stream) = self.listener.next_news(interface) {
            if let Some(open) = self.open.iter_mut().find(|open| open.is(stream)) {
                open.wake();
                awake = true;
            }
        }
        if awake {
            self.serve(interface, handler, now);
        }
        self.make_room(interface, handler, now);
    }

    /// Accepts new connections. Returns whether there were any.
    fn accept(
        &mut self,
        interface: &mut Interface,
        handler: &mut dyn Handler,
        now: Instant,
    ) -> bool {
        let mut any = false;
        while let Some(stream) = self.listener.accept(interface, now) {
            let Some((from, to)) = self.listener.ends(interface, stream) else {
                self.listener.abort(interface, stream, now);
                continue;
            };
            if let Err(refusal) = self.doors.admit(from.ip(), to) {
                handler.refused(refusal);
                self.listener.abort(interface, stream, now);
                continue;
            }
            if !self.admits_another(from.ip(), interface, handler, now) {
                let advice = format!(
                    "this host has {} connections, the limit for one host; close one before the next",
                    self.share()
                );
                let (who, asked) = (Some(from.ip()), "a connection".into());
                let (what, reason, advice) = ("http", "connections", advice.into());
                handler.refused(Refusal { who, what, asked, reason, advice });
                self.listener.abort(interface, stream, now);
                continue;
            }
            // HTTP connections have their own timeouts.
            self.listener.disable_keep_alive(interface, stream);
            let secure = self.tls.as_ref().map(|tls| tls.session(now));
            self.open.push(Open::new(stream, self.limits, from, secure, now));
            any = true;
        }
        any
    }

    /// Connections that one host may have. An IPv6 /64 counts as one host ([`accountable`]).
    fn share(&self) -> usize {
        self.limits.connections.div_ceil(2)
    }

    /// Whether a host may have another connection. At its limit, a quiet or slow connection of the host is closed for
    /// it.
    fn admits_another(
        &mut self,
        host: IpAddr,
        interface: &mut Interface,
        handler: &mut dyn Handler,
        now: Instant,
    ) -> bool {
        let of_host = |open: &Open| accountable(open.from().ip()) == accountable(host);
        if self.open.iter().filter(|open| of_host(open)).count() < self.share() {
            return true;
        }
        let least = self.least_useful(&of_host, now);
        least.is_some_and(|at| {
            let mut open = self.open.swap_remove(at);
            open.evict(&mut self.listener, interface, handler, now);
            true
        })
    }

    /// Among the connections that match `of`, the one that has been quiet for longest, or else slow for longest.
    fn least_useful(&self, of: &dyn Fn(&Open) -> bool, now: Instant) -> Option<usize> {
        let all = self.open.iter().enumerate().filter(|(_, open)| of(open));
        let idle = all.filter(|(_, open)| open.is_quiet(now) || open.since() + SLOW <= now);
        idle.min_by_key(|(_, open)| (!open.is_quiet(now), open.since())).map(|(at, _)| at)
    }

    /// Serves the connections with an event or an expired timer.
    fn serve(&mut self, interface: &mut Interface, handler: &mut dyn Handler, now: Instant) {
        let doors = &self.doors;
        let listener = &mut self.listener;
        let looks = &mut self.looks;
        let count = self.open.len();
        self.open.rotate_left(if self.first < count { self.first } else { 0 });
        let (mut place, mut first) = (0, 0);
        self.open.retain_mut(|open| {
            place += 1;
            if !open.is_awake(now) {
                return true;
            }
            *looks += 1;
            if !doors.hosts.admits(open.from().ip()) {
                open.abort(listener, interface, handler, now);
                return false;
            }
            let turns = open.turns();
            let stays = open.serve(listener, interface, handler, now);
            if open.turns() != turns {
                first = place;
            }
            stays
        });
        self.first = first;
        self.deadline = self.open.iter().map(Open::due).min();
    }

    /// When [`Server::poll`] is due without an event.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.deadline
    }

    /// The TCP port.
    pub fn port(&self) -> u16 {
        self.listener.port()
    }

    /// Number of open connections.
    pub fn connections(&self) -> usize {
        self.open.len()
    }

    /// Number of times that connections were served: a measure of the server's cost.
    pub fn looks(&self) -> u64 {
        self.looks
    }

    /// Stops the server: connections are reset and sockets freed.
    pub fn stop(self, interface: &mut Interface, handler: &mut dyn Handler) {
        for mut open in self.open {
            open.abandon(handler);
        }
        self.listener.stop(interface);
    }

    /// If all places are taken and none is about to be free, closes the connection that has been quiet or slow for
    /// longest. Without such a connection, sets the deadline for the next attempt.
    fn make_room(&mut self, interface: &mut Interface, handler: &mut dyn Handler, now: Instant) {
        if !self.listener.is_full(interface) || self.listener.has_closing(interface) {
            return;
        }
        if let Some(at) = self.least_useful(&|_| true, now) {
            let mut open = self.open.swap_remove(at);
            open.evict(&mut self.listener, interface, handler, now);
            return;
        }
        let quiet = self.open.iter().filter_map(Open::quiet_at);
        let slow = self.open.iter().map(|open| open.since() + SLOW);
        let next = quiet.chain(slow).filter(|at| *at > now).min();
        self.deadline = Instant::first([self.deadline, next]);
    }
}
