//! Packets that arrive: to which connection they belong, and in which order they count.

use super::connection::{ALIVE, Parked, REORDER, State};
use super::{Down, Fault, Riocm};
use crate::pool::{Chain, Pool};
use crate::wire::riocm::{FRAG_PATCH, HEAD_PATCH, Header, Packet, Part};
use drivers::hal::Instant;

/// Where the payload of a packet lies.
pub(super) enum Payload<'a> {
    /// Where it was received.
    Received(&'a [u8]),
    /// In pieces, because it came early.
    Kept(Chain),
}

impl Riocm {
    /// Takes a RapidIO message that came to RIOCM's mailbox at a port. `source` is the device id that RapidIO itself
    /// names as its sender. Nothing of `bytes` is kept.
    pub fn receive(
        &mut self,
        pool: &mut Pool,
        port: usize,
        source: u16,
        bytes: &[u8],
        now: Instant,
    ) {
        self.now = self.now.max(now);
        let (packet, payload) = match Packet::parse(bytes) {
            Ok(parsed) => parsed,
            Err(_) => {
                self.strays.malformed += 1;
                return;
            }
        };
        let ends = packet.ends;
        if ends.sender != source {
            self.strays.forged += 1;
            return;
        }
        let cid = match packet.header {
            Header::Heartbeat { cid } | Header::Data { cid, .. } => u8::try_from(cid).unwrap_or(0),
            _ => {
                let key = (port, ends.sender, ends.from_port, ends.to_port);
                let Some(&cid) = self.by_ends.get(&key) else {
                    self.strays.unknown_peer += 1;
                    return;
                };
                cid
            }
        };
        let Some(Some(connection)) = self.connections.get_mut(usize::from(cid)) else {
            self.strays.unknown_cid += 1;
            return;
        };
        // An id that this peer has from before one of us restarted may be another connection's by now.
        let known = (connection.port, connection.peer_id, connection.peer_port);
        if known != (Some(port), ends.sender, ends.from_port) {
            self.strays.stale += 1;
            return;
        }
        connection.counters.received_packets += 1;
        connection.counters.received_bytes += bytes.len() as u64;
        match packet.header {
            Header::Heartbeat { .. } => {
                if connection.state == State::Connected {
                    connection.alive = ALIVE;
                }
            }
            Header::Data { id, sequence, part, .. } => {
                self.handle_data(pool, cid, (id, sequence, part), payload, now);
            }
            header => self.handle_conn(pool, cid, header),
        }
    }

    /// A packet of data, whose sequence number says when it counts.
    #[inline]
    fn handle_data(
        &mut self,
        pool: &mut Pool,
        cid: u8,
        (id, sequence, part): (u8, u16, Part),
        payload: &[u8],
        now: Instant,
    ) {
        let Some(connection) = self.at(cid) else { return };
        match connection.state {
            State::Connected => (),
            // The peer is up before us, and its first message has overtaken its CONN_ACK.
            State::Connecting
                if sequence == 0
                    && connection.early.is_none()
                    && matches!(part, Part::Single(_)) =>
            {
                match keep(pool, connection.receive_account, part, payload) {
                    Some(payload) => {
                        let parked = Parked { id, part, payload };
                        connection.early = Some((connection.peer_generation, parked));
                    }
                    None => connection.counters.outside += 1,
                }
                return;
            }
            _ => {
                connection.counters.outside += 1;
                return;
            }
        }
        connection.alive = ALIVE;
        let ahead = sequence.wrapping_sub(connection.expected);
        if ahead == 0 {
            connection.expected = connection.expected.wrapping_add(1);
            if !self.take_part(pool, cid, id, part, Payload::Received(payload)) {
                return;
            }
            if self.at(cid).is_some_and(|it| it.parked_count > 0) {
                self.drain_parked(pool, cid, now);
            }
            return;
        }
        if ahead >= 0x8000 {
            connection.counters.duplicates += 1;
            return;
        }
        if ahead >= REORDER {
            self.end(pool, cid, Down::Fault(Fault::Beyond));
            return;
        }
        let place = usize::from(sequence % REORDER);
        let Some(slot) = connection.parked.get_mut(place) else { return };
        if slot.is_some() {
            connection.counters.duplicates += 1;
            return;
        }
        match keep(pool, connection.receive_account, part, payload) {
            Some(payload) => {
                *slot = Some(Parked { id, part, payload });
                connection.parked_count += 1;
                connection.counters.reordered += 1;
                connection.gap_since.get_or_insert(now);
            }
            None => self.no_room(pool, cid),
        }
    }

    /// Those that came early and follow what has come now.
    fn drain_parked(&mut self, pool: &mut Pool, cid: u8, now: Instant) {
        while let Some(connection) = self.at(cid) {
            if connection.state != State::Connected {
                return;
            }
            let place = usize::from(connection.expected % REORDER);
            let Some(parked) = connection.parked.get_mut(place).and_then(Option::take) else {
                // Another one is missing, and has been for no longer than since now.
                connection.gap_since = (connection.parked_count > 0).then_some(now);
                return;
            };
            connection.parked_count -= 1;
            self.take_next(pool, cid, parked);
        }
    }

    /// One that was kept, and counts now.
    pub(super) fn take_parked(&mut self, pool: &mut Pool, cid: u8, parked: Parked) {
        self.take_next(pool, cid, parked);
    }

    fn take_next(&mut self, pool: &mut Pool, cid: u8, parked: Parked) {
        if let Some(connection) = self.at(cid) {
            connection.expected = connection.expected.wrapping_add(1);
        }
        self.take_part(pool, cid, parked.id, parked.part, Payload::Kept(parked.payload));
    }

    /// A message finds no memory.
    pub(super) fn no_room(&mut self, pool: &mut Pool, cid: u8) {
        if let Some(connection) = self.at(cid) {
            connection.counters.no_room += 1;
        }
        self.end(pool, cid, Down::Fault(Fault::NoRoom));
    }
}

/// Copies a payload, with room in front for what may have to be patched.
fn keep(
    pool: &mut Pool,
    account: crate::pool::AccountId,
    part: Part,
    payload: &[u8],
) -> Option<Chain> {
    let hole = match part {
        Part::Fragment => FRAG_PATCH,
        Part::PatchStart { .. } => HEAD_PATCH,
        Part::Single(_) | Part::Start(_) | Part::Patch => 0,
    };
    let mut chain = Chain::new(account);
    pool.append_apart(&mut chain, hole, payload).then_some(chain)
}
