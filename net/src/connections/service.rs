//! Polling of connections: sending, timers, next hops, and closing.

use super::*;

impl Connections {
    /// Releases a connection of its user: closes it after the data that was written, or resets it if `abort`.
    pub fn release(&mut self, name: Name, abort: bool, now: Instant) {
        let used = self.get(name).filter(|connection| connection.life == Life::InUse);
        if used.is_none() {
            return;
        }
        let Some(connection) = self.connections.get_mut(name.key) else { return };
        connection.life = Life::Closing { since: now, moved: now, left: usize::MAX };
        let owner = connection.owner;
        let socket = connection.socket_mut();
        if abort {
            socket.abort();
        } else {
            socket.close();
        }
        if let Some(state) = self.owners.get_mut(owner) {
            state.closing.push_back(name);
            // Entries of removed connections are mostly in front. Those behind others must not accumulate.
            if state.closing.len() > 2 * state.connections {
                let connections = &self.connections;
                let there =
                    |name: &Name| connections.get(name.key).is_some_and(|c| c.turn == name.turn);
                state.closing.retain(there);
            }
        }
        self.schedule(name.key);
    }

    /// The resolution of the neighbour that a connection waited for has succeeded or failed.
    pub fn settled(&mut self, key: usize) {
        if let Some(connection) = self.connections.get_mut(key) {
            connection.awaits_neighbour = false;
        }
        self.schedule(key);
    }

    /// Schedules all connections for the next poll.
    pub fn schedule_all(&mut self) {
        let keys: Vec<usize> = self.connections.iter().map(|(key, _)| key).collect();
        keys.into_iter().for_each(|key| self.schedule(key));
    }

    /// Resets all connections, with the next polls.
    pub fn shut_down(&mut self) {
        self.connections.iter_mut().for_each(|(_, connection)| connection.socket_mut().abort());
        self.schedule_all();
    }

    /// Whether a connection waits for a poll.
    pub fn wants_poll(&self) -> bool {
        !self.scheduled.is_empty()
    }

    /// Schedules a connection for the next poll.
    pub(super) fn schedule(&mut self, key: usize) {
        if let Some(connection) = self.connections.get_mut(key)
            && !core::mem::replace(&mut connection.is_scheduled, true)
        {
            self.scheduled.push_back(key);
        }
    }

    /// Deadline of the next poll without events.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let timer = self.timers.first().map(|&(at, _)| at);
        Instant::first([timer, self.listening.poll_timeout()])
    }

    /// Handles expired timers, and serves scheduled connections while the queue has room.
    pub fn poll(&mut self, ctx: &mut Ctx<'_>) {
        while let Some(&(at, key)) = self.timers.first()
            && at <= ctx.now
        {
            self.timers.pop_first();
            self.note_standstill(at, ctx.now);
            if let Some(connection) = self.connections.get_mut(key) {
                connection.armed = None;
            }
            self.schedule(key);
        }
        let now = ctx.now;
        let (routes, neighbours) = (ctx.routes, &*ctx.neighbours);
        let find = |host| neighbours.get(routes.next_hop(host)?, now);
        let (mac, mtu) = (ctx.local.mac, ctx.mtu);
        let mut listener = listen_table::Ctx { queue: &mut *ctx.queue, mac, mtu };
        let mut answered = Vec::new();
        self.listening
            .answer_waiting(&mut listener, find, |ends, macs| answered.push((ends, macs)));
        self.listening.poll(&mut listener, now);
        for (ends, macs) in answered {
            self.note_source(&ends, macs, ctx);
        }
        while !ctx.queue.is_full()
            && let Some(key) = self.scheduled.pop_front()
        {
            self.serve(key, ctx);
        }
    }

    /// Serves a scheduled connection: sends at most one frame, and arms its timer.
    pub(super) fn serve(&mut self, key: usize, ctx: &mut Ctx<'_>) {
        let (now, resumed) = (ctx.now, self.resumed);
        let Some(connection) = self.connections.get_mut(key) else { return };
        connection.is_scheduled = false;
        if let Life::Closing { moved, left, .. } = connection.life {
            // Removed without a frame: a reset could make the peer lose data that it has not read, and so could a
            // keep-alive, whose answer would get a reset.
            if left == 0
                && moved.max(resumed) + FIN_TIMEOUT <= now
                && connection.socket().state() == State::FinWait2
            {
                return self.remove(key);
            }
            // Data that still arrives is discarded.
            let _ = connection.socket_mut().recv(|bytes| (bytes.len(), ()));
        }
        let before = connection.seen();
        let due = match self.path(key, ctx) {
            Ok(path) => {
                let due = self.send(key, path, ctx);
                if due.is_some_and(|due| due <= now) {
                    self.notify_user(key, &before);
                    return self.schedule(key);
                }
                let releases_buffers =
                    self.connections.get(key).is_some_and(|connection| connection.releases_buffers);
                if releases_buffers { self.release_buffers(key, due, ctx) } else { due }
            }
            Err(due) => due,
        };
        let silence = self.end_silence(key, now);
        self.notify_user(key, &before);
        let close_due = self.continue_close(key, now);
        self.arm(key, Instant::first([due, close_due, silence]));
    }

    /// MAC address of a connection's next hop, and path MTU; or when to look them up again, None if an event will
    /// schedule the connection.
    pub(super) fn path(
        &mut self,
        key: usize,
        ctx: &mut Ctx<'_>,
    ) -> Result<(MacAddress, usize), Option<Instant>> {
        let (now, resumed) = (ctx.now, self.resumed);
        let Some(connection) = self.connections.get_mut(key) else { return Err(None) };
        if let Some(path) = connection.path
            && path.changes == ctx.changes()
            && now < path.until
        {
            return Ok((path.mac, path.mtu));
        }
        connection.path = None;
        let hop = ctx.routes.next_hop(connection.ends.remote);
        let again = match hop.map(|hop| (hop, ctx.neighbours.hop(hop, now))) {
            Some((_, Hop::At(mac, until))) => {
                let small = ctx.paths.get(connection.ends.remote, now);
                let most = ctx.link_mtu(connection.ends.remote);
                let (mtu, forgotten) = small.unwrap_or((most, until));
                let (mtu, until) = (mtu.min(most), until.min(forgotten));
                connection.path = Some(Path { mac, mtu, until, changes: ctx.changes() });
                connection.unresolved_since = None;
                return Ok((mac, mtu));
            }
            Some((hop, Hop::Pending)) => {
                if !core::mem::replace(&mut connection.awaits_neighbour, true) {
                    ctx.neighbours.wait(hop, key);
                }
                None
            }
            Some((_, Hop::Unreachable(until))) => Some(until),
            None => Some(now + NO_ROUTE_RETRY),
        };
        if again.is_some() {
            let since = *connection.unresolved_since.get_or_insert(now);
            let opening = connection.socket().state() == State::SynSent;
            if opening || since.max(resumed) + NEIGHBOUR_TIMEOUT <= now {
                connection.socket_mut().abort();
            }
        }
        // Without a next hop the reset cannot be sent.
        let over = matches!(connection.socket().state(), State::Closed | State::TimeWait);
        Err(again.filter(|_| !over))
    }

    /// Advances a connection that is being closed and has nothing to send at present: removes it when it is finished,
    /// resets it after its time limit. Returns when to call again.
    pub(super) fn continue_close(&mut self, key: usize, now: Instant) -> Option<Instant> {
        let resumed = self.resumed;
        let connection = self.connections.get_mut(key)?;
        let Life::Closing { since, moved, left } = connection.life else { return None };
        let socket = connection.socket();
        let state = socket.state();
        if state == State::Closed && connection.awaits_neighbour {
            // The reset is sent when the neighbour is resolved. A failed resolution ends the wait as well.
            return None;
        }
        if matches!(state, State::Closed | State::TimeWait) {
            // Finished. TIME-WAIT is skipped: it would occupy a place only for stray segments.
            self.remove(key);
            return None;
        }
        let still = match state {
            State::FinWait2 => 0,
            // Plus one for our FIN.
            _ => socket.send_queue() + 1,
        };
        let moved = if left > still { now } else { moved };
        let end = moved.max(resumed) + if still == 0 { FIN_TIMEOUT } else { DRAIN_TIMEOUT };
        connection.life = Life::Closing { since, moved, left: still };
        if now < end {
            return Some(end);
        }
        if state != State::FinWait2 {
            connection.socket_mut().abort();
        }
        self.schedule(key);
        None
    }

    /// Sets the timer of a connection to `due`. An earlier timer stays, and fires early once.
    pub(super) fn arm(&mut self, key: usize, due: Option<Instant>) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        if let Some(armed) = connection.armed {
            if due.is_some_and(|due| armed <= due) {
                return;
            }
            self.timers.remove(&(armed, key));
        }
        connection.armed = due;
        if let Some(due) = due {
            self.timers.insert((due, key));
        }
    }
}
