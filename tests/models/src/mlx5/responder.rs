//! Responders: receives, remote memory accesses, responses.

use super::completion_queue::{SEND, SEND_IMMEDIATE, SEND_INVALIDATE, WRITE_IMMEDIATE};
use super::fields::{be32, get, put16, put32};
use super::memory_key::{
    ATOMIC, LOCAL_PROTECTION, LOCAL_WRITE, REMOTE_READ, REMOTE_WRITE, TERMINATE,
};
use super::packet::{self, Packet, Path, Remote, is_ipv4};
use super::queue_pair::{Service, State};
use super::requester::{SEQUENCE, ahead};
use super::work_request::{SEGMENT, Segment};
use super::{Fault, Mlx5};
use crate::Machine;

/// Response packets per poll.
const AT_A_TIME: usize = 128;
/// Most atomic results that are kept for duplicates.
const KEPT: usize = 64;
/// Bytes before a datagram's payload.
const NETWORK_HEADER: usize = 40;
/// UDP source port of responses.
const ANSWER_PORT: u16 = 0xc000;

/// Syndromes of acknowledgements.
const ACK: u8 = 0x1f;
const NOT_READY: u8 = 0x20;
const OUT_OF_ORDER: u8 = 0x60;
const INVALID: u8 = 0x61;
const ACCESS: u8 = 0x62;
const OPERATION: u8 = 0x63;

/// Syndromes of completions.
const TOO_LONG: u8 = 1;

/// Events of a queue pair whose peer sent an invalid request, or one without the rights.
const INVALID_REQUEST: u8 = 0x10;
const ACCESS_ERROR: u8 = 0x11;

/// A partly received message.
#[derive(Debug)]
pub enum Message {
    /// A SEND into a posted receive.
    Send {
        /// Index of the receive.
        index: u16,
        list: Vec<Segment>,
        length: usize,
    },
    /// A WRITE into the memory that the first packet names.
    Write { key: u32, address: u64, left: u64, length: u64 },
}

/// A pending response to the requester.
#[derive(Debug)]
pub enum Answer {
    /// An acknowledgement.
    Acknowledge { sequence: u32, syndrome: u8 },
    /// The remaining data of a READ.
    Data { sequence: u32, key: u32, address: u64, left: u64, first: bool },
    /// The original value of an atomic operation's memory.
    Original { sequence: u32, value: u64 },
}

impl Mlx5 {
    /// Handles a request packet.
    pub(super) fn take_request(&mut self, number: u32, packet: &Packet, machine: &mut dyn Machine) {
        if packet.datagram.is_some() {
            return self.take_datagram(number, packet, machine);
        }
        let Some(pair) = self.state.queue_pairs.get_mut(&number) else { return };
        match ahead(packet.sequence, pair.expected) {
            0 => {}
            1.. => {
                self.counts.out_of_sequence += 1;
                if !std::mem::replace(&mut pair.nak_sent, true) {
                    let sequence = pair.expected;
                    self.answer_with(number, sequence, OUT_OF_ORDER);
                }
                return;
            }
            _ => {
                self.counts.duplicates += 1;
                return self.take_duplicate(number, packet);
            }
        }
        pair.nak_sent = false;
        let taken = match packet.operation {
            packet::READ_REQUEST => self.take_read(number, packet),
            packet::COMPARE_SWAP | packet::FETCH_ADD => self.take_atomic(number, packet, machine),
            packet::WRITE_FIRST..=packet::WRITE_ONLY_IMMEDIATE => {
                self.take_write(number, packet, machine)
            }
            _ => self.take_send(number, packet, machine),
        };
        match taken {
            Ok(()) => {}
            Err(syndrome @ (INVALID | ACCESS | OPERATION)) => {
                self.answer_with(number, packet.sequence, syndrome);
                self.send_answers(number, machine);
                let kind = if syndrome == ACCESS { ACCESS_ERROR } else { INVALID_REQUEST };
                self.report_event(kind, number, 0, machine);
                self.fail_pair(number, machine);
            }
            // No receive is posted: the peer retransmits, and later packets are dropped until then.
            Err(syndrome) => {
                self.answer_with(number, packet.sequence, syndrome);
                if let Some(pair) = self.state.queue_pairs.get_mut(&number) {
                    pair.nak_sent = true;
                }
            }
        }
    }

    /// Handles a duplicate request.
    fn take_duplicate(&mut self, number: u32, packet: &Packet) {
        let Some(pair) = self.state.queue_pairs.get_mut(&number) else { return };
        match packet.operation {
            packet::READ_REQUEST => {
                let Remote { address, key, length } = packet.remote;
                let (sequence, left) = (packet.sequence, length.into());
                pair.answers.push_back(Answer::Data { sequence, key, address, left, first: true });
            }
            packet::COMPARE_SWAP | packet::FETCH_ADD => {
                let known = pair.atomics.iter().find(|(of, _)| *of == packet.sequence);
                if let Some(&(sequence, value)) = known {
                    pair.answers.push_back(Answer::Original { sequence, value });
                }
            }
            _ => {
                let sequence = pair.expected.wrapping_sub(1) & SEQUENCE;
                self.answer_with(number, sequence, ACK);
            }
        }
    }

    fn answer_with(&mut self, number: u32, sequence: u32, syndrome: u8) {
        if let Some(pair) = self.state.queue_pairs.get_mut(&number) {
            pair.answers.push_back(Answer::Acknowledge { sequence, syndrome });
        }
    }

    /// Advances the expected packet number, and the message count with `message`.
    fn advance(&mut self, number: u32, packet: &Packet, packets: u32, message: bool) {
        let Some(pair) = self.state.queue_pairs.get_mut(&number) else { return };
        pair.expected = pair.expected.wrapping_add(packets) & SEQUENCE;
        pair.messages = pair.messages.wrapping_add(message.into()) & SEQUENCE;
        let answers = !(packet::SEND_FIRST..=packet::WRITE_ONLY_IMMEDIATE)
            .contains(&packet.operation)
            && packet.operation < packet::SEND_LAST_INVALIDATE;
        if packet.wants_ack && !answers {
            self.answer_with(number, packet.sequence, ACK);
        }
    }

    /// Whether the peer may access this memory.
    fn grants(&self, number: u32, right: usize, remote: Remote) -> bool {
        let Some(pair) = self.state.queue_pairs.get(&number) else { return false };
        let Remote { address, key, length } = remote;
        pair.allows(right)
            && (length == 0 || self.may_reach(pair.access(right), key, address, length.into()))
    }

    fn take_read(&mut self, number: u32, packet: &Packet) -> Result<(), u8> {
        if !self.grants(number, REMOTE_READ, packet.remote) {
            return Err(ACCESS);
        }
        let Some(pair) = self.state.queue_pairs.get_mut(&number) else { return Ok(()) };
        if pair.message.is_some() {
            return Err(INVALID);
        }
        let Remote { address, key, length } = packet.remote;
        let (sequence, left) = (packet.sequence, u64::from(length));
        let packets = left.div_ceil(pair.mtu() as u64).max(1) as u32;
        pair.answers.push_back(Answer::Data { sequence, key, address, left, first: true });
        self.advance(number, packet, packets, true);
        Ok(())
    }

    fn take_atomic(
        &mut self,
        number: u32,
        packet: &Packet,
        machine: &mut dyn Machine,
    ) -> Result<(), u8> {
        let Remote { address, key, .. } = packet.remote;
        if address % 8 != 0 {
            return Err(INVALID);
        }
        if !self.grants(number, ATOMIC, packet.remote) {
            return Err(ACCESS);
        }
        let Some(pair) = self.state.queue_pairs.get(&number) else { return Ok(()) };
        if pair.message.is_some() {
            return Err(INVALID);
        }
        let access = pair.access(ATOMIC);
        let mut bytes = Vec::new();
        self.gather(access, key, address, 8, &mut bytes, machine).map_err(|_| ACCESS)?;
        let old = u64::from_le_bytes(bytes.try_into().map_err(|_| ACCESS)?);
        let [value, compared] = packet.atomic;
        let new = match packet.operation {
            packet::FETCH_ADD => old.wrapping_add(value),
            _ if old == compared => value,
            _ => old,
        };
        let written = self.scatter(access, key, address, &new.to_le_bytes(), machine);
        written.map_err(|_| ACCESS)?;
        let Some(pair) = self.state.queue_pairs.get_mut(&number) else { return Ok(()) };
        pair.atomics.push_back((packet.sequence, old));
        if pair.atomics.len() > KEPT {
            pair.atomics.pop_front();
        }
        pair.answers.push_back(Answer::Original { sequence: packet.sequence, value: old });
        self.advance(number, packet, 1, true);
        Ok(())
    }

    fn take_write(
        &mut self,
        number: u32,
        packet: &Packet,
        machine: &mut dyn Machine,
    ) -> Result<(), u8> {
        use packet::{
            WRITE_FIRST, WRITE_LAST, WRITE_LAST_IMMEDIATE, WRITE_MIDDLE, WRITE_ONLY,
            WRITE_ONLY_IMMEDIATE,
        };
        let operation = packet.operation;
        let begins = matches!(operation, WRITE_FIRST | WRITE_ONLY | WRITE_ONLY_IMMEDIATE);
        if begins && !self.grants(number, REMOTE_WRITE, packet.remote) {
            return Err(ACCESS);
        }
        let Some(pair) = self.state.queue_pairs.get(&number) else { return Ok(()) };
        let mtu = pair.mtu();
        let (key, address, left, length) = match (&pair.message, begins) {
            (None, true) => {
                let Remote { address, key, length } = packet.remote;
                (key, address, u64::from(length), u64::from(length))
            }
            (&Some(Message::Write { key, address, left, length }), false) => {
                (key, address, left, length)
            }
            _ => return Err(INVALID),
        };
        let ends = !matches!(operation, WRITE_FIRST | WRITE_MIDDLE);
        let now = packet.payload.len() as u64;
        if now > left || (ends != (now == left)) || !ends && now != mtu as u64 {
            return Err(INVALID);
        }
        let immediate = matches!(operation, WRITE_LAST_IMMEDIATE | WRITE_ONLY_IMMEDIATE);
        debug_assert!(ends || operation != WRITE_LAST);
        // The immediate needs a receive, before any data of the packet is written.
        let receive = if immediate { Some(self.receive_of(number, machine)?) } else { None };
        let Some(pair) = self.state.queue_pairs.get(&number) else { return Ok(()) };
        let access = pair.access(REMOTE_WRITE);
        let written = self.scatter(access, key, address, &packet.payload, machine);
        written.map_err(|_| ACCESS)?;
        let Some(pair) = self.state.queue_pairs.get_mut(&number) else { return Ok(()) };
        let rest = Message::Write { key, address: address + now, left: left - now, length };
        pair.message = (!ends).then_some(rest);
        self.advance(number, packet, 1, ends);
        if let Some((index, _)) = receive {
            self.consume(number);
            let mut entry = [0; 64];
            put32(&mut entry, 0x24, packet.immediate);
            put32(&mut entry, 0x2c, length as u32);
            entry[63] = WRITE_IMMEDIATE << 4;
            self.complete_receive(number, index, entry, packet.solicited, machine);
        }
        Ok(())
    }

    fn take_send(
        &mut self,
        number: u32,
        packet: &Packet,
        machine: &mut dyn Machine,
    ) -> Result<(), u8> {
        use packet::{
            SEND_FIRST, SEND_LAST_IMMEDIATE, SEND_LAST_INVALIDATE, SEND_MIDDLE, SEND_ONLY,
            SEND_ONLY_IMMEDIATE, SEND_ONLY_INVALIDATE,
        };
        let operation = packet.operation;
        let begins = matches!(
            operation,
            SEND_FIRST | SEND_ONLY | SEND_ONLY_IMMEDIATE | SEND_ONLY_INVALIDATE
        );
        let ends = !matches!(operation, SEND_FIRST | SEND_MIDDLE);
        let Some(pair) = self.state.queue_pairs.get_mut(&number) else { return Ok(()) };
        let mtu = pair.mtu();
        if packet.payload.len() > mtu || !ends && packet.payload.len() != mtu {
            return Err(INVALID);
        }
        let (index, list, length) = match (pair.message.take(), begins) {
            (None, true) => {
                let (index, list) = self.receive_of(number, machine)?;
                self.consume(number);
                (index, list, 0)
            }
            (Some(Message::Send { index, list, length }), false) => (index, list, length),
            _ => return Err(INVALID),
        };
        let placed = self.place(number, &list, length, &packet.payload, machine);
        if let Err(syndrome) = placed {
            self.complete_failed(number, 0, index, syndrome, false, machine);
            return Err(if syndrome == TOO_LONG { INVALID } else { OPERATION });
        }
        let length = length + packet.payload.len();
        if !ends {
            if let Some(pair) = self.state.queue_pairs.get_mut(&number) {
                pair.message = Some(Message::Send { index, list, length });
            }
            self.advance(number, packet, 1, false);
            return Ok(());
        }
        let mut entry = [0; 64];
        put32(&mut entry, 0x24, packet.immediate);
        put32(&mut entry, 0x2c, length as u32);
        let kind = match operation {
            SEND_LAST_IMMEDIATE | SEND_ONLY_IMMEDIATE => SEND_IMMEDIATE,
            SEND_LAST_INVALIDATE | SEND_ONLY_INVALIDATE => {
                let domain = self.state.queue_pairs.get(&number).map_or(0, |pair| pair.domain());
                if !self.invalidate(packet.immediate, domain) {
                    self.complete_failed(number, 0, index, LOCAL_PROTECTION, false, machine);
                    return Err(INVALID);
                }
                SEND_INVALIDATE
            }
            _ => SEND,
        };
        entry[63] = kind << 4;
        self.advance(number, packet, 1, true);
        self.complete_receive(number, index, entry, packet.solicited, machine);
        Ok(())
    }

    fn take_datagram(&mut self, number: u32, packet: &Packet, machine: &mut dyn Machine) {
        let Some(pair) = self.state.queue_pairs.get(&number) else { return };
        let Some((key, source)) = packet.datagram else { return };
        let own = be32(&pair.context, 0xa8);
        if key != own && pair.service == Service::Datagram {
            self.counts.roce_dropped += 1;
            return;
        }
        let Ok((index, list)) = self.receive_of(number, machine) else {
            self.counts.no_buffers += 1;
            return;
        };
        self.consume(number);
        let bytes = [&packet.network_header()[..], &packet.payload].concat();
        debug_assert_eq!(bytes.len(), NETWORK_HEADER + packet.payload.len());
        if let Err(syndrome) = self.place(number, &list, 0, &bytes, machine) {
            self.complete_failed(number, 0, index, syndrome, false, machine);
            return self.fail_pair(number, machine);
        }
        let mut entry = [0; 64];
        let layer = if is_ipv4(&packet.path.source) { 2 } else { 1 };
        put32(&mut entry, 0x18, 1 << 28 | layer << 24 | source);
        let immediate = packet.operation == packet::SEND_ONLY_IMMEDIATE;
        // Without an immediate the field has the P_Key.
        let field = if immediate { packet.immediate } else { packet.partition.into() };
        put32(&mut entry, 0x24, field);
        put32(&mut entry, 0x2c, bytes.len() as u32);
        entry[63] = if immediate { SEND_IMMEDIATE } else { SEND } << 4;
        self.complete_receive(number, index, entry, packet.solicited, machine);
    }

    /// The index and segments of the next posted receive. An error is the syndrome of an RNR NAK.
    fn receive_of(
        &mut self,
        number: u32,
        machine: &mut dyn Machine,
    ) -> Result<(u16, Vec<Segment>), u8> {
        let Some(pair) = self.state.queue_pairs.get(&number) else { return Err(NOT_READY) };
        let timer = get(&pair.context, 0x4a3, 5) as u8;
        let index = pair.receive_consumer;
        if !pair.has_receive_queue || pair.posted(machine).0 == index {
            return Err(NOT_READY | timer);
        }
        let (at, length) = pair.receive_block(index).unwrap_or((0, 0));
        let mut bytes = vec![0; length];
        if machine.read(at, &mut bytes).is_err() {
            self.complain(format!("queue pair {number:#x}: no memory at receive {index}"));
            return Err(OPERATION);
        }
        let segments = bytes.chunks_exact(SEGMENT).map(Segment::of_receive);
        Ok((index, segments.take_while(|segment| segment.key != TERMINATE).collect()))
    }

    fn consume(&mut self, number: u32) {
        if let Some(pair) = self.state.queue_pairs.get_mut(&number) {
            pair.receive_consumer = pair.receive_consumer.wrapping_add(1);
        }
    }

    /// Writes into a receive from `offset` on. An error is the syndrome.
    fn place(
        &self,
        number: u32,
        list: &[Segment],
        offset: usize,
        bytes: &[u8],
        machine: &mut dyn Machine,
    ) -> Result<(), u8> {
        let Some(pair) = self.state.queue_pairs.get(&number) else { return Ok(()) };
        let access = pair.access(LOCAL_WRITE);
        let (mut skip, mut rest) = (offset, bytes);
        for segment in list {
            if rest.is_empty() {
                break;
            }
            let size = segment.length as usize;
            if skip >= size {
                skip -= size;
                continue;
            }
            let (part, behind) = rest.split_at(rest.len().min(size - skip));
            let address = segment.address + skip as u64;
            self.scatter(access, segment.key, address, part, machine)?;
            (skip, rest) = (0, behind);
        }
        if rest.is_empty() { Ok(()) } else { Err(TOO_LONG) }
    }

    fn complete_receive(
        &mut self,
        number: u32,
        index: u16,
        mut entry: [u8; 64],
        solicited: bool,
        machine: &mut dyn Machine,
    ) {
        let fails = |fault| match fault {
            Fault::MessageFails(syndrome) => Some(syndrome),
            _ => None,
        };
        if let Some(syndrome) = self.once(fails) {
            self.complete_failed(number, 0, index, syndrome, false, machine);
            return self.fail_pair(number, machine);
        }
        let Some(pair) = self.state.queue_pairs.get(&number) else { return };
        put32(&mut entry, 0x20, pair.user_index);
        put32(&mut entry, 0x38, number);
        put16(&mut entry, 0x3c, index);
        entry[63] |= u8::from(solicited) << 1;
        let queue = pair.receive_completions();
        self.complete(queue, entry, solicited, machine);
    }

    /// Sends pending responses.
    pub(super) fn send_answers(&mut self, number: u32, machine: &mut dyn Machine) {
        for _ in 0..AT_A_TIME {
            let Some(pair) = self.state.queue_pairs.get_mut(&number) else { return };
            let mtu = pair.mtu() as u64;
            if !matches!(pair.state, State::ReadyToReceive | State::ReadyToSend) {
                return;
            }
            let Some(answer) = pair.answers.front_mut() else { return };
            let mut packet = Packet { partition: 0xffff, ..Packet::default() };
            packet.acknowledge = (ACK, pair.messages);
            let mut read = None;
            match answer {
                Answer::Acknowledge { sequence, syndrome } => {
                    (packet.operation, packet.sequence) = (packet::ACKNOWLEDGE, *sequence);
                    packet.acknowledge.0 = *syndrome;
                    pair.answers.pop_front();
                }
                Answer::Original { sequence, value } => {
                    (packet.operation, packet.sequence) = (packet::ATOMIC_ACKNOWLEDGE, *sequence);
                    packet.original = *value;
                    pair.answers.pop_front();
                }
                Answer::Data { sequence, key, address, left, first } => {
                    let now = (*left).min(mtu);
                    packet.sequence = *sequence;
                    packet.operation = match (*first, now == *left) {
                        (true, true) => packet::READ_ONLY,
                        (true, false) => packet::READ_FIRST,
                        (false, false) => packet::READ_MIDDLE,
                        (false, true) => packet::READ_LAST,
                    };
                    read = Some((*key, *address, now as usize));
                    *sequence = sequence.wrapping_add(1) & SEQUENCE;
                    (*address, *left, *first) = (*address + now, *left - now, false);
                    if *left == 0 {
                        pair.answers.pop_front();
                    }
                }
            }
            let (access, gid) = (pair.access(REMOTE_READ), pair.gids().0);
            let path = pair.path();
            packet.path = Path { udp_source: path.udp_source.max(ANSWER_PORT), ..path };
            packet.pair = pair.remote_pair();
            if let Some((key, address, length)) = read {
                let payload = &mut packet.payload;
                if self.gather(access, key, address, length, payload, machine).is_err() {
                    // The key was revoked since the request.
                    packet.payload.clear();
                    packet.operation = packet::ACKNOWLEDGE;
                    packet.acknowledge.0 = ACCESS;
                    if let Some(pair) = self.state.queue_pairs.get_mut(&number) {
                        pair.answers.clear();
                    }
                }
            }
            if !self.is_mute() {
                self.send_packet(gid, packet);
            }
        }
    }
}
