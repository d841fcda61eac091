//! Life of the connections: opening, handshake, failure, timers, and the end.

use super::{Action, Client, FAREWELL, HANDSHAKE, Notice};
use crate::connection::{Connection, Life};
use crate::export::Export;
use crate::failure::Failure;
use crate::handshake::Handshake;
use crate::request::{Error, Operation};
use crate::wire::flag;
use alloc::boxed::Box;
use drivers::hal::{Instant, Window};

/// Most doublings of the delay before a connection is opened again.
const DOUBLINGS: u32 = 3;

impl<T: Copy> Client<T> {
    /// The next thing that the caller has to do with its connections.
    pub fn next_action(&mut self, now: Instant) -> Option<Action> {
        let beside = self.connections.iter().position(Connection::is_ready);
        let path = beside.and_then(|number| self.connections.get(number));
        let path = path.map_or(self.path, |one| one.path);
        for connection in 0..self.connections.len() {
            let may_open = self.may_open(connection);
            let one = self.connections.get_mut(connection)?;
            if let Some(abort) = one.to_close.take() {
                return Some(Action::Close { connection, abort });
            }
            if matches!(one.life, Life::Down(at) if at <= now) && may_open {
                one.life = Life::Opening(now);
                one.path = path;
                return Some(Action::Connect { connection, path, beside });
            }
        }
        None
    }

    /// Whether a connection that is down may be opened: it is the only one, or the server allows several and one is up.
    fn may_open(&self, connection: usize) -> bool {
        let mut others = self.connections.iter().enumerate().filter(|(n, _)| *n != connection);
        let is_alone = others.clone().all(|(_, other)| other.is_down());
        let joins = self.offers(flag::MULTI_CONN) && others.any(|(_, other)| other.is_ready());
        !self.is_ended && !self.is_remapping && (is_alone || joins)
    }

    /// The TCP connection is open. `seed` is random, and the server must not be able to guess it.
    pub fn connected(&mut self, connection: usize, seed: u64, now: Instant) {
        let Some(one) = self.connections.get_mut(connection) else { return };
        if matches!(one.life, Life::Opening(_)) {
            one.life = Life::Greeting(now, Box::new(Handshake::new()));
            (one.secret, one.next_cookie) = (seed, 0);
        }
    }

    /// The TCP connection could not be opened, or has ended.
    pub fn closed(&mut self, connection: usize, failure: Failure, now: Instant) {
        let Some(one) = self.connections.get_mut(connection) else { return };
        match one.life {
            Life::Leaving(_) => one.reset(now),
            _ => self.fail(connection, failure, now),
        }
        if let Some(one) = self.connections.get_mut(connection) {
            one.to_close = None;
        }
    }

    /// Ends a connection. Its requests are sent again over the next one.
    pub(super) fn fail(&mut self, connection: usize, failure: Failure, now: Instant) {
        let paths = u32::from(self.settings.paths);
        let reconnect = self.settings.reconnect;
        let Some(one) = self.connections.get_mut(connection).filter(|one| !one.is_down()) else {
            return;
        };
        let path = one.path;
        // A server that accepts connections and ends them at once is not asked again at once.
        let lasted = matches!(one.life, Life::Ready(since) if since + reconnect <= now);
        one.attempts = if lasted { 0 } else { one.attempts.saturating_add(1) };
        let rounds = one.attempts / paths;
        let delays = one.attempts > 0 && one.attempts.is_multiple_of(paths);
        let delay = reconnect * (1 << rounds.saturating_sub(1).min(DOUBLINGS));
        let moves_on = one.attempts > 0;
        one.reset(if delays { now + delay } else { now });
        one.to_close = Some(true);
        self.take_back(connection, now);
        let is_up = self.connections.iter().any(|one| one.is_ready());
        if !is_up {
            self.last_failure = Some(failure);
            if moves_on {
                self.path = (path + 1) % self.settings.paths;
            }
        }
        self.stats.failures += 1;
        self.notice(Notice::Down { connection, path, why: failure });
        self.note_loss();
        self.timer = Some(now);
    }

    /// The handshake is complete: checks and adopts the export.
    pub(super) fn adopt(
        &mut self,
        connection: usize,
        export: Export,
        now: Instant,
    ) -> Result<(), Failure> {
        if self.settings.write_through && !export.offers(flag::FUA) {
            return Err(Failure::Export("it does not offer FUA, which `write_through` needs"));
        }
        let was_up = self.connections.iter().any(|one| one.is_ready());
        let adopted = match self.export {
            None => export,
            Some(before) => {
                export.continues(&before)?;
                let multi = flag::MULTI_CONN;
                if was_up && !export.offers(multi) {
                    return Err(Failure::Changed("it does not allow several connections now"));
                }
                // The server may compare requests on the other connections with the size that it had then.
                let size = if was_up { before.size } else { export.size };
                if size > before.size {
                    self.notice(Notice::Grown { before: before.size, now: size });
                }
                // What it can do more than before is not used.
                let flags = before.flags & !multi | export.flags & multi;
                let payload = export.payload.min(before.payload) / before.block * before.block;
                if payload == 0 {
                    return Err(Failure::Changed("its largest payload is smaller than a block"));
                }
                Export { size, flags, payload, ..before }
            }
        };
        self.export = Some(adopted);
        self.geometry = adopted.geometry(self.settings.read_only, self.writes_through());
        let since = self.acknowledged;
        if let Some(one) = self.connections.get_mut(connection) {
            one.life = Life::Ready(now);
            (one.since, one.structured) = (since, export.structured);
            one.out.clear();
            one.out_sent = 0;
        }
        self.stats.connects += 1;
        if !was_up {
            self.last_failure = None;
            self.path = self.connections.get(connection).map_or(self.path, |one| one.path);
            self.notice(Notice::Up { path: self.path });
        }
        Ok(())
    }

    /// Runs timers, and continues what the user has asked for.
    pub fn poll(&mut self, now: Instant) {
        if core::mem::take(&mut self.is_giving_up) {
            self.end_requests(Failure::GivenUp, now);
        }
        if self.unsettled_until.is_some_and(|until| until <= now) {
            self.unsettled_until = None;
        }
        for connection in 0..self.connections.len() {
            let Some(one) = self.connections.get_mut(connection) else { break };
            match one.life {
                Life::Opening(since) if since + HANDSHAKE <= now => {
                    self.fail(connection, Failure::Refused, now);
                }
                Life::Greeting(since, _) if since + HANDSHAKE <= now => {
                    self.fail(connection, Failure::SlowHandshake, now);
                }
                Life::Leaving(since) if since + FAREWELL <= now => {
                    one.reset(now);
                    one.to_close = Some(true);
                }
                _ => {}
            }
        }
        let is_down = !self.connections.iter().any(|one| one.is_ready());
        let has_new = is_down && self.stamped < self.turn;
        if self.timer.is_some_and(|at| at <= now) || has_new {
            self.timer = None;
            self.end_silent(now);
            let expires = self.expire(now);
            self.timer = Instant::first([self.timer, expires]);
        }
        if self.is_remapping || self.is_ended {
            self.continue_leaving(now);
        }
    }

    /// Ends the connections with a request whose reply is overdue, and sets the timer for the others.
    fn end_silent(&mut self, now: Instant) {
        let keepalive = self.settings.keepalive;
        for slot in 0..self.slots.len() as u16 {
            let Some(active) = self.active(slot) else { continue };
            let (Some(connection), end) = (active.on, active.sent_at + keepalive) else { continue };
            if end <= now {
                self.fail(connection.into(), Failure::Silent, now);
            } else {
                self.timer = Instant::first([self.timer, Some(end)]);
            }
        }
    }

    /// Fails all requests. Connections that carry one end.
    fn end_requests(&mut self, failure: Failure, now: Instant) {
        for connection in 0..self.connections.len() {
            if self.connections.get(connection).is_some_and(|one| one.in_flight > 0) {
                self.fail(connection, failure, now);
                self.unsettled_until = Some(now + self.settings.keepalive);
            }
        }
        while let Some(slot) = self.waiting.pop_front().or_else(|| self.flushes.pop_front()) {
            self.finish(slot, Err(Error::Io));
        }
    }

    /// Disconnects all connections once nothing is in flight, after a flush of what is not flushed.
    fn continue_leaving(&mut self, now: Instant) {
        let is_busy = self.connections.iter().any(|one| one.in_flight > 0);
        let is_ready = self.connections.iter().any(|one| one.is_ready());
        let has_own = self.has_own_flush();
        if is_busy || has_own && is_ready {
            return;
        }
        // Without a connection, the reason to leave is gone.
        if has_own {
            let own = self.flushes.iter().copied().find(|slot| self.is_own(*slot));
            self.flushes.retain(|slot| Some(*slot) != own);
            own.into_iter().for_each(|slot| self.finish(slot, Err(Error::Io)));
        }
        let is_unflushed = self.has_cache() && self.stable < self.acknowledged;
        if is_ready && is_unflushed && !core::mem::replace(&mut self.has_flushed, true) {
            if let Some(slot) = self.insert(None, Operation::Flush, 0, Window::empty()) {
                self.flushes.push_front(slot);
            }
            return;
        }
        self.has_flushed = false;
        (0..self.connections.len()).for_each(|connection| self.leave(connection, now));
        self.is_remapping = false;
        self.note_loss();
    }

    /// Whether a slot holds a flush of the client's own.
    fn is_own(&self, slot: u16) -> bool {
        let active = self.slots.get(usize::from(slot)).and_then(Option::as_ref);
        active.is_some_and(|active| active.tag.is_none())
    }

    /// Whether a flush of the client's own waits to be sent.
    fn has_own_flush(&self) -> bool {
        self.flushes.iter().any(|slot| self.is_own(*slot))
    }

    /// Ends the client: fails the requests that were not sent, and disconnects. Poll it until [`Client::is_over`].
    pub fn end(&mut self, now: Instant) {
        self.is_ended = true;
        self.end_requests(Failure::GivenUp, now);
    }

    /// Whether an ended client has no connection any more.
    pub fn is_over(&self) -> bool {
        self.is_ended && self.connections.iter().all(|one| one.is_down() && one.to_close.is_none())
    }

    /// When [`Client::poll`] or [`Client::next_action`] is due without an event of a connection.
    pub fn deadline(&self) -> Option<Instant> {
        let mut next = Instant::first([self.timer, self.unsettled_until]);
        for (number, one) in self.connections.iter().enumerate() {
            let due = match one.life {
                _ if one.to_close.is_some() => Some(Instant::ZERO),
                Life::Down(at) => Some(at).filter(|_| self.may_open(number)),
                Life::Opening(since) | Life::Greeting(since, _) => Some(since + HANDSHAKE),
                Life::Leaving(since) => Some(since + FAREWELL),
                Life::Ready(_) => None,
            };
            next = Instant::first([next, due]);
        }
        let is_busy = self.connections.iter().any(|one| one.in_flight > 0);
        let is_ready = self.connections.iter().any(|one| one.is_ready());
        // While its own flush waits, the connection has bytes to send.
        let leaves = (self.is_remapping || self.is_ended) && is_ready && !is_busy;
        let at_once = self.is_giving_up || leaves && !self.has_own_flush();
        Instant::first([next, at_once.then_some(Instant::ZERO)])
    }
}
