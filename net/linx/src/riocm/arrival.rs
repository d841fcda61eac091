//! Packets that arrive: to which connection they belong, and in which order they count.

use super::assembly::Refused;
use super::connection::{ALIVE, Connection, Parked, REORDER, State};
use super::{Down, Event, Fault, Riocm};
use crate::pool::{Chain, Pool};
use crate::wire::riocm::{
    Data, Ends, FRAG, FRAG_PATCH, FRAME, HEAD_PATCH, Header, Message, Packet, Part, START,
};
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
        let arrived = match Data::single(bytes) {
            Some(single) => self.arrive_single(pool, port, source, single, now),
            None => self.arrive_other(pool, port, source, bytes, now),
        };
        if let Some((cid, message)) = arrived
            && let Some(connection) = self.at(cid).map(|it| it.id)
        {
            self.events.push_back(Event::Message { connection, message });
        }
    }

    /// As [`Riocm::receive`] for a SINGLE packet, but a message that is all that happened is handed over at once and not
    /// told of; with the connection id.
    #[inline(always)]
    pub(crate) fn arrive_single(
        &mut self,
        pool: &mut Pool,
        port: usize,
        source: u16,
        (data, message, payload): (Data, Message, &[u8]),
        now: Instant,
    ) -> Option<(u8, super::Message)> {
        self.now = self.now.max(now);
        let Data { ends, id, sequence, cid } = data;
        self.is_from(ends, source)?;
        let connection = self.counted(cid, port, ends, FRAME + START + payload.len())?;
        let cid = connection.id.cid;
        if !connection.is_next(sequence) || connection.parked_count > 0 {
            self.handle_data(pool, cid, (id, sequence, Part::Single(message)), payload, now);
            return None;
        }
        connection.advance();
        let Message { source, destination, size } = message;
        if let Err(refused) = connection.check_single(size, payload.len()) {
            self.refuse(pool, cid, refused);
            return None;
        }
        let bytes = payload.get(..size as usize).unwrap_or_default();
        let Some(chain) = pool.begin(connection.receive_account, &[], bytes) else {
            self.refuse(pool, cid, Refused::NoRoom);
            return None;
        };
        connection.counters.received_messages += 1;
        Some((cid, super::Message { source, destination, chain }))
    }

    /// The same for a FRAG packet.
    #[inline(always)]
    fn arrive_fragment(
        &mut self,
        pool: &mut Pool,
        port: usize,
        source: u16,
        (data, payload): (Data, &[u8]),
        now: Instant,
    ) -> Option<(u8, super::Message)> {
        let Data { ends, id, sequence, cid } = data;
        self.is_from(ends, source)?;
        let connection = self.counted(cid, port, ends, FRAME + FRAG + payload.len())?;
        let cid = connection.id.cid;
        if !connection.is_next(sequence) || connection.parked_count > 0 {
            self.handle_data(pool, cid, (id, sequence, Part::Fragment), payload, now);
            return None;
        }
        connection.advance();
        match connection.place_fragment(pool, id, Payload::Received(payload)) {
            Ok(None) => None,
            Ok(Some(message)) => {
                connection.counters.received_messages += 1;
                Some((cid, message))
            }
            Err(refused) => {
                self.refuse(pool, cid, refused);
                None
            }
        }
    }

    /// The same for any packet.
    #[inline(always)]
    pub(crate) fn arrive_other(
        &mut self,
        pool: &mut Pool,
        port: usize,
        source: u16,
        bytes: &[u8],
        now: Instant,
    ) -> Option<(u8, super::Message)> {
        self.now = self.now.max(now);
        match Data::fragment(bytes) {
            Some(fragment) => self.arrive_fragment(pool, port, source, fragment, now),
            None => self.arrive_seldom(pool, port, source, bytes, now),
        }
    }

    /// For those that are neither.
    #[inline(never)]
    fn arrive_seldom(
        &mut self,
        pool: &mut Pool,
        port: usize,
        source: u16,
        bytes: &[u8],
        now: Instant,
    ) -> Option<(u8, super::Message)> {
        let (Packet { ends, header }, payload) = match Packet::parse(bytes) {
            Ok(parsed) => parsed,
            Err(_) => {
                self.strays.malformed += 1;
                return None;
            }
        };
        self.is_from(ends, source)?;
        let cid = match header {
            Header::Heartbeat { cid } | Header::Data { cid, .. } => cid,
            _ => {
                let key = (port, ends.sender, ends.from_port, ends.to_port);
                let Some(&cid) = self.by_ends.get(&key) else {
                    self.strays.unknown_peer += 1;
                    return None;
                };
                cid.into()
            }
        };
        let connection = self.counted(cid, port, ends, bytes.len())?;
        let cid = connection.id.cid;
        match header {
            Header::Data { id, sequence, part, .. } => {
                if !connection.is_next(sequence) || connection.parked_count > 0 {
                    self.handle_data(pool, cid, (id, sequence, part), payload, now);
                    return None;
                }
                connection.advance();
                match connection.place(pool, id, part, Payload::Received(payload)) {
                    Ok(None) => (),
                    Ok(Some(message)) => {
                        connection.counters.received_messages += 1;
                        return Some((cid, message));
                    }
                    Err(refused) => self.refuse(pool, cid, refused),
                }
            }
            Header::Heartbeat { .. } => {
                if connection.state == State::Connected {
                    connection.alive = ALIVE;
                }
            }
            header => self.handle_conn(pool, cid, header),
        }
        None
    }

    /// Whether a packet's sender is who it says.
    #[inline]
    fn is_from(&mut self, ends: Ends, source: u16) -> Option<()> {
        if ends.sender != source {
            self.strays.forged += 1;
            return None;
        }
        Some(())
    }

    /// The connection to which a packet of so many bytes belongs, which counts it.
    #[inline]
    fn counted(
        &mut self,
        cid: u16,
        port: usize,
        ends: Ends,
        len: usize,
    ) -> Option<&mut Connection> {
        let Riocm { connections, strays, .. } = self;
        let Some(Some(connection)) = connections.get_mut(usize::from(cid)) else {
            strays.unknown_cid += 1;
            return None;
        };
        // An id that this peer has from before one of us restarted may be another connection's by now.
        let known = (connection.port, connection.peer_id, connection.peer_port);
        if known != (Some(port), ends.sender, ends.from_port) {
            strays.stale += 1;
            return None;
        }
        connection.counters.received_packets += 1;
        connection.counters.received_bytes += len as u64;
        Some(connection)
    }

    /// A packet of data that is not the next, has others behind it that came early, or came when there is no
    /// connection.
    #[inline(never)]
    fn handle_data(
        &mut self,
        pool: &mut Pool,
        cid: u8,
        (id, sequence, part): (u8, u16, Part),
        payload: &[u8],
        now: Instant,
    ) {
        let Riocm { connections, events, .. } = self;
        let Some(Some(connection)) = connections.get_mut(usize::from(cid)) else { return };
        if !connection.is_next(sequence) {
            return self.handle_astray(pool, cid, (id, sequence, part), payload, now);
        }
        connection.advance();
        match connection.place(pool, id, part, Payload::Received(payload)) {
            Ok(Some(message)) => {
                connection.counters.received_messages += 1;
                events.push_back(Event::Message { connection: connection.id, message });
            }
            Ok(None) => (),
            Err(refused) => return self.refuse(pool, cid, refused),
        }
        self.drain_parked(pool, cid, now);
    }

    /// A packet of data that is not the next, or came when there is no connection.
    fn handle_astray(
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
            // The peer is up before us, and its first messages have overtaken its CONN_ACK.
            State::Connecting
                if connection.early.get(usize::from(sequence)).is_some_and(Option::is_none)
                    && matches!(part, Part::Single(_)) =>
            {
                match keep(pool, connection.receive_account, part, payload) {
                    Some(payload) => {
                        let parked = Parked { id, part, payload };
                        connection.early[usize::from(sequence)] =
                            Some((connection.peer_generation, parked));
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
        if ahead >= 0x8000 {
            connection.counters.duplicates += 1;
            return self.begun_anew(pool, cid);
        }
        if ahead >= REORDER {
            self.end(pool, cid, Down::Fault(Fault::Beyond));
            return;
        }
        let place = usize::from(sequence % REORDER);
        let Some(slot) = connection.parked.get_mut(place) else { return };
        if slot.is_some() {
            connection.counters.duplicates += 1;
            return self.begun_anew(pool, cid);
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

    /// One that came before the connection was up, which it is now.
    pub(super) fn take_early(&mut self, pool: &mut Pool, cid: u8, sequence: u16, early: Parked) {
        let now = self.now;
        let Some(connection) = self.at(cid) else { return pool.free(early.payload) };
        if connection.is_next(sequence) {
            return self.take_next(pool, cid, early);
        }
        // Those before it are still to come.
        match connection.parked.get_mut(usize::from(sequence)) {
            Some(slot) if connection.state == State::Connected && slot.is_none() => {
                *slot = Some(early);
                connection.parked_count += 1;
                connection.gap_since.get_or_insert(now);
            }
            _ => pool.free(early.payload),
        }
    }

    fn take_next(&mut self, pool: &mut Pool, cid: u8, parked: Parked) {
        let Riocm { connections, events, .. } = self;
        let Some(Some(connection)) = connections.get_mut(usize::from(cid)) else { return };
        connection.advance();
        match connection.place(pool, parked.id, parked.part, Payload::Kept(parked.payload)) {
            Ok(Some(message)) => {
                connection.counters.received_messages += 1;
                events.push_back(Event::Message { connection: connection.id, message });
            }
            Ok(None) => (),
            Err(refused) => self.refuse(pool, cid, refused),
        }
    }

    /// A part that is not taken ends the connection.
    #[cold]
    fn refuse(&mut self, pool: &mut Pool, cid: u8, refused: Refused) {
        match refused {
            Refused::Fault(fault) => self.end(pool, cid, Down::Fault(fault)),
            Refused::NoRoom => self.no_room(pool, cid),
        }
    }

    /// A message finds no memory.
    fn no_room(&mut self, pool: &mut Pool, cid: u8) {
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
