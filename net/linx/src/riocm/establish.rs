//! The state machine of a connection: setup, supervision and end.
//!
//! | state \ event | connect | disconnect | CONN_REQ | CONN_ACK, right | CONN_RESET | timer |
//! |---|---|---|---|---|---|---|
//! | disconnected | → connecting | | | | | again in 200 ms |
//! | connecting | | → disconnected | send CONN_ACK | send CONN_ACK, → connected | | send CONN_REQ, again in 200 ms |
//! | connected | | send CONN_RESET, → disconnected | → disconnected | | → disconnected | send HEARTBEAT; the third in silence: CONN_RESET, → disconnected |
//!
//! After its end a connection stays disconnected for a whole pause, even if it is wanted again: neither CONN_ACKs nor
//! data packets identify the connection attempt that they belong to, so those of the last one must have drained.
//!
//! Data with an old sequence number ends a connection with a CONN_RESET: RapidIO delivers nothing twice, so the peer
//! has restarted the connection.
//!
//! A CONN_ACK is right if it has our generation and the parameters that we consider agreed. Any other counts as a
//! CONN_REQ.

use super::connection::{ALIVE, Agreed, EARLY, State};
use super::{Down, Event, Riocm};
use crate::pool::Pool;
use crate::wire::riocm::Header;
use core::time::Duration;
use drivers::hal::Instant;

use super::config::LEAST_MTU;

impl Riocm {
    /// Handles a CONN packet.
    pub(super) fn handle_conn(&mut self, pool: &mut Pool, cid: u8, header: Header) {
        let Some(connection) = self.at(cid) else { return };
        let (generation, mtu, heartbeat) = match header {
            Header::Reset { .. } => {
                // While connecting it is from an earlier connection: LINX for Linux ignores it as well.
                if connection.state == State::Connected {
                    connection.counters.peer_resets += 1;
                    self.end(pool, cid, Down::Reset);
                }
                return;
            }
            Header::Ack { generation, mtu, acknowledged, heartbeat, cid: peer_cid }
                if acknowledged == connection.generation
                    && (Agreed { mtu, heartbeat }) == connection.agreed =>
            {
                if connection.state == State::Connecting {
                    connection.peer_generation = generation;
                    connection.peer_cid = peer_cid;
                    self.connected(pool, cid);
                }
                return;
            }
            Header::Ack { generation, mtu, heartbeat, .. }
            | Header::Request { generation, mtu, heartbeat } => (generation, mtu, heartbeat),
            Header::Heartbeat { .. } | Header::Data { .. } => return,
        };
        if mtu <= LEAST_MTU {
            connection.counters.ignored += 1;
            return;
        }
        match connection.state {
            State::Disconnected => (),
            State::Connecting => {
                // A peer that sends CONN_REQ is not connected, so its early data is from an earlier connection.
                let is_over = matches!(header, Header::Request { .. })
                    || connection.peer_generation != generation;
                if is_over {
                    connection.drop_early(pool);
                }
                connection.peer_generation = generation;
                connection.agreed = Agreed {
                    mtu: mtu.min(connection.wanted_mtu),
                    heartbeat: heartbeat.max(connection.user_heartbeat),
                };
                connection.owed.ack = true;
                self.make_ready(cid);
            }
            State::Connected => {
                connection.counters.peer_resets += 1;
                self.end(pool, cid, Down::Restarted);
            }
        }
    }

    /// Enters the connected state, and delivers early packets.
    fn connected(&mut self, pool: &mut Pool, cid: u8) {
        let Some(connection) = self.at(cid) else { return };
        connection.owed.ack = true;
        connection.owed.request = false;
        connection.alive = ALIVE;
        connection.state = State::Connected;
        connection.counters.num_connects += 1;
        let (id, generation) = (connection.id, connection.peer_generation);
        let early = core::mem::replace(&mut connection.early, [const { None }; EARLY]);
        self.events.push_back(Event::Connected(id));
        self.make_ready(cid);
        for (sequence, early) in early.into_iter().enumerate() {
            match early {
                Some((of, early)) if of == generation => {
                    self.take_early(pool, cid, sequence as u16, early);
                }
                // From an earlier connection.
                Some((_, early)) => pool.free(early.payload),
                None => (),
            }
        }
    }

    /// Ends the connection, because the peer has restarted it. A CONN_RESET is sent, because the peer may consider the
    /// connection established.
    pub(super) fn end_restarted(&mut self, pool: &mut Pool, cid: u8) {
        if let Some(connection) = self.at(cid) {
            connection.counters.peer_resets += 1;
        }
        self.end(pool, cid, Down::Restarted);
        if let Some(connection) = self.at(cid) {
            connection.owed.reset = connection.port.is_some();
        }
        self.make_ready(cid);
    }

    /// Ends the connection: nothing is delivered from here on.
    pub(super) fn end(&mut self, pool: &mut Pool, cid: u8, why: Down) {
        let (now, pause) = (self.now, self.retry_pause());
        let Some(connection) = self.at(cid) else { return };
        let is_wanted = core::mem::take(&mut connection.is_wanted);
        if connection.state == State::Disconnected && !is_wanted {
            return;
        }
        let fault = matches!(why, Down::Fault(_));
        connection.counters.faults += u64::from(fault);
        connection.counters.silent += u64::from(why == Down::Silent);
        let sends_reset = fault || matches!(why, Down::Asked | Down::Silent);
        let was_connected = connection.state == State::Connected;
        connection.state = State::Disconnected;
        connection.is_pausing = true;
        connection.owed = super::connection::Owed {
            reset: sends_reset && was_connected && connection.port.is_some(),
            ..Default::default()
        };
        connection.drop_received(pool);
        let id = connection.id;
        let unsent = self.drop_queue(pool, cid);
        self.timers.set(cid.into(), Some(now + pause));
        self.make_ready(cid);
        self.events.push_back(Event::Disconnected { connection: id, why, unsent });
    }

    /// Handles the timer of a connection.
    pub(super) fn timer(&mut self, pool: &mut Pool, cid: u8, now: Instant) {
        let pause = self.retry_pause();
        let gap = self.config.gap;
        let Some(connection) = self.at(cid) else { return };
        let mut next = pause;
        match connection.state {
            State::Disconnected if !connection.is_wanted => connection.is_pausing = false,
            State::Disconnected | State::Connecting => {
                connection.is_pausing = false;
                connection.is_wanted = false;
                connection.state = State::Connecting;
                connection.owed.request = true;
                // If the peer is connected, the CONN_REQ ends its connection, so its early data is obsolete.
                connection.drop_early(pool);
                self.make_ready(cid);
            }
            State::Connected => {
                connection.alive = connection.alive.saturating_sub(1);
                let since = connection.gap_since.map(|since| now.since(since));
                if connection.alive == 0 {
                    return self.end(pool, cid, Down::Silent);
                } else if gap.is_some_and(|gap| since.is_some_and(|since| since >= gap)) {
                    return self.end(pool, cid, Down::Fault(super::Fault::Missing));
                } else {
                    next =
                        Duration::from_millis(100) * u32::from(connection.agreed.heartbeat).max(1);
                    connection.owed.heartbeat = true;
                    self.make_ready(cid);
                }
            }
        }
        self.timers.set(cid.into(), Some(now + next));
    }

    /// The time until the next CONN_REQ.
    pub(super) fn retry_pause(&mut self) -> Duration {
        let chance = i64::from(self.rng.next() as i8);
        let millis = (self.config.retry.as_millis() as i64).saturating_add(chance).max(1);
        Duration::from_millis(millis as u64)
    }
}
