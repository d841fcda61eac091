//! Received packets: dispatch to their connection, and reordering.

use super::assembly::Refused;
use super::connection::{ALIVE, Connection, Parked, REORDER, State};
use super::{Down, Event, Fault, Riocm};
use crate::pool::{Chain, Pool};
use crate::wire::riocm::{
    Data, Ends, FRAG, FRAG_PATCH, FRAME, HEAD_PATCH, Header, Message, Packet, Part, START,
};
use drivers::hal::Instant;

/// Payload of a packet.
pub(super) enum Payload<'a> {
    /// In the receive buffer.
    Received(&'a [u8]),
    /// Copied into pieces, because the packet came early.
    Kept(Chain),
}

impl Riocm {
    /// Handles a RapidIO message from RIOCM's mailbox of a port. `source` is the sender's device id from the RapidIO
    /// header. `bytes` is not referenced after the call.
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

    /// As [`Riocm::receive`] for a SINGLE packet. If the result is only a message, it is returned with its connection
    /// id, without an event.
    // Inlined with the rest of the path of a message: 1,038 instructions for 64 bytes instead of 1,131 (`bench riocm`).
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

    /// As `arrive_single`, for a FRAG packet.
    // Inlined with the rest of the path of a message: 1,038 instructions for 64 bytes instead of 1,131 (`bench riocm`).
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

    /// As `arrive_single`, for all other packets.
    #[inline]
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
            None => self.arrive_general(pool, port, source, bytes, now),
        }
    }

    /// Handles packets other than SINGLE and FRAG.
    #[inline(never)]
    fn arrive_general(
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

    /// Checks that a packet's header has the sender's device id of RapidIO. Counts a mismatch as forged.
    #[inline]
    fn is_from(&mut self, ends: Ends, source: u16) -> Option<()> {
        if ends.sender != source {
            self.strays.forged += 1;
            return None;
        }
        Some(())
    }

    /// Finds the connection of a packet of `len` bytes, and counts the packet.
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
        // A connection id from before a restart of either end may belong to another connection now.
        let known = (connection.port, connection.peer_id, connection.peer_port);
        if known != (Some(port), ends.sender, ends.from_port) {
            strays.stale += 1;
            return None;
        }
        connection.counters.received_packets += 1;
        connection.counters.received_bytes += len as u64;
        Some(connection)
    }

    /// Handles a data packet that is not the next, is followed by early packets, or came without a connection.
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
            return self.handle_out_of_order(pool, cid, (id, sequence, part), payload, now);
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

    /// Handles a data packet that is not the next, or came without a connection.
    fn handle_out_of_order(
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
            // The peer is connected before us, and its first messages have overtaken its CONN_ACK.
            State::Connecting
                if connection.early.get(usize::from(sequence)).is_some_and(Option::is_none)
                    && matches!(part, Part::Single(_)) =>
            {
                match copy_payload(pool, connection.receive_account, part, payload) {
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
            return self.end_restarted(pool, cid);
        }
        if ahead >= REORDER {
            self.end(pool, cid, Down::Fault(Fault::Beyond));
            return;
        }
        let place = usize::from(sequence % REORDER);
        let Some(slot) = connection.parked.get_mut(place) else { return };
        if slot.is_some() {
            connection.counters.duplicates += 1;
            return self.end_restarted(pool, cid);
        }
        match copy_payload(pool, connection.receive_account, part, payload) {
            Some(payload) => {
                *slot = Some(Parked { id, part, payload });
                connection.parked_count += 1;
                connection.counters.reordered += 1;
                connection.gap_since.get_or_insert(now);
            }
            None => self.no_room(pool, cid),
        }
    }

    /// Delivers early packets that are next now.
    fn drain_parked(&mut self, pool: &mut Pool, cid: u8, now: Instant) {
        while let Some(connection) = self.at(cid) {
            if connection.state != State::Connected {
                return;
            }
            let place = usize::from(connection.expected % REORDER);
            let Some(parked) = connection.parked.get_mut(place).and_then(Option::take) else {
                // Another packet is missing; its time limit starts now.
                connection.gap_since = (connection.parked_count > 0).then_some(now);
                return;
            };
            connection.parked_count -= 1;
            self.take_next(pool, cid, parked);
        }
    }

    /// Delivers a packet that came before the connection was established, which it is now.
    pub(super) fn take_early(&mut self, pool: &mut Pool, cid: u8, sequence: u16, early: Parked) {
        let now = self.now;
        let Some(connection) = self.at(cid) else { return pool.free(early.payload) };
        if connection.is_next(sequence) {
            return self.take_next(pool, cid, early);
        }
        // Packets before it are missing.
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

    /// Ends the connection because a part was refused.
    #[cold]
    fn refuse(&mut self, pool: &mut Pool, cid: u8, refused: Refused) {
        match refused {
            Refused::Fault(fault) => self.end(pool, cid, Down::Fault(fault)),
            Refused::NoRoom => self.no_room(pool, cid),
        }
    }

    /// Ends the connection because there is no memory for a message.
    fn no_room(&mut self, pool: &mut Pool, cid: u8) {
        if let Some(connection) = self.at(cid) {
            connection.counters.no_room += 1;
        }
        self.end(pool, cid, Down::Fault(Fault::NoRoom));
    }
}

/// Copies a payload into new pieces, with unused bytes in front for patches.
fn copy_payload(
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
