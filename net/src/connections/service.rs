//! What connections do by themselves: they send, are looked after when their time has come, and say farewell.

use super::*;

impl Connections {
    /// Gives a connection up: in order, what was written still arrives, or by a reset.
    pub fn leave(&mut self, name: Name, abort: bool, now: Instant) {
        let used = self.get(name).filter(|connection| connection.life == Life::Used);
        if used.is_none() {
            return;
        }
        let Some(connection) = self.connections.get_mut(name.key) else { return };
        connection.life = Life::Leaving { since: now, moved: now, left: usize::MAX };
        let owner = connection.owner;
        let socket = connection.socket_mut();
        if abort {
            socket.abort();
        } else {
            socket.close();
        }
        if let Some(state) = self.owners.get_mut(owner) {
            state.leaving.push_back(name);
            // Those that are gone are in front mostly; they are not let pile up behind others.
            if state.leaving.len() > 2 * state.connections {
                let connections = &self.connections;
                let there =
                    |name: &Name| connections.get(name.key).is_some_and(|c| c.turn == name.turn);
                state.leaving.retain(there);
            }
        }
        self.look_after(name.key);
    }

    /// Something became known of the neighbour that a connection waited for.
    pub fn settled(&mut self, key: usize) {
        if let Some(connection) = self.connections.get_mut(key) {
            connection.waits = false;
        }
        self.look_after(key);
    }

    /// Has all connections looked after with the next poll.
    pub fn look_after_all(&mut self) {
        let keys: Vec<usize> = self.connections.iter().map(|(key, _)| key).collect();
        keys.into_iter().for_each(|key| self.look_after(key));
    }

    /// Resets all connections, with the next polls.
    pub fn shut_down(&mut self) {
        self.connections.iter_mut().for_each(|(_, connection)| connection.socket_mut().abort());
        self.look_after_all();
    }

    /// Whether some connection waits for a poll.
    pub fn wants_poll(&self) -> bool {
        !self.wants.is_empty()
    }

    /// Has a connection looked after with the next poll.
    pub(super) fn look_after(&mut self, key: usize) {
        if let Some(connection) = self.connections.get_mut(key)
            && !core::mem::replace(&mut connection.wants, true)
        {
            self.wants.push_back(key);
        }
    }

    /// When a poll has something to do, if nothing happens before.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let timer = self.timers.first().map(|&(at, _)| at);
        Instant::first([timer, self.listening.poll_timeout()])
    }

    /// Sends what there is to send, as long as the queue has room, and does what is due.
    pub fn poll(&mut self, outside: &mut Outside<'_>) {
        while let Some(&(at, key)) = self.timers.first()
            && at <= outside.now
        {
            self.timers.pop_first();
            self.note_standstill(at, outside.now);
            if let Some(connection) = self.connections.get_mut(key) {
                connection.armed = None;
            }
            self.look_after(key);
        }
        let now = outside.now;
        let (routes, neighbours) = (outside.routes, &*outside.neighbours);
        let find = |host| neighbours.get(routes.next_hop(host)?, now);
        let (mac, mtu) = (outside.local.mac, outside.mtu);
        let mut listener = listen_table::Outside { queue: &mut *outside.queue, mac, mtu };
        self.listening.answer_waiting(&mut listener, find);
        self.listening.poll(&mut listener, now);
        while !outside.queue.is_full()
            && let Some(key) = self.wants.pop_front()
        {
            self.serve(key, outside);
        }
    }

    /// Lets a connection send one frame.
    pub(super) fn serve(&mut self, key: usize, outside: &mut Outside<'_>) {
        let (now, resumed) = (outside.now, self.resumed);
        let Some(connection) = self.connections.get_mut(key) else { return };
        connection.wants = false;
        if let Life::Leaving { moved, left, .. } = connection.life {
            // A reset could cost the peer what it has not read yet, and so could a question of ours,
            // whose answer finds nobody.
            if left == 0
                && moved.max(resumed) + FAREWELL <= now
                && connection.socket().state() == State::FinWait2
            {
                return self.remove(key);
            }
            // What still arrives is of no interest.
            let _ = connection.socket_mut().recv(|bytes| (bytes.len(), ()));
        }
        let before = connection.seen();
        let due = match self.path(key, outside) {
            Ok(path) => {
                let due = self.send(key, path, outside);
                if due.is_some_and(|due| due <= now) {
                    self.note(key, &before);
                    return self.look_after(key);
                }
                let idles = self.connections.get(key).is_some_and(|connection| connection.idles);
                if idles { self.release_buffers(key, due, outside) } else { due }
            }
            Err(due) => due,
        };
        let silence = self.end_silence(key, now);
        self.note(key, &before);
        let farewell = self.see_off(key, now);
        self.arm(key, Instant::first([due, farewell, silence]));
    }

    /// The MAC address that a connection's frames go to, and the largest packet that passes; or when to look again,
    /// if nobody says it before.
    pub(super) fn path(
        &mut self,
        key: usize,
        outside: &mut Outside<'_>,
    ) -> Result<(MacAddress, usize), Option<Instant>> {
        let (now, resumed) = (outside.now, self.resumed);
        let Some(connection) = self.connections.get_mut(key) else { return Err(None) };
        if let Some(path) = connection.path
            && path.changes == outside.changes()
            && now < path.until
        {
            return Ok((path.mac, path.mtu));
        }
        connection.path = None;
        let hop = outside.routes.next_hop(connection.ends.remote);
        let again = match hop.map(|hop| (hop, outside.neighbours.hop(hop, now))) {
            Some((_, Hop::At(mac, until))) => {
                let small = outside.paths.get(connection.ends.remote, now);
                let most = outside.link_mtu(connection.ends.remote);
                let (mtu, forgotten) = small.unwrap_or((most, until));
                let (mtu, until) = (mtu.min(most), until.min(forgotten));
                connection.path = Some(Path { mac, mtu, until, changes: outside.changes() });
                connection.silent = None;
                return Ok((mac, mtu));
            }
            Some((hop, Hop::Asked)) => {
                if !core::mem::replace(&mut connection.waits, true) {
                    outside.neighbours.wait(hop, key);
                }
                None
            }
            Some((_, Hop::Silent(until))) => Some(until),
            None => Some(now + NO_WAY),
        };
        if again.is_some() {
            let since = *connection.silent.get_or_insert(now);
            let opening = connection.socket().state() == State::SynSent;
            if opening || since.max(resumed) + LOST <= now {
                connection.socket_mut().abort();
            }
        }
        // Nobody hears the reset.
        let over = matches!(connection.socket().state(), State::Closed | State::TimeWait);
        Err(again.filter(|_| !over))
    }

    /// Sees to a connection that is being closed, when it has nothing to send at present; when to look at
    /// it again.
    pub(super) fn see_off(&mut self, key: usize, now: Instant) -> Option<Instant> {
        let resumed = self.resumed;
        let connection = self.connections.get_mut(key)?;
        let Life::Leaving { since, moved, left } = connection.life else { return None };
        let socket = connection.socket();
        let state = socket.state();
        if state == State::Closed && connection.waits {
            // The reset goes out once the neighbour is known; or nobody hears it, which ends the wait as well.
            return None;
        }
        if matches!(state, State::Closed | State::TimeWait) {
            // All is said; to wait for stray packets of the past is not worth a place.
            self.remove(key);
            return None;
        }
        let still = match state {
            State::FinWait2 => 0,
            // Our end of the connection is something to say, too.
            _ => socket.send_queue() + 1,
        };
        let moved = if left > still { now } else { moved };
        let end = moved.max(resumed) + if still == 0 { FAREWELL } else { STUCK };
        connection.life = Life::Leaving { since, moved, left: still };
        if now < end {
            return Some(end);
        }
        if state != State::FinWait2 {
            connection.socket_mut().abort();
        }
        self.look_after(key);
        None
    }

    /// Has a connection looked after at `due`, or before: a timer that is put off is not moved.
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
