//! The machine of a connection: how it comes up, is supervised, and ends.
//!
//! | state \ event | connect | disconnect | CONN_REQ | CONN_ACK, right | CONN_RESET | timer |
//! |---|---|---|---|---|---|---|
//! | disconnected | → connecting | | | | | again in 200 ms |
//! | connecting | | → disconnected | send CONN_ACK | send CONN_ACK, → connected | | send CONN_REQ, again in 200 ms |
//! | connected | | send CONN_RESET, → disconnected | → disconnected | | → disconnected | send HEARTBEAT; the third in silence: CONN_RESET, → disconnected |
//!
//! After an end, whoever wants the connection again is taken for disconnected for a whole pause: neither CONN_ACKs nor
//! packets of data say to which life of a connection they belong, and those of the last one have to be gone.
//!
//! Data of an old sequence number ends a connection with a CONN_RESET: RapidIO delivers nothing twice, so the peer has
//! begun anew.
//!
//! A CONN_ACK is right if it names our generation and what we take for agreed; another one counts as a CONN_REQ.

use super::connection::{ALIVE, Agreed, EARLY, State};
use super::{Down, Event, Riocm};
use crate::pool::Pool;
use crate::wire::riocm::Header;
use core::time::Duration;
use drivers::hal::Instant;

use super::config::LEAST_MTU;

impl Riocm {
    /// A CONN packet of a connection's peer.
    pub(super) fn handle_conn(&mut self, pool: &mut Pool, cid: u8, header: Header) {
        let Some(connection) = self.at(cid) else { return };
        let (generation, mtu, heartbeat) = match header {
            Header::Reset { .. } => {
                // While connecting it is of an earlier life: LINX for Linux passes over it as well.
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
                // Who asks is not up, and what it sent when it was is over.
                let is_over = matches!(header, Header::Request { .. })
                    || connection.peer_generation != generation;
                if is_over {
                    connection.forget_early(pool);
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

    /// The peer has agreed.
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
                // Of an earlier life.
                Some((_, early)) => pool.free(early.payload),
                None => (),
            }
        }
    }

    /// The peer sends packets of another life of the connection: it has begun anew. It hears of the end, because it may
    /// take the connection for one that is up.
    pub(super) fn begun_anew(&mut self, pool: &mut Pool, cid: u8) {
        if let Some(connection) = self.at(cid) {
            connection.counters.peer_resets += 1;
        }
        self.end(pool, cid, Down::Restarted);
        if let Some(connection) = self.at(cid) {
            connection.owed.reset = connection.port.is_some();
        }
        self.make_ready(cid);
    }

    /// The connection is over: nothing is delivered from here on.
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
        let says_so = fault || matches!(why, Down::Asked | Down::Silent);
        let was_connected = connection.state == State::Connected;
        connection.state = State::Disconnected;
        connection.rests = true;
        connection.owed = super::connection::Owed {
            reset: says_so && was_connected && connection.port.is_some(),
            ..Default::default()
        };
        connection.forget_arrivals(pool);
        let id = connection.id;
        let unsent = self.drop_queue(pool, cid);
        self.timers.set(cid.into(), Some(now + pause));
        self.make_ready(cid);
        self.events.push_back(Event::Disconnected { connection: id, why, unsent });
    }

    /// The timer of a connection.
    pub(super) fn timer(&mut self, pool: &mut Pool, cid: u8, now: Instant) {
        let pause = self.retry_pause();
        let gap = self.config.gap;
        let Some(connection) = self.at(cid) else { return };
        let mut next = pause;
        match connection.state {
            State::Disconnected if !connection.is_wanted => connection.rests = false,
            State::Disconnected | State::Connecting => {
                connection.rests = false;
                connection.is_wanted = false;
                connection.state = State::Connecting;
                connection.owed.request = true;
                // If the peer is up, this ends what it is in, and what it has sent.
                connection.forget_early(pool);
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
